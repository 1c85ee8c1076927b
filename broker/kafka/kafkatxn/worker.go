package kafkatxn

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/budget"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/keys"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/repartition"
	"github.com/semel-dev/semel/pipeline"
)

// worker decides the records of one transaction after the other, and writes the results. It
// belongs to one session. Only what env counts has a meaning beyond a transaction; the other
// fields keep memory.
type worker struct {
	s        *session
	env      *operator.Env
	original func(*kgo.Record) // of source
	results  budget.Results
	// recommits are the offsets to commit of partitions without records.
	recommits map[cluster.Partition]kgo.EpochOffset
	touched   []*part
	records   int // that the open transaction has decided
	bytes     int64
	// rest is the first record of each partition that was read and that the open transaction
	// leaves for the next one.
	rest map[cluster.Partition]kgo.EpochOffset
	// askedLimits says that the open transaction has asked for the topics' limits
	// again.
	askedLimits bool
	// promise is called for each record that was written or failed.
	promise func(*kgo.Record, error)
	failed  atomic.Pointer[error]
}

func (w *worker) init(s *session) {
	t := s.t
	w.s, w.env = s, operator.NewEnv(t.chain.Options)
	e := w.env
	e.Contents, e.Identities, e.Now, e.Admin = t.contents, t.identities, t.now, t.adm
	e.Budget = t.chain.NewBudget(t.limits.Interval)
	e.Readings = s.readings.Begun
	e.Raised = func(ctx context.Context, tooLarge error) (err, restart error) {
		return t.raised(ctx, e.Limits, &w.askedLimits, tooLarge)
	}
	if t.tables != nil {
		e.ReadTables = func(ctx context.Context, number int32) error {
			return t.tables.ReadToEnd(ctx, []int32{number}, func(text string) { s.waitsFor(text, w.records) })
		}
	}
	e.Elsewhere, w.original = t.source.elsewhere(), t.source.original()
	w.promise = func(r *kgo.Record, err error) {
		if err != nil {
			e.Unwritable.Hear(r.Topic, err)
			err = cluster.WriteError(r, err)
			w.failed.CompareAndSwap(nil, &err)
		}
		r.Recycle() // if it is one that was read
	}
}

// room returns how many records the next read may return.
func (w *worker) room() int { return w.env.Budget.Room(w.records, w.s.t.limits.Records) }

// full reports whether the open transaction has as many records as it takes.
func (w *worker) full() bool {
	l := &w.s.t.limits
	return w.rest != nil || w.env.Resumed > 0 || w.records >= w.env.Budget.Most(l.Records) || w.bytes >= l.Bytes
}

func (w *worker) reset() {
	w.env.Reset()
	w.env.Budget.Begin()
	w.askedLimits = false
	w.records, w.bytes = 0, 0
	w.rest = nil
	w.failed.Store(nil)
	for _, p := range w.touched {
		p.touched = false
	}
	w.touched = w.touched[:0]
	w.recommits = nil
}

// drop discards what the open transaction adds.
func (w *worker) drop() {
	for _, p := range w.touched {
		p.drop()
	}
	w.s.t.observe(pipeline.Event{Kind: pipeline.EventReturned, Count: w.records})
}

// learn learns which topics cannot be written. An error restarts the session.
func (w *worker) learn(ctx context.Context) error {
	if err := w.env.Unwritable.Learn(ctx, w.s.t.adm(), w.s.t.written()); err != nil {
		return fmt.Errorf("%w: %v", errAgain, err) // wrapping the cause would end the Transactor
	}
	return nil
}

// writeChangelogs writes the changes of the open transaction in the states of partitions.
func (w *worker) writeChangelogs() error {
	for _, p := range w.touched {
		for _, l := range p.slot.logs {
			most := w.env.Limits.Of(l.Topic()) - cluster.BatchOverhead - 16 // numbers and lengths of the record
			if err := l.Write(most, w.env.Produce); err != nil {
				return err
			}
		}
	}
	return nil
}

// report reports the results of a transaction, which has settled a number of records.
func (w *worker) report(settled int) {
	t, c, began := w.s.t, &w.env.Counts, w.env.Budget.Began()
	t.observe(pipeline.Event{Kind: pipeline.EventRead, Count: w.records, Bytes: w.bytes})
	decided := func(n int, d semel.Decision, reason string) {
		t.observe(pipeline.Event{Kind: pipeline.EventDecided, Count: n, Decision: d, Reason: reason})
	}
	decided(c.Fresh, semel.Fresh, "no record")
	decided(c.Again, semel.Duplicate, "read again")
	decided(c.Duplicate, semel.Duplicate, "completed before")
	decided(c.Late, semel.Late, "older than the window")
	decided(c.Superseded, semel.Superseded, "another one is kept")
	t.observe(pipeline.Event{Kind: pipeline.EventDelivered, Count: c.Delivered, Elapsed: time.Since(began)})
	if c.Filtered > 0 {
		t.observe(pipeline.Event{Kind: pipeline.EventFiltered, Count: c.Filtered})
	}
	if c.Differing > 0 {
		t.observe(pipeline.Event{Kind: pipeline.EventDiffering, Count: c.Differing, Item: c.Example})
	}
	w.env.Deferred.Report(t.observe)
	t.observe(pipeline.Event{Kind: pipeline.EventSettled, Count: settled, Elapsed: time.Since(began)})
}

// process decides records. Those of a partition are in order. If the transaction takes too
// long, it leaves the rest.
func (w *worker) process(ctx, calls context.Context, fetches kgo.Fetches) error {
	var failed error
	start, before := time.Now(), w.records
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		p := w.s.parts[cluster.Partition{Topic: f.Topic, Number: f.Partition}]
		if p != nil && len(f.Records) > 0 {
			p.quiet = w.s.t.now()
		}
		records := slices.DeleteFunc(f.Records, recycledControl)
		if failed != nil || len(records) == 0 {
			return
		}
		if p == nil || !p.ready {
			failed = fmt.Errorf("kafka: %s/%d was read before its state was there: %w", f.Topic, f.Partition, errAgain)
			return
		}
		if w.rest != nil {
			w.rest = cluster.Leave(w.rest, p.ID, records[0].Offset, records[0].LeaderEpoch)
			return
		}
		w.touch(p)
		p.RowsRead = false
		failed = w.withProgress(ctx, calls, p, records)
	})
	w.env.Budget.Paced(w.records-before, time.Since(start))
	return failed
}

// recycledControl reports whether a record is a control record, which it recycles.
func recycledControl(r *kgo.Record) bool {
	if !r.Attrs.IsControl() {
		return false
	}
	r.Recycle()
	return true
}

// withProgress decides records of a partition, and reads the progress records of copiers between them.
func (w *worker) withProgress(ctx, calls context.Context, p *part, records []*kgo.Record) error {
	for {
		n := p.Clock.NextProgress(records, repartition.IsProgress)
		if err := w.partition(ctx, calls, p, records[:n]); err != nil || w.rest != nil || n == len(records) {
			return err
		}
		if err := p.Clock.Progress(records[n]); err != nil {
			return err
		}
		records[n].Recycle()
		records = records[n+1:]
	}
}

// touch makes a partition part of the open transaction.
func (w *worker) touch(p *part) {
	if !p.touched {
		p.touched = true
		p.Keys.Most = keys.Entries(w.env.Limits.Of(p.slot.keysLog().Topic()), w.s.t.header)
		w.touched = append(w.touched, p)
	}
}

// ahead is how many records are prepared before the first of them is decided.
const ahead = 64

// partition decides records of one partition.
func (w *worker) partition(ctx, calls context.Context, p *part, records []*kgo.Record) error {
	now := w.s.t.now()
	for len(records) > 0 {
		chunk := records[:min(ahead, len(records))]
		records = records[len(chunk):]
		batch, err := p.Batch(chunk, w.original, now)
		if err != nil {
			return err
		}
		for i := range batch {
			r := &batch[i]
			epoch, size := r.LeaderEpoch, r.Size() // the record becomes its output
			outcome := operator.Full
			if !w.env.Budget.Full(ctx) {
				w.env.Budget.Done()
				outcome, err = p.Process(calls, r)
			}
			if err != nil {
				return err
			}
			if outcome == operator.Full {
				w.rest = cluster.Leave(w.rest, p.ID, r.At, epoch)
				return nil
			}
			w.records++
			w.bytes += size
			if !r.Given {
				chunk[i].Recycle() // one that waits, is held or is parked is a copy
			}
		}
	}
	return nil
}

// resume decides records whose rows are there, or which are parked without a row. It needs
// a transaction without fetches, which then ends: a read returns few records if they are
// slow, and these are more.
func (w *worker) resume(ctx, calls context.Context, fetches kgo.Fetches) error {
	if fetches.NumRecords() > 0 {
		return nil
	}
	for _, p := range w.s.parts {
		if !p.ready || !w.s.hasRows(p) {
			continue
		}
		w.touch(p)
		p.RowsRead = true
		n := min(p.Waits.Due(w.s.readings.Ended()), w.env.Budget.Most(w.s.t.limits.Records)-w.env.Resumed)
		if _, err := p.Resume(ctx, calls, n); err != nil {
			return err
		}
		p.RowsRead = false
	}
	return nil
}

// notes returns the notes that are committed with the offsets of partitions. A note is also
// changed by a commit, so it adds the present offsets of partitions of which nothing was read.
func (w *worker) notes() map[cluster.Partition]string {
	notes := map[cluster.Partition]string{}
	for _, p := range w.s.parts {
		if !p.ready {
			continue
		}
		p.marks = losses{w.s.t}.mark(p)
		waiting, commits := p.Waits.Note()
		notes[p.ID] = withMark(waiting, &p.marks)
		if !p.touched || !commits && !p.slot.changed() {
			continue
		}
		if at, ok := committedOffset(w.s.brokers.CommittedOffsets(), p); ok {
			w.recommit(p, at)
		}
	}
	return notes
}

// recommit commits the present offset of a partition again.
func (w *worker) recommit(p *part, at kgo.EpochOffset) {
	if w.recommits == nil {
		w.recommits = map[cluster.Partition]kgo.EpochOffset{}
	}
	w.recommits[p.ID] = at
}
