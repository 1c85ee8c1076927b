package kafkatxn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
)

// waiting is a record that waits for its row, or behind such a record.
type waiting struct {
	r     *kgo.Record // as it was read
	known keyState
	d     semel.Digest
	// since is how many readings of the tables had begun when the record came. A later
	// one shows whether its row is there.
	since int
}

const (
	// mostWaiting is how many records of a partition wait while others go on. Their offsets
	// fit into the 4,096 bytes that brokers take with a committed offset.
	mostWaiting = 200
	// waitForRow is how long a reading of the tables takes until it is reported, or, if
	// nothing can go on meanwhile, until the session restarts.
	waitForRow = 5 * time.Second
)

// errWaits says that a record has no row, and waits until the tables are read to their end.
var errWaits = errors.New("kafka: the record waits for its row")

// letsOthersPass reports whether other records go on while one waits for its row. With
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
// is errWaits if the record waits; it has no effect then, and others go on.
func (w *worker) effect(ctx context.Context, p *part, r *kgo.Record, now int64) (bool, error) {
	body := w.body
	if !p.follows(r, w.known, w.d) {
		if done, err := w.join(ctx, p, r, now); !errors.Is(err, errWaits) {
			return done, err
		}
		r.Value = body
	}
	if w.opts.letsOthersPass() && len(p.waits) < mostWaiting {
		return false, errWaits
	}
	ctx2, cancel := context.WithTimeout(ctx, waitForRow)
	defer cancel()
	if err := w.s.t.tables.ReadToEnd(ctx2, []int32{p.id.Number}, func(text string) { w.s.does(text, w.records) }); err != nil {
		return false, fmt.Errorf("%w: %v", errAgain, err) // a table that cannot be read parks nothing
	}
	p.rowsRead = true
	known, d := w.known, w.d
	if err := w.resumePart(ctx, p, len(p.waits)); err != nil {
		return false, err
	}
	w.body, w.known, w.d = body, known, d
	return w.join(ctx, p, r, now)
}

// follows reports whether a record must stay behind one that waits: it has the same id or
// the same record key.
func (p *part) follows(r *kgo.Record, known keyState, d semel.Digest) bool {
	return !p.rowsRead && slices.ContainsFunc(p.waits, func(x waiting) bool {
		return known == keyKnown && x.known == keyKnown && x.d == d || r.Key != nil && bytes.Equal(r.Key, x.r.Key)
	})
}

// wait adds the record that is being decided to those that wait.
func (w *worker) wait(p *part, r *kgo.Record) {
	c := *r
	c.Value, c.Headers = w.body, slices.Clip(r.Headers)
	p.waits = append(p.waits, waiting{&c, w.known, w.d, w.s.begun})
}

// rowsDue reports whether a reading of the tables ended for which records wait. A
// transaction can take them if there is an offset to commit again.
func (s *session) rowsDue() bool { return s.anyPart(s.hasRows) }

func (s *session) hasRows(p *part) bool {
	if len(p.waits) == 0 || p.waits[0].since >= s.readings() {
		return false
	}
	_, fenced := present(s.brokers.CommittedOffsets(), p)
	return fenced
}

// reading reads the tables to their end.
type reading struct {
	cancel context.CancelFunc
	done   chan struct{}
	ended  bool // as it should; set before done is closed
}

// readings returns the number of the last reading of the tables that has ended.
func (s *session) readings() int {
	if s.reading == nil {
		return s.begun
	}
	select {
	case <-s.reading.done:
		if s.reading.ended {
			return s.begun
		}
	default:
	}
	return s.begun - 1
}

// stopReading waits for the goroutine of readRows.
func (s *session) stopReading() {
	if s.reading != nil {
		s.reading.cancel()
		<-s.reading.done
		s.reading = nil
	}
}

// readRows begins to read the tables to their end if records wait that came after the last
// reading began.
func (s *session) readRows(ctx context.Context) {
	if s.readings() < s.begun || !s.anyPart(func(p *part) bool { return len(p.waits) > 0 && p.waits[len(p.waits)-1].since >= s.begun }) {
		return
	}
	var numbers []int32
	for id, p := range s.parts {
		if p.ready {
			numbers = append(numbers, id.Number)
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	reads := &reading{cancel: cancel, done: make(chan struct{})}
	s.begun++
	s.reading = reads
	go func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.wakeUp()
		}()
		defer close(reads.done)
		for told := false; ctx.Err() == nil; {
			patient, cancel := context.WithTimeout(ctx, waitForRow)
			err := s.t.tables.ReadToEnd(patient, numbers, func(string) {})
			cancel()
			switch {
			case err == nil:
				reads.ended = true
				return
			case !told && ctx.Err() == nil:
				told = true
				s.t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "messages wait for rows of a table that is not read to its end", Err: err})
			}
			cluster.Pause(ctx, 100*time.Millisecond)
		}
	}()
}

// resume decides records whose rows are there, or which are parked without a row. It needs
// a transaction without fetches, which then ends: a read returns few records if they are
// slow, and these are more.
func (w *worker) resume(ctx context.Context, fetches kgo.Fetches) error {
	if fetches.NumRecords() > 0 {
		return nil
	}
	for _, p := range w.s.parts {
		if !p.ready || !w.s.hasRows(p) {
			continue
		}
		due := 0
		for due < len(p.waits) && p.waits[due].since < w.s.readings() {
			due++
		}
		w.touch(p)
		p.rowsRead = true
		if err := w.resumePart(ctx, p, min(due, w.most()-w.resumed)); err != nil {
			return err
		}
		p.rowsRead = false
	}
	return nil
}

// resumePart decides the first records that wait in a partition.
func (w *worker) resumePart(ctx context.Context, p *part, n int) error {
	for ; n > 0; n-- {
		x := p.waits[0]
		p.waits = p.waits[1:]
		w.resumed++
		r := *x.r
		w.resuming = true
		err := w.record(ctx, p, &r, r.Offset, x.known, &x.d, w.s.t.now())
		w.resuming = false
		if err != nil {
			return err
		}
	}
	return nil
}

// notes returns what is committed with the offsets of partitions in which records wait:
// the offsets of those records. A note is also taken back by a commit, so it adds the
// present offsets of partitions of which nothing was read.
func (w *worker) notes() map[cluster.Partition]string {
	notes := map[cluster.Partition]string{}
	for _, p := range w.touched {
		if len(p.waits)+len(p.waited) == 0 {
			continue
		}
		var list []int64
		for _, x := range p.waits {
			list = append(list, x.r.Offset)
		}
		if list != nil {
			notes[p.id] = cluster.Note(list)
		}
		if at, ok := present(w.s.brokers.CommittedOffsets(), p); ok {
			if w.present == nil {
				w.present = map[cluster.Partition]kgo.EpochOffset{}
			}
			w.present[p.id] = at
		}
	}
	return notes
}

// restoreWaiting reads the records of parts again that waited when the last transaction was
// committed.
func (t *Transactor) restoreWaiting(ctx context.Context, parts []*part) error {
	if !t.opts.letsOthersPass() {
		return nil
	}
	committed, err := t.adm().FetchOffsetsForTopics(kadm.RequireStable(ctx), t.opts.Group, t.opts.Inputs...)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return fmt.Errorf("kafka: offsets of group %s: %w", t.opts.Group, err)
	}
	waits, from, ends := map[cluster.Partition][]int64{}, map[string]map[int32]kgo.Offset{}, cluster.Extent{}
	byID := map[cluster.Partition]*part{}
	for _, p := range parts {
		p.waits, p.waited = nil, nil
		at, _ := committed.Lookup(p.id.Topic, p.id.Number)
		list, err := cluster.ParseNote(at.Metadata)
		if err != nil {
			return fmt.Errorf("kafka: group %s: the metadata %q of its offset of %s/%d is not what Semel writes: %w: %w", t.opts.Group, at.Metadata, p.id.Topic, p.id.Number, semel.ErrInvalidRequest, err)
		}
		if len(list) > 0 {
			waits[p.id], byID[p.id] = list, p
			ends.Add(from, kadm.ListedOffset{Topic: p.id.Topic, Partition: p.id.Number, Offset: list[len(list)-1] + 1}, list[0])
		}
	}
	if len(waits) == 0 {
		return nil
	}
	err = ends.ReadFrom(ctx, t.clientOptions(), from, func(r *kgo.Record) {
		id := cluster.Partition{Topic: r.Topic, Number: r.Partition}
		if _, ok := slices.BinarySearch(waits[id], r.Offset); ok {
			byID[id].waits = append(byID[id].waits, waiting{r: r, since: -1})
		}
	})
	if errors.Is(err, kerr.OffsetOutOfRange) {
		return fmt.Errorf("kafka: records of %v that waited for rows were deleted before they were joined: to go on without them, set the offsets of group %s to where they are (kafka-consumer-groups.sh --reset-offsets --to-current): %w: %w", t.opts.Inputs, t.opts.Group, errOutOfRange, err)
	}
	for _, p := range byID {
		p.waited = p.waits
	}
	return err
}

// adopt finds the keys of restored records that wait.
func (w *worker) adopt(p *part) error {
	for i := range p.waits {
		x := &p.waits[i]
		if err := w.digest(p, []*kgo.Record{x.r}); err != nil {
			return err
		}
		x.known, x.d = w.states[0], w.digests[0]
	}
	return nil
}
