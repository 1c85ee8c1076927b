package outbox

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pglogrepl"
	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/pipeline"
)

// session lasts from when this process gets the slot until it loses it. It starts with a
// snapshot. It delivers the rows in the table, and then rows from the log whose transactions the
// snapshot does not have. So every row is delivered, even if the slot has missed some.
type session struct {
	s          *WALSource
	partitions []*partition
	progress   progress
	lost       context.CancelCauseFunc // ends the session because of an error

	// sees has the transactions whose rows are in list, if they were committed before
	// until.
	sees snapshot

	// These belong to Read.
	list   seqs      // the numbers of the rows in the table
	listed *txn      // of those rows
	chunk  []int64   // the next of them
	small  bool      // nextBehind reads one row
	again  time.Time // when to look for rows whose time has come
	swept  time.Time

	// These are guarded by WALSource.mu.
	buffer []received
	bytes  int64 // of buffer
	behind int   // the rows behind in all partitions and held aggregates
	held   holds[[]behindRow]
	flying map[int64]bool // the rows that were returned and are not deleted; true if they waited for a time
}

// received is a row that the log has returned.
type received struct {
	row
	txn *txn
}

const (
	// mostBuffered and mostBufferedBytes limit what waits for Read. mostBehind limits the
	// rows of partitions that are paused and of aggregates that are held. Beyond that, nothing
	// is received, and no further row is read from the table.
	mostBuffered, mostBufferedBytes, mostBehind = 4096, 8 << 20, 1 << 20
)

// snapshotSQL returns the numbers of all rows that do not wait for a time.
const snapshotSQL = `SELECT seq FROM {outbox} WHERE deliver_at IS NULL ORDER BY seq`

// dueSQL reads the rows whose time has come, except those in flight and those of the
// aggregates in $3, which are held.
var dueSQL = `SELECT ` + columns + `
FROM generate_series(0, 63) AS s (shard)
CROSS JOIN LATERAL (
	SELECT * FROM {outbox} AS d WHERE d.shard = s.shard AND d.deliver_at <= statement_timestamp() AND d.seq <> ALL ($1::bigint[])` + unheld("d", "$3") + ` ORDER BY d.deliver_at, d.seq LIMIT $2
) AS o ORDER BY o.deliver_at, o.seq LIMIT $2`

// missedSQL finds rows that have been in the table for long.
const missedSQL = `SELECT seq FROM {outbox} WHERE deliver_at IS NULL AND created < now() - $1::interval AND seq <> ALL ($2::bigint[]) LIMIT 1`

// begin starts a session, which calls lost if an error ends it.
func (s *WALSource) begin(ctx context.Context, lost context.CancelCauseFunc) (*session, error) {
	of := &session{s: s, lost: lost, flying: map[int64]bool{}, swept: time.Now()}
	for i := range shardCount {
		of.partitions = append(of.partitions, &partition{Partition: pipeline.NewPartition(fmt.Sprintf("outbox/%d", i))})
	}
	of.listed = of.progress.begin(0)
	err := pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		var visible, end string
		if err := tx.QueryRow(ctx, `SELECT pg_current_snapshot()::text, pg_current_wal_insert_lsn()::text`).Scan(&visible, &end); err != nil {
			return err
		}
		if err := of.sees.parse(visible, end); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, s.slot.snapshot)
		if err != nil {
			return err
		}
		var seq int64
		_, err = pgx.ForEachRow(rows, []any{&seq}, func() error {
			of.list.add(seq)
			return nil
		})
		return err
	})
	of.progress.add(of.listed, of.list.count)
	of.progress.end(of.listed, 0)
	return of, err
}

// end closes the partitions and waits until what is being processed is settled, so that the next
// session does not overtake it.
func (of *session) end(ctx context.Context) {
	now, cancel := context.WithCancel(ctx)
	cancel()
	for _, p := range of.partitions {
		_ = p.Close(now) // only marks it
	}
	for _, p := range of.partitions {
		if p.Close(ctx) != nil {
			return // the source is being closed
		}
	}
}

// next returns the next rows, if there are some. Rows whose time has come are first, then
// rows of partitions that were paused, then rows that were in the table, then received rows.
func (of *session) next(ctx context.Context) ([]*pipeline.Item, error) {
	of.release()
	for _, look := range []func(context.Context) ([]*pipeline.Item, error){of.nextDue, of.nextBehind, of.nextListed, of.nextReceived} {
		if items, err := look(ctx); err != nil || len(items) > 0 {
			return items, err
		}
	}
	return nil, of.sweep(ctx)
}

// release puts the rows of aggregates that are no longer held before the others of their
// partitions.
func (of *session) release() {
	of.s.mu.Lock()
	defer of.s.mu.Unlock()
	of.held.release(func(aggregate string, behind *[]behindRow) {
		p := of.partitionOf([]byte(aggregate))
		p.behind = append(*behind, p.behind...)
		of.again = time.Time{}
	})
}

// holds notes a row if its aggregate is held. The caller holds WALSource.mu.
func (of *session) holds(r *row, t *txn) bool {
	behind := of.held.at(r.item)
	if behind == nil {
		return false
	}
	*behind = append(*behind, behindRow{r.seq, t})
	return true
}

// offer returns rows as items, except those whose partition is paused or whose aggregate is
// held. The caller holds WALSource.mu.
func (of *session) offer(into []*pipeline.Item, r *row, t *txn) []*pipeline.Item {
	p := of.partitionOf(orderOf(r))
	if p.paused || len(p.behind) > 0 {
		p.behind = append(p.behind, behindRow{r.seq, t}) // even if the aggregate is held: earlier rows of it may be there
		of.behind++
		return into
	}
	if of.holds(r, t) {
		of.behind++
		return into
	}
	return append(into, of.item(p, r, t))
}

// item returns a row as an item. The caller holds WALSource.mu.
func (of *session) item(p *partition, r *row, t *txn) *pipeline.Item {
	of.flying[r.seq] = t == nil
	r.item.Message.Origin.Partition = 0 // the log does not have the shard
	r.item.Partition, r.item.Ref = p.Partition, &offered{of, t}
	return r.item
}

// fetch reads rows of the table by their numbers. It returns how many of the numbers it
// looked at: fewer if their bodies are long.
func (of *session) fetch(ctx context.Context, numbers []int64) (list map[int64]*row, looked int, err error) {
	rows, err := of.s.pool.Query(ctx, of.s.slot.rows, numbers)
	if err != nil {
		return nil, 0, err
	}
	a := &answer{}
	taken, err := a.take(rows)
	if err != nil {
		return nil, 0, err
	}
	list, looked = make(map[int64]*row, len(taken)), len(numbers)
	for i := range taken {
		list[taken[i].seq] = &taken[i]
	}
	if a.cut {
		looked = slices.Index(numbers, taken[len(taken)-1].seq) + 1
	}
	return list, looked, nil
}

// nextListed returns rows that were in the table when the session began.
func (of *session) nextListed(ctx context.Context) (items []*pipeline.Item, err error) {
	of.s.mu.Lock()
	full := of.behind >= mostBehind
	of.s.mu.Unlock()
	if full {
		return nil, nil
	}
	for len(of.chunk) < of.s.opts.Batch && !of.list.empty() {
		of.chunk = append(of.chunk, of.list.next())
	}
	if len(of.chunk) == 0 {
		return nil, nil
	}
	defer hurry(of.s.wake) // all of them may be gone, or of partitions that are paused
	rows, looked, err := of.fetch(ctx, of.chunk)
	if err != nil {
		return nil, err
	}
	of.s.mu.Lock()
	defer of.s.mu.Unlock()
	for _, seq := range of.chunk[:looked] {
		if r := rows[seq]; r != nil {
			items = of.offer(items, r, of.listed)
		} else {
			of.progress.ack(of.listed) // it was deleted elsewhere
		}
	}
	of.chunk = slices.Delete(of.chunk, 0, looked)
	return items, nil
}

// nextBehind returns rows of a partition that was paused.
func (of *session) nextBehind(ctx context.Context) (items []*pipeline.Item, err error) {
	var from *partition
	var chunk []behindRow
	of.s.mu.Lock()
	for _, p := range of.partitions {
		if !p.paused && len(p.behind) > 0 {
			from, chunk = p, slices.Clone(p.behind[:min(len(p.behind), of.s.opts.Batch)])
			break
		}
	}
	of.s.mu.Unlock()
	if from == nil {
		return nil, nil
	}
	if of.small { // the first row may have the highest number, and be cut off each time
		chunk = chunk[:1]
	}
	numbers, xids := make([]int64, len(chunk)), make([]uint64, len(chunk))
	for i, b := range chunk {
		numbers[i], xids[i] = b.seq, b.txn.xid
	}
	// A row that is not visible yet would look like one that was deleted.
	if visible, err := of.s.visible(ctx, xids); err != nil || !visible {
		return nil, err
	}
	slices.Sort(numbers) // fetch reads in their order
	rows, looked, err := of.fetch(ctx, numbers)
	if err != nil {
		return nil, err
	}
	of.s.mu.Lock()
	defer of.s.mu.Unlock()
	taken := 0
	for _, b := range chunk {
		if r := rows[b.seq]; r != nil && of.holds(r, b.txn) {
			of.behind++
		} else if r != nil {
			items = append(items, of.item(from, r, b.txn))
		} else if b.seq <= numbers[looked-1] {
			of.progress.ack(b.txn) // it was deleted elsewhere
		} else {
			break
		}
		taken++
	}
	from.behind = from.behind[taken:]
	of.behind -= taken
	of.small = taken == 0
	hurry(of.s.room)
	hurry(of.s.wake)
	return items, nil
}

// nextDue returns rows whose time has come.
func (of *session) nextDue(ctx context.Context) (items []*pipeline.Item, err error) {
	if time.Now().Before(of.again) {
		return nil, nil
	}
	began, flying := time.Now(), of.inFlight(true)
	rows, err := of.s.pool.Query(ctx, of.s.slot.due, flying, of.s.opts.Batch, of.held.aggregates())
	if err != nil {
		return nil, err
	}
	list, err := (&answer{}).take(rows)
	if err != nil {
		return nil, err
	}
	of.s.mu.Lock()
	defer of.s.mu.Unlock()
	for i := range list {
		if p := of.partitionOf(orderOf(&list[i])); !p.paused {
			items = append(items, of.item(p, &list[i], nil))
		}
	}
	if len(items) == 0 { // it may have passed over many rows that are held
		of.again = time.Now().Add(max(lookAgain, 10*time.Since(began)))
	}
	return items, nil
}

// inFlight returns the rows that were returned and are not deleted: all of them, or those
// that waited for a time.
func (of *session) inFlight(due bool) []int64 {
	of.s.mu.Lock()
	defer of.s.mu.Unlock()
	list := []int64{}
	for seq, waited := range of.flying {
		if waited || !due {
			list = append(list, seq)
		}
	}
	return list
}

// nextReceived returns rows that the log has returned, behind those that were in the table.
func (of *session) nextReceived(context.Context) (items []*pipeline.Item, err error) {
	if len(of.chunk) > 0 || !of.list.empty() {
		return nil, nil
	}
	of.s.mu.Lock()
	defer of.s.mu.Unlock()
	n := min(len(of.buffer), of.s.opts.Batch)
	for i := range of.buffer[:n] {
		r := &of.buffer[i]
		of.bytes -= r.item.Bytes()
		items = of.offer(items, &r.row, r.txn)
	}
	of.buffer = slices.Delete(of.buffer, 0, n)
	hurry(of.s.room)
	if n > 0 && len(items) == 0 {
		hurry(of.s.wake)
	}
	return items, nil
}

// errMissed ends a session so that the next session delivers the missed rows.
var errMissed = errors.New("the table has rows that the log has not returned")

// sweep looks for old rows that the log has not returned: their deliver_at was removed, or
// the table was not in the publication for a while.
func (of *session) sweep(ctx context.Context) error {
	if time.Since(of.swept) < sweepEvery {
		return nil
	}
	of.s.mu.Lock()
	busy := of.behind > 0 || len(of.buffer) > 0
	of.s.mu.Unlock()
	if busy {
		return nil
	}
	var seq int64
	switch err := of.s.pool.QueryRow(ctx, of.s.slot.late, sweepAge, of.inFlight(false)).Scan(&seq); {
	case errors.Is(err, pgx.ErrNoRows):
		of.swept = time.Now()
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("row %d: %w", seq, errMissed)
}

// seqs are growing numbers, in about a byte for each.
type seqs struct {
	count     int
	bytes     []byte
	last, got int64
}

func (l *seqs) add(seq int64) {
	l.bytes = binary.AppendUvarint(l.bytes, uint64(seq-l.last))
	l.last = seq
	l.count++
}

func (l *seqs) empty() bool { return len(l.bytes) == 0 }

func (l *seqs) next() int64 {
	step, n := binary.Uvarint(l.bytes)
	l.bytes = l.bytes[n:]
	l.got += int64(step)
	return l.got
}

// snapshot has the transactions that were visible at a moment.
type snapshot struct {
	min, max uint64 // all below min are visible, and none from max on
	open     map[uint64]struct{}
	// until is behind the commits of all of them.
	until pglogrepl.LSN
}

// parse reads the text of a pg_snapshot, and a position.
func (s *snapshot) parse(text, until string) (err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return fmt.Errorf("a snapshot: %q", text)
	}
	s.open = map[uint64]struct{}{}
	number := func(text string) (n uint64) {
		n, failed := strconv.ParseUint(text, 10, 64)
		err = errors.Join(err, failed)
		return n
	}
	s.min, s.max = number(parts[0]), number(parts[1])
	if parts[2] != "" {
		for x := range strings.SplitSeq(parts[2], ",") {
			s.open[number(x)] = struct{}{}
		}
	}
	if err == nil {
		s.until, err = pglogrepl.ParseLSN(until)
	}
	return err
}

// whole returns the number of a transaction with these lower 32 bits that was open at about
// the same time as another one.
func whole(low uint32, near uint64) uint64 { return near + uint64(int64(int32(low-uint32(near)))) }

// has reports whether a transaction that was committed at a position was visible.
func (s *snapshot) has(xid uint64, committed pglogrepl.LSN) bool {
	if committed > s.until || xid >= s.max {
		return false
	}
	_, open := s.open[xid]
	return !open
}
