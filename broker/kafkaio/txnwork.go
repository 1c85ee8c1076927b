package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// worker decides records and writes what follows from them. It belongs to one
// session, and all but its counts live from one transaction to the next only to
// be used again.
type worker struct {
	s       *session
	opts    *TransactorOptions
	reader  *key.Reader
	message semel.Message
	id      []byte
	digests []semel.Digest
	states  []keyState
	offsets []int64 // in the topic that was read
	origins origins
	inputs  []byte // with which headerOrigins begins; nil without Repartition
	touched []*part
	counts  counts
	asides  asides
	began   time.Time // of the last transaction
	records int
	bytes   int64
	pace    int // how many records are read at once beside a Transform
	// transformed is how many records the open transaction gave to the Transform, and
	// inTime how many of them within the interval.
	transformed, inTime int
	limit               int // of the records of a transaction, after one that took too long; or 0
	// askedLimits: in the open transaction the topics were asked what they take by now.
	askedLimits bool
	// produce gives a record to the client, as part of the open transaction.
	produce func(*kgo.Record)
	// promise is called for each record that was written or failed.
	promise func(*kgo.Record, error)
	failed  atomic.Pointer[error]
	// refusals are the topics to which a Transform cannot write.
	refusals refusals
}

// counts is what a transaction did.
type counts struct {
	fresh, duplicate, late, again, delivered int
}

// keyState says what is known of a record's key before it is decided.
type keyState uint8

const (
	keyKnown keyState = iota
	keyMissing
	keyPass // goes on without being remembered
)

func (w *worker) init(s *session) {
	w.s, w.opts = s, &s.t.opts
	w.reader = w.opts.Key.Reader(nil)
	w.pace = firstPace
	if w.opts.Repartition != nil {
		w.inputs = appendInputs(nil, w.opts.Inputs)
	}
	w.promise = func(r *kgo.Record, err error) {
		if err != nil {
			if w.opts.Transform != nil {
				w.refusals.hear(r.Topic, err)
			}
			err = fmt.Errorf("write %s/%d: %w", r.Topic, r.Partition, err)
			w.failed.CompareAndSwap(nil, &err)
		}
	}
}

// transact begins a transaction with what was read, reads on until it is due, and
// ends it. No Transform is called when calls has ended. After an error the session
// begins anew.
func (s *session) transact(ctx, calls, last context.Context, fetches kgo.Fetches) error {
	w := &s.work
	w.reset()
	w.began = time.Now()
	if err := s.client.Begin(); err != nil {
		return fmt.Errorf("kafkaio: begin: %w", err)
	}
	for {
		if err := w.process(calls, fetches); errors.Is(err, errSlow) {
			if err := s.abort(last); err != nil {
				return err
			}
			s.retried(err)
			return w.learn(last)
		} else if err != nil {
			s.abort(last)
			return err
		}
		left := s.t.opts.Interval - time.Since(w.began)
		if left <= 0 || w.records >= w.most() || w.bytes >= s.t.opts.MaxBytes || ctx.Err() != nil || w.failed.Load() != nil {
			break
		}
		fetches = s.poll(ctx, left)
		if s.interrupted() {
			if err := s.abort(last); err != nil {
				return err
			}
			return w.learn(last) // what brokers said of a topic meanwhile
		}
		if err := fetchError(fetches); err != nil {
			s.abort(last)
			return err
		}
		if fetches.NumRecords() == 0 && s.pending() {
			break
		}
	}
	return s.finish(last)
}

func (w *worker) reset() {
	w.counts = counts{}
	w.asides.reset()
	w.askedLimits = false
	w.records, w.bytes = 0, 0
	w.transformed, w.inTime = 0, 0
	w.failed.Store(nil)
	for _, p := range w.touched {
		p.touched = false
		clear(p.changes)
		p.changes = p.changes[:0]
	}
	w.touched = w.touched[:0]
}

// abort ends the open transaction without effect. What was read is read again.
func (s *session) abort(last context.Context) error {
	for _, p := range s.work.touched {
		p.slot.state.drop()
	}
	s.t.observe(pipeline.Event{Kind: pipeline.EventReturned, Count: s.work.records})
	return s.work.overdue(s.rewind(last))
}

// finish writes the changelog and commits. An error means that it is not known
// what the brokers have: the session begins anew.
func (s *session) finish(last context.Context) error {
	w := &s.work
	w.writeChangelog()
	if err := s.client.Client().Flush(last); err != nil {
		return fmt.Errorf("kafkaio: flush: %w", err)
	}
	if failed := w.failed.Load(); failed != nil || s.interrupted() {
		var cause error
		if failed != nil {
			cause = w.overdue(*failed)
		}
		if err := s.abort(last); err != nil {
			return err
		}
		if failed != nil {
			s.retried(cause)
			if err := w.learn(last); err != nil {
				return err
			}
			return s.t.refusedSize(last, s.limits, &s.tooBig, *failed)
		}
		return nil
	}
	committed, err := s.client.End(last, kgo.TryCommit)
	if err != nil || !committed {
		for _, p := range w.touched {
			p.slot.state.drop()
		}
		s.t.observe(pipeline.Event{Kind: pipeline.EventReturned, Count: w.records})
		if err == nil {
			err = errAgain // it may have committed, though the client says no
		}
		return fmt.Errorf("kafkaio: commit: %w", w.overdue(err))
	}
	s.tooBig, w.limit = 0, 0
	s.works()
	for _, p := range w.touched {
		s.applied(p)
	}
	w.report()
	return nil
}

// applied makes the state of a partition what was committed.
func (s *session) applied(p *part) {
	st := p.slot.state
	for i, r := range p.changes {
		if st.log != nil {
			c, err := parseChangelog(r.Value)
			if err != nil {
				panic(err) // this process wrote it
			}
			st.log.add(r.Value, &c, r.Offset+1)
		}
		if i == len(p.changes)-1 {
			st.passed(r.Value, r.Offset+1)
		}
	}
	st.commit()
	s.t.writeLog(st)
	if at, ok := st.cuts.take(st.committedTime); ok {
		p.slot.cut.Store(at)
	}
}

// writeLog writes a state's log. A log that cannot be written is left as it is:
// it is older than the changelog, and no more.
func (t *Transactor) writeLog(st *state) {
	if st.log == nil {
		return
	}
	err := st.log.write()
	if err == nil {
		horizon, span := int64(-1), int64(0)
		if keep := t.windows.retention(); keep != semel.Forever {
			span = keep.Milliseconds()
			horizon = st.committedTime - span
		}
		err = st.log.tidy(horizon, span)
	}
	if err != nil {
		t.observe(pipeline.Event{Kind: pipeline.EventPaused, Reason: "state directory", Err: err})
		st.log.Close()
		st.log = nil
	}
}

// writeChangelog writes what the transaction learned of keys.
func (w *worker) writeChangelog() {
	for _, p := range w.touched {
		st := p.slot.state
		for i, value := range st.records() {
			r := &kgo.Record{Topic: w.opts.changelogOf(p.id.topic), Partition: p.id.number, Value: value}
			if origins := st.overlay.originsOf(i); len(origins) > 0 {
				r.Headers = []kgo.RecordHeader{{Key: headerOrigins, Value: slices.Concat(w.inputs, origins)}}
			}
			p.changes = append(p.changes, r)
			w.produce(r)
		}
	}
}

// report tells what a transaction did.
func (w *worker) report() {
	t, c := w.s.t, &w.counts
	t.observe(pipeline.Event{Kind: pipeline.EventRead, Count: w.records, Bytes: w.bytes})
	decided := func(n int, d semel.Decision, reason string) {
		t.observe(pipeline.Event{Kind: pipeline.EventDecided, Count: n, Decision: d, Reason: reason})
	}
	decided(c.fresh, semel.Fresh, "no record")
	if w.opts.Redo {
		decided(c.again, semel.Fresh, "read again")
	} else {
		decided(c.again, semel.Duplicate, "read again")
	}
	decided(c.duplicate, semel.Duplicate, "completed before")
	decided(c.late, semel.Late, "older than the window")
	t.observe(pipeline.Event{Kind: pipeline.EventDelivered, Count: c.delivered, Elapsed: time.Since(w.began)})
	w.asides.report(t)
	t.observe(pipeline.Event{Kind: pipeline.EventSettled, Count: w.records, Elapsed: time.Since(w.began)})
}

// process decides what was read. The records of a partition come in their order.
func (w *worker) process(ctx context.Context, fetches kgo.Fetches) error {
	var failed error
	start, before, transformed := time.Now(), w.records, w.transformed
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if failed != nil || len(f.Records) == 0 {
			return
		}
		p := w.s.parts[partitionID{f.Topic, f.Partition}]
		if p == nil || !p.ready {
			failed = fmt.Errorf("kafkaio: %s/%d was read before its state was there: %w", f.Topic, f.Partition, errAgain)
			return
		}
		if !p.touched {
			p.touched = true
			p.slot.state.most = changelogEntries(w.s.limits.of(w.opts.changelogOf(f.Topic)), w.inputs)
			w.touched = append(w.touched, p)
		}
		w.records += len(f.Records)
		failed = w.partition(ctx, p, f.Records)
	})
	decided := w.records - before
	if errors.Is(failed, errSlow) {
		decided = w.transformed - transformed
	}
	w.paced(decided, time.Since(start))
	return failed
}

// ahead is how many records are digested before the first of them is decided.
const ahead = 64

func (w *worker) partition(ctx context.Context, p *part, records []*kgo.Record) error {
	now := w.s.t.now()
	for len(records) > 0 {
		chunk := records[:min(ahead, len(records))]
		records = records[len(chunk):]
		if err := w.digest(p, chunk); err != nil {
			return err
		}
		for i, r := range chunk {
			if err := w.record(ctx, p, r, w.offsets[i], w.states[i], &w.digests[i], now); err != nil {
				return err
			}
		}
	}
	return nil
}

// record decides one record, which was read at an offset, and writes what
// follows.
func (w *worker) record(ctx context.Context, p *part, r *kgo.Record, offset int64, known keyState, d *semel.Digest, now int64) error {
	st := p.slot.state
	switch known {
	case keyMissing:
		then := pipeline.Park
		if w.opts.OnMissing == pipeline.MissingDrop {
			then = pipeline.Drop
		}
		reason, err := w.unkeyed(r)
		return w.putAside(ctx, r, then, reason, 0, err)
	case keyPass:
		w.counts.fresh++
		_, err := w.deliver(ctx, r)
		return err
	}
	when := now
	if w.opts.EventTime {
		when = min(max(r.Timestamp.UnixMilli(), 0), now)
	}
	switch st.decide(d, when, offset) {
	case duplicate:
		w.counts.duplicate++
		return nil
	case late:
		if w.isRedriven(r) {
			// Nobody asks whether it is late. It is remembered from now on, for
			// its own time may be behind the window.
			w.counts.fresh++
			when = st.streamTime
			break
		}
		w.counts.late++
		if !w.opts.DeliverLate {
			return w.putAside(ctx, r, w.opts.OnLate, pipeline.ReasonLate, 0, semel.ErrLate)
		}
	case again:
		w.counts.again++
		if !w.opts.Redo {
			return nil
		}
	default:
		w.counts.fresh++
	}
	from := semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset} // the record becomes its output
	delivered, err := w.deliver(ctx, r)
	if delivered {
		st.learn(d, when, offset)
		if w.inputs != nil {
			st.overlay.from(slices.Index(w.opts.Inputs, from.Source)+1, from.Partition, from.Offset)
		}
	}
	return err
}

// isRedriven reports whether a record came back after it was put aside.
func (w *worker) isRedriven(r *kgo.Record) bool {
	if len(r.Headers) == 0 {
		return false
	}
	fill(&w.message, r)
	return redrivesOf(&w.message) > 0
}

// deliver writes the outputs of a record, and reports whether it did: a record
// whose Transform failed may be put aside instead.
func (w *worker) deliver(ctx context.Context, r *kgo.Record) (bool, error) {
	if w.opts.Transform != nil {
		return w.transform(ctx, r)
	}
	headers := r.Headers
	if w.isRedriven(r) {
		r.Headers = appendOwn(nil, r.Headers, pipeline.RedriveHeader)
	}
	if w.opts.KeyHeaders {
		fill(&w.message, r)
		if k, ok := w.keyOf(); ok {
			r.Headers = appendKeyHeaders(r.Headers, k, w.opts.Name)
		}
	}
	if err := w.check(ctx, w.opts.Output, r); errors.Is(err, errAgain) {
		return false, err
	} else if err != nil {
		r.Headers = headers
		return false, w.fail(ctx, r, 1, err)
	}
	w.counts.delivered++
	w.write(r, r.Partition)
	return true, nil
}

// write writes an output. The record may be one that was read: its key, value,
// headers and time stay.
func (w *worker) write(r *kgo.Record, partition int32) {
	if r.Topic == "" || w.opts.Transform == nil {
		r.Topic = w.opts.Output
	}
	if w.opts.SamePartition {
		r.Partition = partition
	}
	w.produce(r)
}

// transform calls the caller's function until it succeeds or is given up, or the
// context ends: what failed then may have failed for that.
func (w *worker) transform(ctx context.Context, r *kgo.Record) (bool, error) {
	f := &w.opts.Failure
	if ctx.Err() != nil {
		return false, errAgain // the transaction is aborted, and this drains
	}
	if err := w.begins(); err != nil {
		return false, err
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
		if errors.Is(err, errAgain) { // nobody says whether it fails
			return false, err
		}
		if semel.Classify(err) == semel.ClassPermanent || attempt >= f.Attempts {
			return false, w.fail(ctx, r, attempt, err)
		}
		if !pause(ctx, f.Pause(attempt)) {
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
	fill(&w.message, r)
	k, ok := w.keyOf()
	outputs, err = w.opts.Transform(ctx, pipeline.Delivery{Message: w.message, Key: k, Attempt: attempt, Redrive: redrivesOf(&w.message)})
	if i := slices.Index(outputs, nil); i >= 0 && err == nil {
		return nil, fmt.Errorf("output %d of the Transform is nil: leave it out", i)
	}
	if ok && w.opts.KeyHeaders && err == nil {
		for _, out := range outputs {
			out.Headers = appendKeyHeaders(out.Headers, k, w.opts.Name)
		}
	}
	return outputs, err
}
