package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/marks"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/pending"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/watermarks"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// session is one member of the group with a transactional producer. One goroutine runs
// it. The client's callbacks note changes, and the session handles them when no
// transaction is open.
type session struct {
	member
	brokers brokers // the client; a Trial has none
	aborts  int     // consecutive transactions that were aborted for an error
	parts   map[cluster.Partition]*part
	work    worker
	looked  int64 // when quiet partitions were last looked for, in milliseconds
	idle    watermarks.IdleFinder
	// previewed is when early results were last written.
	previewed time.Time
	// restoring is the goroutine that brings parts up to date, if one runs.
	restoring *restoring
	// restores says what that goroutine waits for.
	restores atomic.Pointer[string]
	readings pending.Readings // of the tables

	mu       sync.Mutex          // guards the fields below
	assigned []cluster.Partition // new partitions, which are paused
	gone     []cluster.Partition // revoked or lost
	wanted   []cluster.Partition // assigned to another session of this process
	revoked  bool                // a partition is gone: the open transaction cannot commit
	wake     func()              // ends the wait for records
}

// brokers are what a transaction needs.
type brokers interface {
	Begin() error
	Flush(ctx context.Context) error
	End(ctx context.Context, commit kgo.TransactionEndTry) (committed bool, err error)
	CommittedOffsets() map[string]map[int32]kgo.EpochOffset
	// readAgain reads the rest of partitions again, which a commit left out.
	readAgain(rest map[cluster.Partition]kgo.EpochOffset)
}

// connected is a client as the brokers of a session.
type connected struct{ *kgo.GroupTransactSession }

var _ brokers = connected{}

func (m connected) Flush(ctx context.Context) error { return m.Client().Flush(ctx) }

func (m connected) CommittedOffsets() map[string]map[int32]kgo.EpochOffset {
	return m.Client().CommittedOffsets()
}

func (m connected) readAgain(rest map[cluster.Partition]kgo.EpochOffset) {
	cluster.ReadAgain(m.Client(), rest)
}

// part is a partition that was assigned to a session.
type part struct {
	operator.Chain
	slot  *slot
	given bool // by the current client
	ready bool // up to date
	// quiet is since when the partition has had no new records, in milliseconds; 0 if that is
	// not known.
	quiet int64
	// idleSources is what was found of them, until the partition is read up to an end; or nil.
	idleSources *watermarks.IdleSources
	touched     bool       // by the open transaction
	marks       marks.Note // of its commit
}

func newSession(t *Transactor, number int) *session {
	s := &session{member: member{t: t, group: t.chain.Group, name: strconv.Itoa(number)}, parts: map[cluster.Partition]*part{}}
	s.work.init(s)
	return s
}

// errAgain says that a session must restart with the brokers' state.
var errAgain = state.ErrAgain

// run works until ctx ends or it cannot continue.
func (s *session) run(ctx context.Context) error {
	defer s.releaseAll()
	return s.persist(ctx, s.live)
}

func (s *session) open(ctx context.Context) error {
	t := s.t
	manual := map[string]bool{t.chain.Output: t.chain.SamePartition}
	for _, name := range t.changelogs.names(t.decided...) {
		manual[name] = true
	}
	more := t.source.start()
	if t.chain.HasState() {
		more = append(more, kgo.KeepControlRecords()) // the end of a partition may be a marker
	}
	s.mu.Lock()
	s.assigned, s.gone, s.revoked = nil, nil, false
	s.mu.Unlock()
	s.work.env.Limits = *t.topicLimits.Load()
	err := s.join(ctx, append(more, kgo.WithPools(&record.Pool{}), kgo.ProducerLinger(t.limits.linger()),
		kgo.ProducerBatchMaxBytesFn(s.work.env.Limits.Client),
		kgo.ConsumeTopics(t.decided...), kgo.RecordPartitioner(cluster.Partitioner(manual)),
		kgo.OnPartitionsAssigned(s.onAssigned), kgo.OnPartitionsRevoked(s.onRevoked), kgo.OnPartitionsLost(s.onLost)))
	s.brokers = connected{s.client}
	return err
}

// live runs one client from its start to its end.
func (s *session) live(ctx context.Context) error {
	defer s.leave()
	return s.t.source.outOfRange(ctx, s.serve(ctx, s.open, s.loop))
}

// loop works until ctx ends or the client is unusable.
func (s *session) loop(ctx, last context.Context) error {
	calls, cancel := cluster.Lasting(ctx, s.t.timeouts.Shutdown/2) // the rest of the time is for the commit
	defer cancel()
	s.work.env.Produce = func(r *kgo.Record) { s.client.Produce(last, r, s.work.promise) }
	for {
		if err := s.settle(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		s.look(ctx)
		s.readRows(ctx)
		var fetches kgo.Fetches
		if !s.rowsDue() {
			fetches = s.poll(ctx, s.patience())
		}
		if s.interrupted() {
			if err := s.rewind(last); err != nil {
				return err
			}
			continue
		}
		if err := cluster.FetchError(fetches); err != nil {
			return err
		}
		if fetches.NumRecords() == 0 && !s.due() && !s.rowsDue() {
			switch {
			case s.restoring != nil:
				s.waitsFor(*s.restores.Load(), 0)
			case !s.pending() && joined(s.client):
				s.succeeded()
				s.waitsFor("", 0)
			}
			continue
		}
		if err := s.transact(ctx, calls, last, fetches); err != nil {
			return err
		}
	}
}

// leave closes the client. The member keeps its place in the group.
func (s *session) leave() {
	s.stopRestoring()
	s.readings.Stop()
	s.close()
	for _, p := range s.parts {
		p.given, p.ready = false, false
		if p.slot != nil {
			p.drop()
		}
	}
}

// drop discards what the open transaction adds.
func (p *part) drop() {
	p.slot.drop()
	p.Waits.Drop()
}

// releaseAll gives up all partitions.
func (s *session) releaseAll() {
	for id := range s.parts {
		s.drop(id)
	}
}

func (s *session) drop(id cluster.Partition) {
	s.t.slots.release(id, s)
	delete(s.parts, id)
}

// poll waits for records until most has passed or partitions have changed.
func (s *session) poll(ctx context.Context, most time.Duration) kgo.Fetches {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	s.mu.Lock()
	s.wake = cancel
	s.mu.Unlock()
	if s.pending() || s.rowsDue() {
		cancel()
	}
	return s.client.PollRecords(ctx, s.work.room())
}

// interrupted reports whether the open transaction cannot commit.
func (s *session) interrupted() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked
}

// pending reports whether there are changes to settle.
func (s *session) pending() bool {
	if s.restoring != nil {
		select {
		case <-s.restoring.done:
			return true
		default:
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.revoked || len(s.assigned) > 0 || len(s.gone) > 0 || len(s.wanted) > 0
}

// The client calls onAssigned, onRevoked and onLost from its own goroutine.
func (s *session) onAssigned(_ context.Context, client *kgo.Client, given map[string][]int32) {
	if len(given) == 0 {
		return
	}
	client.PauseFetchPartitions(given)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.assigned = append(s.assigned, partitionsOf(given)...)
	s.wakeUp()
}

func (s *session) onRevoked(ctx context.Context, client *kgo.Client, taken map[string][]int32) {
	if len(taken) > 0 { // a cooperative rebalance starts with an empty assignment
		s.onLost(ctx, client, taken)
	}
}

func (s *session) onLost(_ context.Context, _ *kgo.Client, taken map[string][]int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range partitionsOf(taken) {
		s.gone = append(s.gone, id)
		s.assigned = slices.DeleteFunc(s.assigned, func(other cluster.Partition) bool { return other == id }) // revoked before settle ran
	}
	s.revoked = true
	s.wakeUp()
}

// ask is called by another session that was assigned a partition of this one.
func (s *session) ask(id cluster.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted = append(s.wanted, id)
	s.wakeUp()
}

func (s *session) wakeUp() {
	if s.wake != nil {
		s.wake()
	}
}

func partitionsOf(topics map[string][]int32) []cluster.Partition {
	var list []cluster.Partition
	for topic, numbers := range topics {
		for _, n := range numbers {
			list = append(list, cluster.Partition{Topic: topic, Number: n})
		}
	}
	return list
}

// settle handles changes. No transaction is open. Another session may ask for a partition
// that this session owns. Its revocation may still come, or the client has left it out
// because an earlier one was not handled yet. Only the group knows the owner, so this session
// gives the partition up and joins again.
func (s *session) settle(ctx context.Context) error {
	s.mu.Lock()
	assigned, gone, wanted := s.assigned, s.gone, s.wanted
	s.assigned, s.gone, s.wanted = nil, nil, nil
	s.mu.Unlock()
	var disputed bool
	for _, id := range wanted {
		p := s.parts[id]
		disputed = disputed || p != nil && p.given && !slices.Contains(gone, id) && !slices.Contains(assigned, id)
	}
	gone = append(gone, wanted...)
	if len(gone) > 0 || len(assigned) > 0 {
		s.t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: fmt.Sprintf("%d partitions given, %d taken", len(assigned), len(gone))})
		s.stopRestoring()
	}
	for _, id := range gone {
		s.drop(id)
	}
	for _, id := range assigned {
		s.parts[id] = &part{Chain: operator.Chain{Partition: operator.Partition{ID: id}}, given: true}
	}
	for id, p := range s.parts {
		// The standby should follow partitions of an earlier client that were not
		// assigned again.
		if s.t.state.Standby && len(assigned) > 0 && !p.given {
			s.drop(id)
		}
	}
	if disputed {
		return fmt.Errorf("kafka: two sessions of this process were assigned a partition: %w", errAgain)
	}
	return s.restore(ctx)
}

// rewind returns to the committed offsets, and lets the next transaction commit again.
func (s *session) rewind(last context.Context) error {
	s.mu.Lock()
	s.revoked = false
	s.mu.Unlock()
	if _, err := s.brokers.End(last, kgo.TryAbort); err != nil {
		return fmt.Errorf("kafka: rewind: %w", err)
	}
	return nil
}

// rowsDue reports whether a reading of the tables ended for which records wait. A
// transaction can take them if there is an offset to commit again.
func (s *session) rowsDue() bool { return s.anyPart(s.hasRows) }

func (s *session) hasRows(p *part) bool {
	if p.Waits.Due(s.readings.Ended()) == 0 {
		return false
	}
	_, fenced := committedOffset(s.brokers.CommittedOffsets(), p)
	return fenced
}

// readRows begins to read the tables to their end if records wait that came after the last
// reading began.
func (s *session) readRows(ctx context.Context) {
	if s.readings.Ended() < s.readings.Begun() || !s.anyPart(func(p *part) bool { return p.Waits.Lacks(s.readings.Begun()) }) {
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

// transact starts a transaction with the records that were read, reads more until it is
// due, and ends it. It starts no decision after ctx has ended, and calls no Transform after
// calls has ended. After an error the session restarts.
func (s *session) transact(ctx, calls, last context.Context, fetches kgo.Fetches) error {
	w := &s.work
	w.reset()
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
		left := w.env.Budget.Left()
		if left <= 0 || w.full() || ctx.Err() != nil || w.failed.Load() != nil || s.due() {
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

// abort ends the open transaction without effect. Its records are read again.
func (s *session) abort(last context.Context) error {
	s.work.drop()
	return s.t.chain.Overdue(&s.work.env.Budget, s.rewind(last))
}

// finish writes the changelogs and commits. After an error the result is unknown, and
// the session restarts.
func (s *session) finish(calls, last context.Context) error {
	w := &s.work
	s.waitsFor("the brokers to write outputs and changelog", w.records)
	err := w.emit(calls)
	if err == nil {
		err = w.writeChangelogs()
	}
	if err != nil {
		s.abort(last)
		return err
	}
	if err := s.brokers.Flush(last); err != nil {
		return fmt.Errorf("kafka: flush: %w", err)
	}
	if failed := w.failed.Load(); failed != nil || s.interrupted() {
		return s.failed(last, failed)
	}
	s.waitsFor("the commit of a Kafka transaction", w.records)
	notes := w.notes() // which adds to w.recommits
	committed, err := s.brokers.End(cluster.Committing(last, w.recommits, notes, w.rest), kgo.TryCommit)
	if err != nil || !committed {
		w.drop()
		if err == nil {
			err = errAgain // it may have committed, even if the client reports otherwise
		}
		return fmt.Errorf("kafka: commit: %w", pending.TooLong(s.t.chain.Overdue(&w.env.Budget, err)))
	}
	if w.rest != nil {
		s.brokers.readAgain(w.rest)
	}
	s.tooBig = 0
	w.env.Budget.Committed()
	s.t.health.committed(w.records + w.results.End())
	s.succeeded()
	settled := w.records
	for _, p := range w.touched {
		p.slot.marked(p.marks)
		settled -= p.Waits.Commit()
		err = errors.Join(err, p.slot.commit())
	}
	w.report(settled)
	return err
}

// failed ends a transaction of which a record was not written, or which has lost a partition.
func (s *session) failed(last context.Context, failed *error) error {
	w := &s.work
	var cause error
	if failed != nil {
		cause = s.t.chain.Overdue(&w.env.Budget, *failed)
	}
	if err := s.abort(last); err != nil || failed == nil {
		return err
	}
	s.retried(last, cause)
	if err := w.learn(last); err != nil {
		return err
	}
	return s.refusedSize(last, w.env.Limits, *failed)
}

// mostAborts is how many consecutive transactions may be aborted for an error before
// the session counts as failing.
const mostAborts = 3

// retried reports a transaction that was aborted for an error. If many are, it waits,
// because topics keep the records of each one.
func (s *session) retried(ctx context.Context, err error) {
	s.t.observe(pipeline.Event{Kind: pipeline.EventRetried, Count: s.work.records, Err: err})
	if s.aborts++; s.aborts >= mostAborts {
		s.t.health.failed(s.name, fmt.Errorf("kafka: transactions fail: %w", err))
		_ = retry.Sleep(ctx, retry.Backoff(s.aborts, 10*time.Millisecond, 1280*time.Millisecond))
	}
}

// succeeded notes that the session has committed or is idle.
func (s *session) succeeded() {
	s.aborts = 0
	s.t.health.succeeded(s.name)
}
