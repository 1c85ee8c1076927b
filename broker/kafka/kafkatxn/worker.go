package kafkatxn

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/fields"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keystate"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/output"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/internal/header"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// worker decides records and writes the results. It belongs to one session. Only its
// counts have a meaning beyond a transaction; the other fields keep memory.
type worker struct {
	s       *session
	opts    *TransactorOptions
	reader  *key.Reader
	message semel.Message
	body    []byte // of the record that is being decided, as it was read
	id      []byte
	digests []semel.Digest
	states  []keyState
	offsets []int64 // in the topic that was read
	origins repartition.Originals
	inputs  []byte // the start of keystate.HeaderOrigins; nil without Repartition
	groups  *fields.GroupKeys
	placer  *repartition.Placer // of groups behind a Repartition
	group   []byte              // of the record that is being decided, if it is known
	outputs output.Results
	results budget.Results
	// times and versions read those of records, if a rule finds them.
	times, versions *fields.Reader
	// recommits are the offsets to commit of partitions without records.
	recommits map[cluster.Partition]kgo.EpochOffset
	touched   []*part
	counts    counts
	deferred  output.Deferred
	records   int // that the open transaction has decided
	bytes     int64
	budget    budget.Transaction
	// rest is the first record of each partition that was read and that the open transaction
	// leaves for the next one.
	rest map[cluster.Partition]kgo.EpochOffset
	// askedLimits says that the open transaction has asked for the topics' limits
	// again.
	askedLimits bool
	// produce gives a record to the client, as part of the open transaction.
	produce func(*kgo.Record)
	// promise is called for each record that was written or failed.
	promise func(*kgo.Record, error)
	failed  atomic.Pointer[error]
	// known, d and when are those of the record that is being decided. when is its time, if
	// records count by a time.
	known keyState
	d     semel.Digest
	when  int64
	// resumed is how many waiting records the open transaction has decided. resuming says that
	// the present record is one of them.
	resumed  int
	resuming bool
	// differing is one of the duplicates that differ in content.
	differing *pipeline.Item
	emits     bool // the open transaction writes what became due
	// unwritable are the topics to which a Transform cannot write.
	unwritable output.Unwritable
}

// counts are the results of a transaction.
type counts struct {
	fresh, duplicate, late, again, superseded, delivered, filtered int
	held                                                           int // of the Keep; it is not reported
	// differing duplicates have another content than the record of their key.
	differing int
}

// keyState is the state of a record's key before the decision.
type keyState uint8

const (
	keyKnown keyState = iota
	keyMissing
	keyPass // delivered without being remembered
)

func (w *worker) init(s *session) {
	w.s, w.opts = s, &s.t.opts
	w.reader = w.opts.Key.Rule.Reader(nil)
	if w.opts.Aggregate != nil {
		w.groups = fields.NewGroupKeys(w.opts.Aggregate.By)
		if w.opts.Repartition != nil {
			w.placer = s.t.newPlacer()
		}
	}
	if rule, _ := w.opts.timeRule(); rule != nil {
		w.times = fields.New(rule)
	}
	if k := w.opts.Keep; k != nil && k.Newest != nil {
		w.versions = fields.New(k.Newest)
	}
	w.budget = w.opts.newBudget()
	if w.opts.Repartition != nil {
		w.inputs = keystate.AppendInputs(nil, w.opts.Inputs)
	}
	w.promise = func(r *kgo.Record, err error) {
		if err != nil {
			if w.opts.Transform != nil {
				w.unwritable.Hear(r.Topic, err)
			}
			err = cluster.WriteError(r, err)
			w.failed.CompareAndSwap(nil, &err)
		}
	}
}

// transact starts a transaction with the records that were read, reads more until it is
// due, and ends it. It starts no decision after ctx has ended, and calls no Transform after
// calls has ended. After an error the session restarts.
func (s *session) transact(ctx, calls, last context.Context, fetches kgo.Fetches) error {
	w := &s.work
	w.reset()
	w.budget.Begin()
	if err := s.brokers.Begin(); err != nil {
		return fmt.Errorf("kafka: begin: %w", err)
	}
	for {
		s.waitsFor("the decision on records", w.records+fetches.NumRecords())
		err := w.resume(ctx, calls, fetches)
		if err == nil {
			err = w.process(ctx, calls, fetches)
		}
		if err != nil {
			s.abort(last)
			return err
		}
		s.readRows(ctx)
		left := w.budget.Left()
		if left <= 0 || w.rest != nil || w.resumed > 0 || w.records >= w.budget.Most(s.t.opts.Limits.Records) || w.bytes >= s.t.opts.Limits.Bytes || ctx.Err() != nil || w.failed.Load() != nil || s.due() {
			break
		}
		fetches = s.poll(ctx, left)
		if s.interrupted() {
			if err := s.abort(last); err != nil {
				return err
			}
			return w.learn(last) // new errors of topics
		}
		if err := cluster.FetchError(fetches); err != nil {
			s.abort(last)
			return err
		}
		if fetches.NumRecords() == 0 && s.pending() {
			break
		}
	}
	return s.finish(calls, last)
}

func (w *worker) reset() {
	w.counts = counts{}
	w.deferred.Reset()
	w.askedLimits = false
	w.records, w.bytes = 0, 0
	w.resumed, w.rest = 0, nil
	w.failed.Store(nil)
	for _, p := range w.touched {
		p.touched = false
		clear(p.changes)
		clear(p.windows)
		p.changes, p.windows = p.changes[:0], p.windows[:0]
	}
	w.touched = w.touched[:0]
	w.recommits = nil
}

// abort ends the open transaction without effect. Its records are read again.
func (s *session) abort(last context.Context) error {
	for _, p := range s.work.touched {
		p.drop()
	}
	s.t.observe(pipeline.Event{Kind: pipeline.EventReturned, Count: s.work.records})
	return s.t.opts.overdue(&s.work.budget, s.rewind(last))
}

// finish writes the changelog and commits. After an error the result is unknown, and
// the session restarts.
func (s *session) finish(calls, last context.Context) error {
	w := &s.work
	s.waitsFor("the brokers to write outputs and changelog", w.records)
	if err := w.emit(calls); err != nil {
		s.abort(last)
		return err
	}
	if err := w.writeChangelog(); err != nil {
		s.abort(last)
		return err
	}
	if err := s.brokers.Flush(last); err != nil {
		return fmt.Errorf("kafka: flush: %w", err)
	}
	if failed := w.failed.Load(); failed != nil || s.interrupted() {
		var cause error
		if failed != nil {
			cause = s.t.opts.overdue(&w.budget, *failed)
		}
		if err := s.abort(last); err != nil {
			return err
		}
		if failed != nil {
			s.retried(last, cause)
			if err := w.learn(last); err != nil {
				return err
			}
			return s.t.refusedSize(last, s.limits, &s.tooBig, *failed)
		}
		return nil
	}
	s.waitsFor("the commit of a Kafka transaction", w.records)
	notes := w.notes() // which adds to w.recommits
	committed, err := s.brokers.End(cluster.Committing(last, w.recommits, notes, w.rest), kgo.TryCommit)
	if err != nil || !committed {
		for _, p := range w.touched {
			p.drop()
		}
		s.t.observe(pipeline.Event{Kind: pipeline.EventReturned, Count: w.records})
		if err == nil {
			err = errAgain // it may have committed, even if the client reports otherwise
		}
		return fmt.Errorf("kafka: commit: %w", pending.TooLong(s.t.opts.overdue(&w.budget, err)))
	}
	if w.rest != nil {
		s.brokers.readAgain(w.rest)
	}
	s.tooBig = 0
	w.budget.Committed()
	s.t.health.Committed(w.records + w.results.End())
	s.succeeded()
	settled := w.records
	for _, p := range w.touched {
		p.slot.marked(p.marks)
		settled -= p.waits.Commit()
		err = errors.Join(err, s.applied(p))
	}
	w.report(settled)
	return err
}

// applied adds the committed entries to the state of a partition. After an error, its
// held records are read again from the brokers.
func (s *session) applied(p *part) error {
	st := p.slot.state
	for i, r := range p.changes {
		if st.Log != nil {
			c, err := keystate.Parse(r.Value)
			if err != nil {
				panic(err) // this process wrote it
			}
			st.Log.Add(r.Value, c.StreamTime, r.Offset+1)
		}
		if i == len(p.changes)-1 {
			st.Passed(r.Value, r.Offset+1)
		}
	}
	st.Commit()
	s.t.writeLog(st)
	if at, ok := st.Cuts.Take(st.CommittedTime); ok {
		p.slot.keysCut = at
	}
	if p.slot.windows != nil {
		return s.t.windowsApplied(p)
	}
	return nil
}

// writeLog writes a state's log. A log that cannot be written stays behind the
// changelog, which is harmless.
func (t *Transactor) writeLog(st *keystate.State) {
	if st.Log == nil {
		return
	}
	err := st.Log.Write()
	if err == nil {
		horizon, span := int64(-1), int64(0)
		if keep := t.windows.Retention(); keep != semel.Forever {
			span = keep.Milliseconds()
			horizon = st.CommittedTime - span
		}
		err = st.Log.Tidy(horizon, span)
	}
	if err != nil {
		t.observe(pipeline.Event{Kind: pipeline.EventPaused, Reason: "state directory", Err: err})
		st.Log.Close()
		st.Log = nil
	}
}

// writeChangelog writes the keys that the transaction learned.
func (w *worker) writeChangelog() error {
	for _, p := range w.touched {
		st := p.slot.state
		for i, value := range st.Records() {
			r := &kgo.Record{Topic: w.opts.changelogOf(p.id.Topic), Partition: p.id.Number, Value: value}
			if origins := st.OriginsOf(i); len(origins) > 0 {
				r.Headers = []kgo.RecordHeader{{Key: keystate.HeaderOrigins, Value: slices.Concat(w.inputs, origins)}}
			}
			p.changes = append(p.changes, r)
			w.produce(r)
		}
		if p.slot.windows != nil {
			if err := w.writeWindows(p); err != nil {
				return err
			}
		}
	}
	return nil
}

// report reports the results of a transaction, which has settled a number of records.
func (w *worker) report(settled int) {
	t, c := w.s.t, &w.counts
	t.observe(pipeline.Event{Kind: pipeline.EventRead, Count: w.records, Bytes: w.bytes})
	decided := func(n int, d semel.Decision, reason string) {
		t.observe(pipeline.Event{Kind: pipeline.EventDecided, Count: n, Decision: d, Reason: reason})
	}
	decided(c.fresh, semel.Fresh, "no record")
	decided(c.again, semel.Duplicate, "read again")
	decided(c.duplicate, semel.Duplicate, "completed before")
	decided(c.late, semel.Late, "older than the window")
	decided(c.superseded, semel.Superseded, "another one is kept")
	t.observe(pipeline.Event{Kind: pipeline.EventDelivered, Count: c.delivered, Elapsed: time.Since(w.budget.Began())})
	if c.filtered > 0 {
		t.observe(pipeline.Event{Kind: pipeline.EventFiltered, Count: c.filtered})
	}
	if c.differing > 0 {
		t.observe(pipeline.Event{Kind: pipeline.EventDiffering, Count: c.differing, Item: w.differing})
	}
	w.deferred.Report(t.observe)
	t.observe(pipeline.Event{Kind: pipeline.EventSettled, Count: settled, Elapsed: time.Since(w.budget.Began())})
}

// process decides records. Those of a partition are in order. If the transaction takes too
// long, it leaves the rest.
func (w *worker) process(ctx, calls context.Context, fetches kgo.Fetches) error {
	var failed error
	start, before := time.Now(), w.records
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		records := f.Records
		p := w.s.parts[cluster.Partition{Topic: f.Topic, Number: f.Partition}]
		if w.opts.hasState() {
			if p != nil && len(records) > 0 {
				p.quiet = w.s.t.now()
			}
			records = slices.DeleteFunc(records, func(r *kgo.Record) bool { return r.Attrs.IsControl() })
		}
		if failed != nil || len(records) == 0 {
			return
		}
		if p == nil || !p.ready {
			failed = fmt.Errorf("kafka: %s/%d was read before its state was there: %w", f.Topic, f.Partition, errAgain)
			return
		}
		if w.rest != nil {
			w.rest = cluster.Leave(w.rest, p.id, records[0].Offset, records[0].LeaderEpoch)
			return
		}
		w.touch(p)
		p.rowsRead = false
		failed = w.mixed(ctx, calls, p, records)
	})
	w.budget.Paced(w.records-before, time.Since(start))
	return failed
}

// mixed decides records of a partition, and reads what a copier tells between them.
func (w *worker) mixed(ctx, calls context.Context, p *part, records []*kgo.Record) error {
	for {
		n := len(records)
		if w.opts.mixes() {
			if at := slices.IndexFunc(records, repartition.IsProgress); at >= 0 {
				n = at
			}
		}
		if err := w.partition(ctx, calls, p, records[:n]); err != nil || w.rest != nil || n == len(records) {
			return err
		}
		if err := p.slot.windows.applyProgress(records[n]); err != nil {
			return err
		}
		records = records[n+1:]
	}
}

// touch makes a partition part of the open transaction.
func (w *worker) touch(p *part) {
	if !p.touched {
		p.touched = true
		p.slot.state.Most = keystate.Entries(w.s.limits.Of(w.opts.changelogOf(p.id.Topic)), w.inputs)
		w.touched = append(w.touched, p)
	}
}

// ahead is how many records are digested before the first of them is decided.
const ahead = 64

func (w *worker) partition(ctx, calls context.Context, p *part, records []*kgo.Record) error {
	now := w.s.t.now()
	for len(records) > 0 {
		chunk := records[:min(ahead, len(records))]
		records = records[len(chunk):]
		if err := w.digest(p, chunk); err != nil {
			return err
		}
		if w.groups != nil && w.opts.FilterMap == nil { // which may change the group
			p.slot.windows.agg.Fetch(w.groups.All(chunk))
		}
		for i, r := range chunk {
			err := errFull
			if !w.budget.Full(ctx) {
				w.budget.Done()
				w.group = w.groups.At(i)
				err = w.record(calls, p, r, w.offsets[i], w.states[i], &w.digests[i], now)
			}
			if errors.Is(err, errFull) {
				w.rest = cluster.Leave(w.rest, p.id, w.offsets[i], r.LeaderEpoch)
				return nil
			} else if err != nil {
				return err
			}
			w.records++
			if w.groups != nil {
				r.Recycle() // it is no output, and one that waits or is parked is a copy
			}
		}
	}
	return nil
}

// record decides the record that was read at an offset, and writes the result, or lets the
// record wait for its row.
func (w *worker) record(ctx context.Context, p *part, r *kgo.Record, offset int64, known keyState, d *semel.Digest, now int64) error {
	before := w.counts
	w.known, w.d = known, *d
	err := w.decide(ctx, p, r, offset, known, d, now)
	switch {
	case errors.Is(err, errWaits):
		w.counts = before
		w.wait(p, r)
		return nil
	case errors.Is(err, errFull):
		w.counts = before
	}
	return err
}

func (w *worker) decide(ctx context.Context, p *part, r *kgo.Record, offset int64, known keyState, d *semel.Digest, now int64) error {
	st := p.slot.state
	w.body = r.Value
	var timeless error
	if w.opts.Aggregate != nil || known == keyKnown && w.opts.isTimed() {
		w.when, timeless = w.timeOf(r, now)
		if w.opts.Aggregate != nil && timeless == nil {
			p.slot.windows.noteTime(r, w.when, now)
		}
	}
	if timeless != nil && known != keyMissing {
		return w.fail(ctx, r, 1, timeless)
	}
	switch known {
	case keyMissing:
		then := pipeline.Park
		if w.opts.Key.OnMissing == pipeline.MissingDrop {
			then = pipeline.Drop
		}
		reason, err := w.unkeyed(r)
		return w.park(ctx, r, then, reason, 0, err)
	case keyPass:
		w.counts.fresh++
		_, err := w.effect(ctx, p, r, now)
		return err
	}
	if w.opts.Keep != nil {
		return w.keep(ctx, p, r, offset, d, now)
	}
	when, reached := now, now
	if w.opts.EventTime != nil {
		when = min(w.when, now)
		reached = p.slot.windows.reached(when)
	}
	switch st.Decide(d, reached, when, offset) {
	case keystate.Duplicate:
		w.duplicate(r, d)
		return nil
	case keystate.Late:
		if w.resuming || w.isRedriven(r) {
			// A redriven record is never late, nor one that was read in time. It is
			// remembered from now on, because its own time may be before the window.
			w.counts.fresh++
			when = st.StreamTime
			break
		}
		w.counts.late++
		if !w.opts.EventTime.DeliverLate {
			return w.park(ctx, r, w.opts.EventTime.OnLate, pipeline.ReasonLate, 0, semel.ErrLate)
		}
	case keystate.Again:
		w.counts.again++
		return nil
	default:
		w.counts.fresh++
	}
	return w.takeEffect(ctx, p, r, offset, d, when, now)
}

// takeEffect delivers a record and remembers its key from a time on, or parks the record.
func (w *worker) takeEffect(ctx context.Context, p *part, r *kgo.Record, offset int64, d *semel.Digest, when, now int64) error {
	st := p.slot.state
	from := semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset} // the record becomes its output
	body := w.body
	delivered, err := w.effect(ctx, p, r, now)
	if delivered {
		w.s.t.contents.Fresh(hashOf(d), body)
		st.Learn(d, when, offset)
		if w.inputs != nil {
			st.From(slices.Index(w.opts.Inputs, from.Source)+1, from.Partition, from.Offset)
		}
	}
	return err
}

// duplicate counts a record whose key is known.
func (w *worker) duplicate(r *kgo.Record, d *semel.Digest) {
	w.counts.duplicate++
	if w.s.t.contents.Differs(hashOf(d), w.body) {
		if w.counts.differing++; w.counts.differing == 1 {
			w.fill(r)
			w.differing = &pipeline.Item{Message: semel.Message{Origin: w.message.Origin}}
			w.differing.Call.Key, _ = w.keyOf() // a duplicate has a key
		}
	}
}

// hashOf returns bits of a digest, which are uniform.
func hashOf(d *semel.Digest) uint64 { return binary.LittleEndian.Uint64(d[8:]) }

// isRedriven reports whether a record was redriven.
func (w *worker) isRedriven(r *kgo.Record) bool {
	if len(r.Headers) == 0 {
		return false
	}
	w.note(r)
	return header.Redrives(&w.message) > 0
}

// filterAndDeliver calls the FilterMap, and then delivers the record or adds it to its
// window. It reports false if the record was parked or dropped.
func (w *worker) filterAndDeliver(ctx context.Context, p *part, r *kgo.Record, now int64) (bool, error) {
	if w.opts.FilterMap != nil {
		body, pass, err := w.filterMap(ctx, r)
		switch {
		case errors.Is(err, errAgain):
			return false, err
		case w.waitsForRow(p, err):
			return false, errWaits
		case err != nil:
			return false, w.fail(ctx, r, 1, err)
		case !pass:
			w.counts.filtered++
			return true, nil
		}
		r.Value = body
	}
	if w.opts.Aggregate != nil {
		return w.aggregate(ctx, p, r, now)
	}
	return w.deliver(ctx, p, r)
}

// filterMap calls the FilterMap for a record as it was read.
func (w *worker) filterMap(ctx context.Context, r *kgo.Record) (body []byte, pass bool, err error) {
	w.fill(r)
	k, _ := w.keyOf() // without a key (OnMissing: MissingPass) it is zero
	most := w.opts.Timeouts.Transaction
	if w.emits {
		most /= 2 // it follows other records of its transaction
	}
	return w.opts.callFilterMap(ctx, &w.message, k, most)
}

// deliver writes the outputs of a record and reports true, or parks the record if its
// Transform failed.
func (w *worker) deliver(ctx context.Context, p *part, r *kgo.Record) (bool, error) {
	if w.opts.Transform != nil {
		return w.transform(ctx, p, r)
	}
	headers := r.Headers
	if w.isRedriven(r) {
		r.Headers = record.AppendOwn(nil, r.Headers, pipeline.RedriveHeader)
	}
	if w.opts.Output.KeyHeaders {
		w.fill(r)
		if k, ok := w.keyOf(); ok {
			r.Headers = record.AppendOrigin(record.AppendKeyHeaders(r.Headers, k, w.opts.Name), &w.message, time.Now())
		}
	}
	if err := w.check(ctx, w.opts.Output.Topic, r); errors.Is(err, errAgain) {
		return false, err
	} else if err != nil {
		r.Headers = headers
		return false, w.fail(ctx, r, 1, err)
	}
	w.counts.delivered++
	w.write(r, r.Partition)
	return true, nil
}

// fill fills w.message with the record that is being decided, as it was read. Its key
// is in that body, and a FilterMap may have changed it.
func (w *worker) fill(r *kgo.Record) {
	w.note(r)
	w.message.Body = w.body
}

// note fills w.message with a record as it is.
func (w *worker) note(r *kgo.Record) {
	record.Fill(&w.message, r)
	w.message.Origin.Identity = w.s.t.identities[r.Topic]
}

// write writes an output. It may be the record that was read, with its key, value,
// headers and time.
func (w *worker) write(r *kgo.Record, partition int32) {
	if r.Topic == "" || w.opts.Transform == nil {
		r.Topic = w.opts.Output.Topic
	}
	if w.opts.Output.SamePartition {
		r.Partition = partition
	}
	w.produce(r)
}

// transform calls the caller's function until it succeeds, its attempts are used up, or
// the context ends. An error after that may come from the context.
func (w *worker) transform(ctx context.Context, p *part, r *kgo.Record) (bool, error) {
	f := &w.opts.Failure
	if ctx.Err() != nil {
		return false, errAgain // the transaction is aborted, and the session drains
	}
	for attempt := 1; ; attempt++ {
		outputs, err := w.call(ctx, r, attempt)
		if err == nil {
			err = w.fit(ctx, outputs)
		}
		if err == nil {
			for _, out := range outputs {
				w.write(out, r.Partition)
			}
			w.counts.delivered++
			return true, nil
		}
		if ctx.Err() != nil {
			return false, errAgain
		}
		if errors.Is(err, errAgain) { // it is unknown whether the record fails
			return false, err
		}
		if w.waitsForRow(p, err) {
			return false, errWaits
		}
		_, noRow := errors.AsType[*stream.RowError](err)
		if noRow || semel.Classify(err) == semel.ClassPermanent || attempt >= f.Attempts {
			return false, w.fail(ctx, r, attempt, err)
		}
		if retry.Sleep(ctx, f.Pause(attempt)) != nil {
			return false, errAgain
		}
	}
}

func (w *worker) call(ctx context.Context, r *kgo.Record, attempt int) (outputs []*kgo.Record, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the transform panicked: %v", p)
		}
	}()
	w.fill(r)
	k, ok := w.keyOf()
	w.message.Body = r.Value
	outputs, err = w.opts.Transform(ctx, pipeline.Delivery{Message: w.message, Key: k, Attempt: attempt, Redrive: header.Redrives(&w.message)})
	if i := slices.Index(outputs, nil); i >= 0 && err == nil {
		return nil, fmt.Errorf("output %d of the Transform is nil: leave it out", i)
	}
	if ok && w.opts.Output.KeyHeaders && err == nil {
		now := time.Now()
		for _, out := range outputs {
			out.Headers = record.AppendOrigin(record.AppendKeyHeaders(out.Headers, k, w.opts.Name), &w.message, now)
		}
	}
	return outputs, err
}

// digest finds the keys of records.
func (w *worker) digest(p *part, records []*kgo.Record) error {
	st := p.slot.state
	w.digests, w.states, w.offsets = w.digests[:0], w.states[:0], w.offsets[:0]
	for _, r := range records {
		w.offsets = append(w.offsets, r.Offset)
		if w.opts.Repartition != nil {
			w.origins.Unwrap(r)
		}
		w.bytes += int64(len(r.Key) + len(r.Value))
		w.note(r)
		var err error
		w.id, err = w.reader.AppendID(w.id[:0], &w.message)
		known := keyKnown
		var d semel.Digest
		if err != nil || len(w.id) == 0 || len(w.id) > semel.MaxKeyBytes {
			if known, d, err = w.withoutKey(st, r, err); err != nil {
				return err
			}
		} else {
			d = st.Digest(w.id)
		}
		st.Prefetch(&d)
		w.digests = append(w.digests, d)
		w.states = append(w.states, known)
	}
	return nil
}

// withoutKey applies the policy to a record whose key is missing or cannot be read.
func (w *worker) withoutKey(st *keystate.State, r *kgo.Record, cause error) (keyState, semel.Digest, error) {
	switch w.opts.Key.OnMissing {
	case pipeline.MissingPass:
		return keyPass, semel.Digest{}, nil
	case pipeline.MissingHash:
		if w.id = record.ContentID(w.id[:0], r.Value); len(w.id) == 0 {
			return keyMissing, semel.Digest{}, nil
		}
		return keyKnown, st.Digest(w.id), nil
	case pipeline.MissingStop:
		if cause == nil {
			cause = key.ErrMissing
		}
		return 0, semel.Digest{}, toldToStop(r, pipeline.ReasonKeyMissing, cause)
	default:
		return keyMissing, semel.Digest{}, nil
	}
}

// keyOf returns the key of the record in w.message. It reports false if the record has no key.
func (w *worker) keyOf() (semel.Key, bool) {
	id, err := w.reader.AppendID(w.id[:0], &w.message)
	if (err != nil || len(id) == 0 || len(id) > semel.MaxKeyBytes) && w.opts.Key.OnMissing == pipeline.MissingHash {
		id, err = record.ContentID(w.id[:0], w.message.Body), nil
	}
	if err != nil || len(id) == 0 || len(id) > semel.MaxKeyBytes {
		return semel.Key{}, false
	}
	return semel.Key{Scope: w.opts.Key.Scope.Name, ID: string(id)}, true
}

// unkeyed returns the reason why a record has no key.
func (w *worker) unkeyed(r *kgo.Record) (reason pipeline.Reason, err error) {
	w.note(r)
	id, err := w.reader.AppendID(w.id[:0], &w.message)
	switch {
	case errors.Is(err, key.ErrMissing):
		return pipeline.ReasonKeyMissing, err
	case err == nil && len(id) == 0:
		return pipeline.ReasonKeyMissing, key.ErrMissing
	case err == nil:
		err = semel.Key{Scope: w.opts.Key.Scope.Name, ID: string(id)}.Validate()
	}
	return pipeline.ReasonKeyInvalid, err
}
