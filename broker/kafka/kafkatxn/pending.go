package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// waitForRow is how long a record waits for its row if nothing can continue in the meantime, until
// the session restarts.
const waitForRow = pending.Patience

// errWaits says that a record has no row, and waits until the tables are read to their end.
var errWaits = errors.New("kafka: the record waits for its row")

// letsOthersPass reports whether other records continue while one waits for its row. With
// windows or held records the time of the others could make it late. With Repartition the
// record is a copy, which is deleted behind the committed offset.
func (o *TransactorOptions) letsOthersPass() bool {
	return !o.hasState() && o.Repartition == nil && slices.ContainsFunc(o.Tables, func(t *stream.Table) bool { return t.Missing == stream.MissingWait })
}

// waitsForRow reports whether an error means that the record should wait. A Trial reads no
// tables.
func (w *worker) waitsForRow(p *part, err error) bool {
	row, ok := errors.AsType[*stream.RowError](err)
	return ok && row.Table.Missing == stream.MissingWait && row.Key != "" && row.Cause == nil && !p.rowsRead && w.s.t.tables != nil
}

// effect has the effect of a record, and reports true unless the record is parked. The error
// is errWaits if the record waits; it has no effect then, and others continue.
func (w *worker) effect(ctx context.Context, p *part, r *kgo.Record, now int64) (bool, error) {
	body := w.body
	if p.rowsRead || !p.waits.Holds(w.waiting(r)) {
		if done, err := w.filterAndDeliver(ctx, p, r, now); !errors.Is(err, errWaits) {
			return done, err
		}
		r.Value = body
	}
	if w.opts.letsOthersPass() && !p.waits.Full() {
		return false, errWaits
	}
	patient, cancel := context.WithTimeout(ctx, waitForRow)
	defer cancel()
	if err := w.s.t.tables.ReadToEnd(patient, []int32{p.id.Number}, func(text string) { w.s.waitsFor(text, w.records) }); err != nil {
		return false, fmt.Errorf("%w: %v", errAgain, err) // a table that cannot be read parks nothing
	}
	p.rowsRead = true
	known, d, when := w.known, w.d, w.when
	if err := w.resumePart(ctx, ctx, p, p.waits.Len()); err != nil {
		return false, err
	}
	w.body, w.known, w.d, w.when = body, known, d, when
	return w.filterAndDeliver(ctx, p, r, now)
}

// waiting returns the record that is being decided as one that waits.
func (w *worker) waiting(r *kgo.Record) pending.Record {
	return pending.Record{Record: r, State: uint8(w.known), HasID: w.known == keyKnown, ID: w.d, Since: w.s.readings.Begun()}
}

// wait adds the record that is being decided to those that wait.
func (w *worker) wait(p *part, r *kgo.Record) {
	c := *r
	c.Value, c.Headers = w.body, slices.Clip(r.Headers)
	p.waits.Add(w.waiting(&c))
}

// rowsDue reports whether a reading of the tables ended for which records wait. A
// transaction can take them if there is an offset to commit again.
func (s *session) rowsDue() bool { return s.anyPart(s.hasRows) }

func (s *session) hasRows(p *part) bool {
	if p.waits.Due(s.readings.Ended()) == 0 {
		return false
	}
	_, fenced := committedOffset(s.brokers.CommittedOffsets(), p)
	return fenced
}

// readRows begins to read the tables to their end if records wait that came after the last
// reading began.
func (s *session) readRows(ctx context.Context) {
	if s.readings.Ended() < s.readings.Begun() || !s.anyPart(func(p *part) bool { return p.waits.Lacks(s.readings.Begun()) }) {
		return
	}
	var numbers []int32
	for id, p := range s.parts {
		if p.ready {
			numbers = append(numbers, id.Number)
		}
	}
	read := func(ctx context.Context) error { return s.t.tables.ReadToEnd(ctx, numbers, func(string) {}) }
	stuck := func(err error) {
		s.t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "messages wait for rows of a table that is not read to its end", Err: err})
	}
	s.readings.Begin(ctx, read, stuck, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.wakeUp()
	})
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
		p.rowsRead = true
		err := w.resumePart(ctx, calls, p, min(p.waits.Due(w.s.readings.Ended()), w.budget.Most(w.opts.Limits.Records)-w.resumed))
		if err != nil && !errors.Is(err, errFull) {
			return err
		}
		p.rowsRead = false
	}
	return nil
}

// resumePart decides the first records that wait in a partition. The error is errFull if the
// transaction should end before it has decided all of them.
func (w *worker) resumePart(ctx, calls context.Context, p *part, n int) error {
	for ; n > 0; n-- {
		if w.budget.Full(ctx) {
			return errFull
		}
		x := p.waits.Take()
		w.resumed++
		r := *x.Record
		w.resuming = true
		w.budget.Done()
		err := w.record(calls, p, &r, r.Offset, keyState(x.State), &x.ID, w.s.t.now())
		w.resuming = false
		if err != nil {
			return err
		}
	}
	return nil
}

// notes returns what is committed with the offsets of partitions. A note is also changed by a
// commit, so it adds the present offsets of partitions of which nothing was read.
func (w *worker) notes() map[cluster.Partition]string {
	notes := map[cluster.Partition]string{}
	for _, p := range w.s.parts {
		if !p.ready {
			continue
		}
		p.marks = w.s.t.mark(p)
		waiting, commits := p.waits.Note()
		notes[p.id] = withMark(waiting, &p.marks)
		if !p.touched || !commits && len(p.changes)+len(p.windows) == 0 {
			continue
		}
		if at, ok := committedOffset(w.s.brokers.CommittedOffsets(), p); ok {
			if w.recommits == nil {
				w.recommits = map[cluster.Partition]kgo.EpochOffset{}
			}
			w.recommits[p.id] = at
		}
	}
	return notes
}

// restoreWaiting reads the records of parts again that waited when the last transaction was
// committed. It refuses options with which they cannot wait: they would be lost.
// While a transaction may change the offsets, the source says what holds it up.
func (t *Transactor) restoreWaiting(ctx context.Context, s *session, parts []*part) error {
	queues := map[cluster.Partition]*pending.Queue{}
	for _, p := range parts {
		queues[p.id] = &p.waits
	}
	return pending.Restore(ctx, t.adm(), t.clientOptions(), t.opts.Group, t.opts.letsOthersPass(), queues, func() { s.restores.Store(new("")) }, func(n int, err error) {
		t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Count: n, Reason: "records that waited for rows are gone", Err: err})
	})
}

// adopt finds the keys of restored records that wait.
func (w *worker) adopt(p *part) error {
	return p.waits.Each(func(x *pending.Record) error {
		if err := w.digest(p, []*kgo.Record{x.Record}); err != nil {
			return err
		}
		x.State, x.HasID, x.ID = uint8(w.states[0]), w.states[0] == keyKnown, w.digests[0]
		return nil
	})
}
