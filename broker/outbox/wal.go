package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// WALOptions are the options of [OpenWAL]. The zero value is valid.
type WALOptions struct {
	// Names are the names of the tables; see pgstore.Names.
	Names pgstore.Names
	// Slot is the name of the replication slot and of the publication. Defaults to the name
	// of the table, after its schema if that is not public. Must consist of a-z, 0-9 and _,
	// and have at most 63 bytes.
	Slot string
	// Keep is how long rows that were delivered are kept; see Options.Keep. Defaults to 0:
	// they are not kept. Must not be negative.
	Keep time.Duration
	// Batch limits the rows that one read returns. Defaults to 1000.
	Batch int
	// Observer gets an event when this process starts to read the slot, and when it waits as a
	// standby. Defaults to none.
	Observer pipeline.Observer
	// Pipeline and Target are as in Options: the outbox is bound to them.
	Pipeline, Target string

	name string // as in Options
}

func (o *WALOptions) checked() (WALOptions, error) {
	var c WALOptions
	if o != nil {
		c = *o
	}
	c.Batch = cmp.Or(c.Batch, defaultBatch)
	wrong := invalid.In("outbox: WALOptions.")
	if c.Keep < 0 {
		wrong.Add("Keep: %v is negative", c.Keep)
	}
	if c.Batch < 0 {
		wrong.Add("Batch: %d is negative", c.Batch)
	}
	return c, wrong.Err()
}

const (
	// lookAgain is how often the source looks for rows whose time has come.
	lookAgain = time.Second
	// sweepEvery is how often the table is searched for rows that the log has not returned,
	// and sweepAge is the age of such rows. It only finds rows if an operator has changed
	// rows or the publication.
	sweepEvery, sweepAge = time.Minute, time.Minute
)

// WALSource reads an outbox through a replication slot, in the order of commits. [OpenWAL]
// returns one. A row is deleted or kept when it is acknowledged. The slot is confirmed up to
// the last transaction before which all rows are.
//
// One process at a time reads the slot. Others wait until it is free.
type WALSource struct {
	opts  WALOptions
	pool  *pgxpool.Pool
	sql   *statements
	slot  *slot
	owner string
	bound binding
	wake  chan struct{} // tells Read that there may be something to read
	room  chan struct{} // tells the receiver that something was read
	stop  context.CancelFunc
	ended sync.WaitGroup

	archive *archive // nil if no rows are kept

	mu      sync.Mutex // guards the fields below, and those of a session that name it
	session *session   // nil while another process reads the slot, or the server is away
	trouble error      // why there is no session
	failed  error      // why there will be none
}

var (
	_ pipeline.Source = (*WALSource)(nil)
	_ doctor.Readier  = (*WALSource)(nil)
)

// OpenWAL connects to a database and returns the source. It creates the publication if it
// does not exist; the slot is created later, because that may take time. It blocks until the
// server has answered. If the server or the role does not allow it, the error is a
// *SlotError. Other errors are those of [Open].
func OpenWAL(ctx context.Context, dsn string, opts *WALOptions) (*WALSource, error) {
	o, err := opts.checked()
	if err != nil {
		return nil, err
	}
	pool, sql, err := connect(ctx, dsn, o.Names)
	if err != nil {
		return nil, err
	}
	s := &WALSource{opts: o, pool: pool, sql: sql, bound: binding{o.Pipeline, o.Target}, owner: ownerName(o.name), wake: make(chan struct{}, 1), room: make(chan struct{}, 1)}
	if err := s.check(ctx); err != nil {
		pool.Close()
		if _, ok := errors.AsType[*SlotError](err); ok {
			return nil, err
		}
		if !errors.Is(err, pgstore.ErrSchema) && !errors.Is(err, semel.ErrInvalidRequest) {
			err = fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
		}
		return nil, fmt.Errorf("outbox: %w", err)
	}
	if s.archive, err = openArchive(ctx, pool, sql, o.Keep); err != nil {
		pool.Close()
		return nil, err
	}
	owning, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	s.ended.Go(func() { s.own(owning) })
	if s.archive != nil {
		s.ended.Go(func() { s.archive.tend(owning) })
	}
	return s, nil
}

// check checks what can be known at the start.
func (s *WALSource) check(ctx context.Context) (err error) {
	if s.slot, err = newSlot(s.pool, s.opts.Names, s.opts.Slot); err != nil {
		return err
	}
	st, err := s.slot.setUp(ctx)
	if err == nil {
		err = s.rebind(ctx, st)
	}
	if err != nil {
		return err
	}
	conn, err := s.slot.connect(ctx, s.owner)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// rebind checks that the outbox belongs to the pipeline of this process.
func (s *WALSource) rebind(ctx context.Context, st *slotState) error {
	return s.bound.bind(ctx, s.pool, s.sql, func() (bool, error) { return st.pid == 0, nil })
}

// Traits implements pipeline.Source.
func (s *WALSource) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, Pause: s.pause, Hold: s.hold, Resume: s.resume, Place: place, Lag: s.Lag, Gauges: s.Gauges}
}

// hold takes rows back.
func (s *WALSource) hold(items []*pipeline.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		o, seq := it.Ref.(*offered), it.Message.Origin.Offset
		delete(o.of.flying, seq)
		behind := o.of.held.add(it)
		if o.txn != nil { // otherwise it is found by its time
			*behind = append(*behind, behindRow{seq, o.txn})
			o.of.behind++
		}
	}
}

// resume lets Read offer the rows of a group again.
func (s *WALSource) resume(group uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil {
		s.session.held.resume(group)
	}
	hurry(s.wake)
}

// pause stops or resumes offering the rows of one partition.
func (s *WALSource) pause(of *pipeline.Partition, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == nil {
		return
	}
	for _, p := range s.session.partitions {
		if p.Partition == of {
			p.paused = paused
		}
	}
	if !paused {
		hurry(s.wake)
	}
}

// hurry wakes the goroutine that waits for a channel.
func hurry(wakes chan struct{}) {
	select {
	case wakes <- struct{}{}:
	default:
	}
}

// Read implements pipeline.Source.
func (s *WALSource) Read(ctx context.Context) ([]*pipeline.Item, error) {
	for {
		s.mu.Lock()
		of, failed := s.session, s.failed
		s.mu.Unlock()
		if failed != nil {
			return nil, failed
		}
		if of != nil {
			limited, cancel := context.WithTimeout(ctx, setUpFor)
			items, err := of.next(limited)
			cancel()
			if len(items) > 0 { // even if ctx has ended: they count as in flight
				return items, nil
			}
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if err != nil {
				of.lost(fmt.Errorf("read: %w", err))
			}
		}
		if err := retry.SleepOrWake(ctx, lookAgain, s.wake); err != nil {
			return nil, err
		}
	}
}

// Ack implements pipeline.Source: it deletes the rows of items or moves them to the log. A
// row may be received before its transaction is visible, and Ack waits until it is.
func (s *WALSource) Ack(ctx context.Context, items []*pipeline.Item) error {
	if err := s.remove(ctx, items); err != nil {
		return fmt.Errorf("outbox: delete rows that were delivered: %w", err)
	}
	for _, it := range items {
		it.Ref.(*offered).done(it.Message.Origin.Offset)
	}
	return nil
}

// removeRowsSQL deletes rows, and returns those that it saw. keepRowsSQL moves them to the
// log.
const (
	removeRowsSQL = `DELETE FROM {outbox} AS o USING unnest($1::bigint[], $2::uuid[]) AS a (seq, id) WHERE o.seq = a.seq AND o.id = a.id RETURNING o.seq`
	keepRowsSQL   = `WITH gone AS (
	DELETE FROM {outbox} AS o USING unnest($2::bigint[], $3::uuid[], $4::integer[], $5::text[]) AS a (seq, id, attempts, failure)
	WHERE o.seq = a.seq AND o.id = a.id
	RETURNING o.*, a.attempts, a.failure)
` + toLog + ` RETURNING seq`
)

// remove deletes the rows of items. Rows that it does not see are not visible yet, or were
// deleted elsewhere.
func (s *WALSource) remove(ctx context.Context, items []*pipeline.Item) error {
	seqs := make([]int64, len(items))
	for i, it := range items {
		seqs[i] = it.Message.Origin.Offset
	}
	gone, err := s.take(ctx, items, seqs)
	if err != nil || len(gone) == len(seqs) {
		return err
	}
	var xids []uint64
	for _, it := range items {
		if t := it.Ref.(*offered).txn; t != nil && !slices.Contains(gone, it.Message.Origin.Offset) {
			xids = append(xids, t.xid)
		}
	}
	for visible := false; !visible; {
		if visible, err = s.visible(ctx, xids); err != nil {
			return err
		}
		if !visible {
			if err := retry.Sleep(ctx, busyPause); err != nil {
				return err
			}
		}
	}
	_, err = s.take(ctx, items, seqs)
	return err
}

// take deletes the rows that it sees, or moves them to the log, and returns their numbers.
func (s *WALSource) take(ctx context.Context, items []*pipeline.Item, seqs []int64) (gone []int64, err error) {
	send := func(statement string, args ...any) error {
		rows, err := s.pool.Query(ctx, statement, args...)
		if err == nil {
			gone, err = pgx.CollectRows(rows, pgx.RowTo[int64])
		}
		return err
	}
	if s.archive == nil {
		err = send(s.slot.remove, seqs, idsOf(items))
		return gone, err
	}
	attempts, failures := outcomes(items)
	err = s.archive.move(ctx, func() error { return send(s.sql.keepRows, s.owner, seqs, idsOf(items), attempts, failures) })
	return gone, err
}

// visible reports whether all these transactions are visible. A server sends a
// transaction when it is in its log. That may be a moment before others see it, or long
// before if the server waits for a synchronous standby.
func (s *WALSource) visible(ctx context.Context, xids []uint64) (visible bool, err error) {
	var list []string
	for _, xid := range slices.Compact(slices.Sorted(slices.Values(xids))) {
		if xid != 0 {
			list = append(list, fmt.Sprint(xid))
		}
	}
	if list == nil {
		return true, nil
	}
	err = s.pool.QueryRow(ctx, `SELECT bool_and(pg_visible_in_snapshot(x::xid8, pg_current_snapshot())) FROM unnest($1::text[]) AS x`, list).Scan(&visible)
	return visible, err
}

// Return implements pipeline.Source. The rows are still in the table, and the next process
// that reads the slot delivers them.
func (s *WALSource) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Ready implements doctor.Readier. A standby is ready.
func (s *WALSource) Ready(ctx context.Context) error {
	s.mu.Lock()
	err := cmp.Or(s.failed, s.trouble)
	s.mu.Unlock()
	if by, ok := errors.AsType[*standby](err); ok {
		return by.halfDead(s.slot.name)
	}
	if wait, ok := errors.AsType[*creating](err); ok {
		return wait.describe(ctx, s.slot)
	}
	if err == nil {
		err = cmp.Or(s.archive.ready(), s.pool.Ping(ctx))
	}
	if _, ok := errors.AsType[*SlotError](err); ok || err == nil {
		return err
	}
	return fmt.Errorf("outbox: %w", err)
}

// Lag returns the backlog, as in pipeline.SourceTraits. It counts the rows of the outbox,
// up to 2,000 of each of its shards, without rows that had to wait for a time. The bytes
// are those of the log that the slot has not confirmed. A standby has no lag.
func (s *WALSource) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	lag := pipeline.Lag{Source: "outbox"}
	s.mu.Lock()
	_, waits := errors.AsType[*standby](s.trouble)
	s.mu.Unlock()
	if waits {
		return []pipeline.Lag{lag}, nil
	}
	numbers := make([]int16, shardCount)
	for i := range numbers {
		numbers[i] = int16(i)
	}
	var b pgx.Batch
	b.Queue(s.sql.lag, numbers, mostLag).QueryRow(func(row pgx.Row) error { return row.Scan(&lag.Messages, &lag.More) })
	b.Queue(behindSQL, s.slot.name).QueryRow(func(row pgx.Row) error { return row.Scan(&lag.Bytes) })
	if err := s.pool.SendBatch(ctx, &b).Close(); err != nil {
		return nil, fmt.Errorf("outbox: ask for the lag: %w", err)
	}
	return []pipeline.Lag{lag}, nil
}

// Gauges returns the gauges of pipeline.SourceTraits. All shards are one, which belongs to
// the process that reads the slot. It also reports the state of the slot. A standby reports
// all of it too.
func (s *WALSource) Gauges(ctx context.Context) ([]pipeline.Gauge, error) {
	states, err := s.sql.states(ctx, s.pool)
	var oldest time.Duration
	for _, of := range states {
		oldest = max(oldest, of.oldest)
	}
	list := []pipeline.Gauge{{Name: "dedup.outbox.oldest", Labels: []string{"all"}, Value: oldest.Seconds()}}
	var owner string
	if err == nil {
		err = s.pool.QueryRow(ctx, readsSQL, s.slot.name).Scan(&owner)
	}
	if err != nil {
		return nil, fmt.Errorf("outbox: look at the shards: %w", err)
	}
	if owner != "" {
		list = append(list, pipeline.Gauge{Name: "dedup.outbox.owner", Labels: []string{"all", owner}, Value: 1})
	}
	st, err := s.slot.state(ctx)
	if err != nil {
		return nil, fmt.Errorf("outbox: look at the slot: %w", err)
	}
	if st.exists {
		list = append(list, pipeline.Gauge{Name: "dedup.outbox.slot.retained", Labels: []string{st.status}, Value: float64(st.retained)})
	}
	if st.safe >= 0 || st.exists && st.status == "lost" {
		list = append(list, pipeline.Gauge{Name: "dedup.outbox.slot.safe", Value: float64(max(st.safe, 0))})
	}
	return list, nil
}

// readsSQL returns the name of the process that reads a slot, or "" if none does.
const readsSQL = `SELECT coalesce((SELECT coalesce(nullif(a.application_name, ''), 'unknown') FROM pg_replication_slots AS s LEFT JOIN pg_stat_activity AS a ON a.pid = s.active_pid WHERE s.slot_name = $1 AND s.active), '')`

// behindSQL returns the bytes that a slot has not confirmed, or -1 if there is no slot.
const behindSQL = `SELECT coalesce((SELECT greatest(pg_wal_lsn_diff(pg_current_wal_lsn(), confirmed_flush_lsn), 0) FROM pg_replication_slots WHERE slot_name = $1), -1)::bigint`

// Close implements pipeline.Source. It confirms what is acknowledged and frees the slot.
func (s *WALSource) Close(context.Context) error {
	s.stop()
	s.ended.Wait()
	s.pool.Close()
	return nil
}

// partition has the rows of a part of the aggregates, in their order.
type partition struct {
	*pipeline.Partition
	paused bool // guarded by WALSource.mu
	// behind are rows that came while it was paused, and those behind them. Their bodies
	// are read again from the table. Guarded by WALSource.mu.
	behind []behindRow
}

// behindRow is a row of which only the number is kept.
type behindRow struct {
	seq int64
	txn *txn
}

// orderOf returns the aggregate of a row. Rows without one have no order.
func orderOf(r *row) []byte {
	if r.item.Message.RecordKey == nil {
		return []byte(r.item.Message.ID)
	}
	return r.item.Message.RecordKey
}

// partitionOf returns the partition of an aggregate.
func (of *session) partitionOf(aggregate []byte) *partition {
	h := fnv.New32a()
	h.Write(aggregate)
	return of.partitions[h.Sum32()%uint32(len(of.partitions))]
}

// offered is what the source remembers of a row that it has returned.
type offered struct {
	of  *session
	txn *txn // nil if the row waited for its time
}

// done notes that a row was deleted.
func (o *offered) done(seq int64) {
	o.of.s.mu.Lock()
	delete(o.of.flying, seq)
	o.of.s.mu.Unlock()
	if o.txn != nil {
		o.of.progress.ack(o.txn)
	}
}

// event tells the observer.
func (s *WALSource) event(reason string, err error) {
	if s.opts.Observer != nil {
		s.opts.Observer.ObservePipeline(pipeline.Event{Kind: pipeline.EventSourceChanged, Pipeline: s.opts.Pipeline, Reason: reason, Err: err})
	}
}
