package outbox

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// busyPause is the least time between the beginnings of two reads, unless the
	// first one left something behind. idlePause is the most.
	busyPause, idlePause = 10 * time.Millisecond, time.Second
	// settleEvery is how often the reader asks which transactions have ended.
	settleEvery = 100 * time.Millisecond
	// wholeEvery is how often it looks at all rows, if that is quick. It finds the rows of
	// numbers that have begun again, as after TRUNCATE … RESTART IDENTITY or a restore.
	wholeEvery = time.Second
	// mostBytes limits what one read returns; one message may be larger.
	mostBytes = 8 << 20
)

// preparedPrefix begins the name of a transaction that was prepared before the server was
// started. Until then it has the name that it had as an open transaction.
const preparedPrefix = "-1/"

// reader is the state of Read. Only its goroutine uses it.
type reader struct {
	next  time.Time     // the time of the next read
	least time.Time     // no read is sooner, whatever the reason
	pause time.Duration // after a read that found nothing
	most  int           // the limit of the next read, in rows
	whole time.Time     // of the next look at all rows
	took  time.Duration // by the last read
	due   time.Time     // of the next look at rows whose time has come, if aggregates are held

	// Every transaction that took a number up to settled has ended. When highest was
	// the highest number that was known, those in writers may have had lower ones.
	settled, highest int64
	writers          map[string]struct{} // nil if none is waited for
	asked            time.Time
}

// Read implements pipeline.Source. It polls: more often while there are rows.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) {
	r := &s.reading
	for {
		s.wait(ctx)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		began := time.Now()
		items, more, err := s.poll(ctx)
		if ctx.Err() == nil {
			s.note(&s.readTrouble, missing(err))
		}
		switch {
		case len(items) > 0:
			r.pause = 0
		case err != nil:
			r.pause = idlePause
		case !more:
			r.pause = min(max(2*r.pause, busyPause), idlePause)
		}
		r.next, r.least = time.Time{}, time.Time{}
		if !more {
			r.least = began.Add(busyPause)
			r.next = began.Add(max(busyPause, retry.UpTo(r.pause, 0.5)))
		}
		if len(items) > 0 {
			return items, nil
		}
	}
}

// wait waits until the next read is due. It is due sooner if there is a reason to look.
func (s *Source) wait(ctx context.Context) {
	if d := time.Until(s.reading.next); d > 0 {
		_ = retry.SleepOrWake(ctx, d, s.wake)
	}
	if d := time.Until(s.reading.least); d > 0 {
		_ = retry.Sleep(ctx, d)
	}
}

// request is what one read asks for, for each shard.
type request struct {
	shards         []*shard
	numbers        []int16
	settled, next  []int64
	limits         []int64
	most, due      []int64  // of the late rows, and of those whose time has come
	held           []string // the aggregates that are held
	settles, whole bool
}

// request chooses the shards that are read now.
func (s *Source) request() *request {
	q := &request{}
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.valid) {
		return q
	}
	s.held.release(func(_ string, of *heldShard) {
		of.shard.settled = min(of.shard.settled, of.from)
		if sh := s.shards[of.shard.number]; sh != nil && sh != of.shard {
			sh.settled = 0
		}
	})
	q.held = s.held.aggregates()
	looks := len(q.held) == 0 || time.Now().After(s.reading.due)
	full := 0
	for _, sh := range s.shards {
		if !sh.paused {
			q.shards = append(q.shards, sh)
		}
		if sh.full {
			full++
		}
	}
	if len(q.shards) == 0 {
		return q
	}
	q.whole = time.Now().After(s.reading.whole)
	for _, sh := range q.shards {
		limit := max(s.reading.most/len(q.shards), 1)
		if sh.full {
			limit += s.reading.most / full
		}
		settled := sh.settled
		if q.whole {
			settled = 0
		}
		q.settles = q.settles || sh.settled < sh.next
		q.numbers, q.settled, q.next = append(q.numbers, sh.number), append(q.settled, settled), append(q.next, sh.next)
		most, due := int64(len(sh.flying)+limit), int64(0)
		if looks {
			due = most
		}
		q.limits, q.most, q.due = append(q.limits, int64(limit)), append(q.most, most), append(q.due, due)
	}
	q.settles = q.settles && time.Since(s.reading.asked) >= settleEvery
	return q
}

// lateRow is the place of a row that an earlier read has passed.
type lateRow struct {
	Shard int16
	Seq   int64
	Due   bool // its time has come
}

// answer is what the server said.
type answer struct {
	writers map[string]struct{}
	fast    []row
	late    []lateRow // of all, also those in flight
	rows    []row     // those of late that are not
	bytes   int64
	cut     bool // there are more rows than were taken
	// taken is, for some shards, the number up to which all late rows were taken. There are
	// more behind it, so the new rows of the shard are not taken.
	taken map[int16]int64
}

// poll reads once. It returns whether there is more to read now.
func (s *Source) poll(ctx context.Context) (items []*pipeline.Item, more bool, err error) {
	q := s.request()
	if len(q.shards) == 0 {
		return nil, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.opts.Lease)
	defer cancel()
	a, err := s.ask(ctx, q)
	if err != nil {
		return nil, false, fmt.Errorf("outbox: read: %w", err)
	}
	if err := s.askLate(ctx, q, a); err != nil {
		return nil, false, fmt.Errorf("outbox: read: %w", err)
	}
	items, more, settles := s.accept(q, a)
	if settles {
		s.settle(q, a)
	}
	r := &s.reading
	r.most = min(r.most+r.most/4+1, s.opts.Batch)
	if a.cut {
		r.most = max(r.most/2, 1)
	}
	return items, more || a.cut || len(a.taken) > 0, nil
}

// ask sends the statements of one read in one round trip. Their order matters. Which
// transactions have ended is asked first, so that the others see their rows. Then come
// the new rows, and after them the late ones: a row that was written after a late row
// of its aggregate was committed is seen no sooner than that one.
func (s *Source) ask(ctx context.Context, q *request) (*answer, error) {
	a := &answer{taken: map[int16]int64{}}
	var b pgx.Batch
	if q.settles {
		s.reading.asked = time.Now()
		b.Queue(s.sql.writers, s.sql.table).Query(func(rows pgx.Rows) error {
			a.writers = map[string]struct{}{}
			var name string
			_, err := pgx.ForEachRow(rows, []any{&name}, func() error {
				a.writers[name] = struct{}{}
				return nil
			})
			return err
		})
	}
	b.Queue(s.sql.fast, q.numbers, q.next, q.limits, slices.Max(q.limits)).Query(func(rows pgx.Rows) (err error) {
		a.fast, err = a.take(rows)
		return err
	})
	late, args := s.sql.late, []any{q.numbers, q.settled, q.next, q.most, q.due}
	if len(q.held) > 0 {
		late, args = s.sql.lateUnheld, append(args, q.held)
	}
	b.Queue(late, args...).Query(func(rows pgx.Rows) (err error) {
		a.late, err = pgx.CollectRows(rows, pgx.RowToStructByPos[lateRow])
		return err
	})
	began := time.Now()
	err := s.pool.SendBatch(ctx, &b).Close()
	s.reading.took = time.Since(began)
	if time.Now().After(s.reading.due) {
		s.reading.due = time.Now().Add(max(lookAgain, 10*s.reading.took)) // it may pass over many rows that are held
	}
	return a, err
}

// take reads rows up to the limit in bytes. The rest of them is not kept.
func (a *answer) take(rows pgx.Rows) (list []row, err error) {
	for rows.Next() {
		if a.bytes > mostBytes {
			a.cut = true
			continue
		}
		r, err := scan(rows)
		if err != nil {
			rows.Close()
			return nil, err
		}
		a.bytes += r.item.Bytes()
		list = append(list, r)
	}
	return list, rows.Err()
}

// askLate reads the late rows that are not in flight. A row that is acknowledged in the
// meantime was deleted before it left flying, so this statement does not see it.
func (s *Source) askLate(ctx context.Context, q *request, a *answer) error {
	var late []lateRow
	counts, last := map[int16]int64{}, map[int16]int64{}
	s.mu.Lock()
	for _, r := range a.late {
		if !r.Due {
			counts[r.Shard]++
			last[r.Shard] = max(last[r.Shard], r.Seq)
		}
		if sh := s.shards[r.Shard]; sh != nil {
			if _, flies := sh.flying[r.Seq]; !flies {
				late = append(late, r)
			}
		}
	}
	s.mu.Unlock()
	for i, number := range q.numbers {
		if counts[number] >= q.most[i] {
			a.taken[number] = last[number]
		}
	}
	if len(late) == 0 {
		return nil
	}
	slices.SortFunc(late, func(a, b lateRow) int { return cmp.Compare(a.Seq, b.Seq) })
	seqs := make([]int64, 0, len(late))
	for _, r := range late[:min(len(late), s.opts.Batch)] {
		seqs = append(seqs, r.Seq)
	}
	rows, err := s.pool.Query(ctx, s.sql.rows, seqs)
	if err != nil {
		return err
	}
	of := &answer{}
	a.rows, err = of.take(rows)
	rest := late[len(seqs):]
	if of.cut { // the rows are in the order of their numbers
		a.cut = true
		end := a.rows[len(a.rows)-1].seq
		rest = late[slices.IndexFunc(late, func(r lateRow) bool { return r.Seq == end })+1:]
	}
	for _, r := range rest {
		if taken, cut := a.taken[r.Shard]; !cut || r.Seq <= taken {
			a.taken[r.Shard] = r.Seq - 1
		}
	}
	return err
}

// accept makes items of the rows whose shards this process still owns: late rows before
// the others. It reports whether a shard has more, and whether the read settles numbers: not
// if the leases have ended, or if numbers have begun again.
func (s *Source) accept(q *request, a *answer) (items []*pipeline.Item, more, settles bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Now().After(s.valid) {
		return nil, false, false
	}
	at := map[int16]int{} // the place of a shard in the request
	for i, sh := range q.shards {
		at[sh.number] = i
	}
	due := map[int64]struct{}{}
	for _, r := range a.late {
		if r.Due {
			due[r.Seq] = struct{}{}
		}
	}
	counts, restarted := make([]int64, len(q.shards)), false
	for i, r := range slices.Concat(a.rows, a.fast) {
		n, asked := at[r.number]
		sh := s.shards[r.number]
		if !asked || sh != q.shards[n] {
			continue // it was lost in the meantime
		}
		if i >= len(a.rows) {
			if _, cut := a.taken[r.number]; cut {
				continue // it could be behind a late one of its aggregate
			}
			sh.next = r.seq
			counts[n]++
		}
		if s.held.at(r.item) != nil {
			continue // it is read again when its aggregate is released
		}
		if _, waited := due[r.seq]; i < len(a.rows) && !waited && r.seq <= sh.settled {
			restarted = true
		}
		sh.flying[r.seq] = struct{}{}
		r.item.Partition, r.item.Ref = sh.partition, sh
		items = append(items, r.item)
	}
	for i, sh := range q.shards {
		_, cut := a.taken[sh.number]
		sh.full = cut || counts[i] >= q.limits[i]
		more = more || sh.full
	}
	if restarted {
		s.restart()
	}
	return items, more, !restarted
}

// restart begins to read from the first number again, except what is in flight: a row has
// appeared below the numbers that were settled. The caller holds Source.mu.
func (s *Source) restart() {
	r := &s.reading
	r.settled, r.highest, r.writers = 0, 0, nil
	for _, sh := range s.shards {
		sh.settled, sh.next = 0, 0
		for seq := range sh.flying {
			sh.next = max(sh.next, seq)
		}
	}
}

// settle notes up to which number nothing can become visible any more. This read came
// after the question for the writers, so it found all late rows up to there.
func (s *Source) settle(q *request, a *answer) {
	r := &s.reading
	if q.whole && len(a.taken) == 0 {
		r.whole = time.Now().Add(max(wholeEvery, 10*r.took))
	}
	if a.writers != nil {
		for name := range r.writers {
			if _, still := a.writers[name]; !still {
				delete(r.writers, name)
			}
		}
		for name := range a.writers {
			if r.writers != nil && strings.HasPrefix(name, preparedPrefix) {
				r.writers[name] = struct{}{} // it may have been there under another name
			}
		}
		if r.writers != nil && len(r.writers) == 0 {
			r.settled, r.writers = r.highest, nil
		}
		if r.writers == nil {
			// The numbers up to the highest were taken before the question.
			highest := slices.Max(q.next)
			if len(a.writers) == 0 {
				r.settled = max(r.settled, highest)
			} else {
				r.writers, r.highest = a.writers, highest
			}
		}
	}
	for i, sh := range q.shards {
		read := q.next[i]
		if taken, cut := a.taken[sh.number]; cut {
			read = taken
		}
		sh.settled = max(sh.settled, min(r.settled, read))
	}
}
