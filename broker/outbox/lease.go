package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// lookEvery is how often a relay looks for other relays and for free shards.
const lookEvery = time.Second

// leases takes this process's share of the shards, renews their leases, and gives shards
// back. Only its goroutine uses it.
type leases struct {
	*Source
	renewed time.Time
	// leaving are shards that are no longer read, until the messages of theirs that are
	// being processed are settled. Then they are given back, unless they are lost.
	leaving map[*shard]leave
	// unsaid is how many missing shards a request was to add whose answer did not come.
	unsaid int
}

// leave says whether the lease of a shard was lost.
type leave struct{ lost bool }

// keep keeps the shards until ctx ends.
func (s *Source) keep(ctx context.Context) {
	ls := &leases{Source: s, leaving: map[*shard]leave{}}
	for ctx.Err() == nil {
		began := time.Now()
		err := ls.tend(ctx)
		if err != nil {
			err = fmt.Errorf("leases: %w", missing(err))
		}
		if ctx.Err() == nil {
			s.note(&s.leaseTrouble, err)
		}
		_ = retry.Sleep(ctx, time.Until(began.Add(min(lookEvery, s.opts.Lease/6))))
	}
}

// tend looks once after the shards.
func (ls *leases) tend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, ls.opts.Lease/3)
	defer cancel()
	ls.expire()
	if err := ls.release(ctx); err != nil {
		return err
	}
	if time.Since(ls.renewed) >= ls.opts.Lease/3 {
		if err := ls.renew(ctx); err != nil {
			return err
		}
	}
	var others, there int
	var free bool
	if err := ls.pool.QueryRow(ctx, ls.sql.look, ls.owner).Scan(&others, &free, &there); err != nil {
		return err
	}
	switch {
	case there < shardCount:
		if err := ls.repair(ctx, shardCount-there); err != nil {
			return err
		}
	case ls.unsaid > 0:
		ls.repaired(ls.unsaid)
	}
	share := (shardCount + others) / (others + 1) // rounded up
	mine := ls.owned()
	if len(mine) > share {
		ls.drop(mine[share:], leave{})
		return ls.release(ctx)
	}
	for _, l := range ls.leaving {
		if !l.lost {
			share--
		}
	}
	if want := share - len(mine); free && want > 0 {
		return ls.take(ctx, want)
	}
	return nil
}

// repair adds the shards that the table lacks, as after TRUNCATE or a restore of a part of
// the database.
func (ls *leases) repair(ctx context.Context, missing int) error {
	added, err := ls.pool.Exec(ctx, ls.sql.addShards, shardCount, ls.opts.Lease.Microseconds())
	if err != nil {
		ls.unsaid = missing // they may be there by now
		return err
	}
	if n := max(int(added.RowsAffected()), ls.unsaid); n > 0 {
		ls.repaired(n)
	}
	return nil
}

// repaired tells that shards were added.
func (ls *leases) repaired(n int) {
	ls.unsaid = 0
	ls.event(fmt.Sprintf("%d of the %d rows of %s were missing and were added; relays take these shards in %v, when older leases have ended", n, shardCount, ls.sql.shardTable, ls.opts.Lease))
}

// owned returns the shards that are read, in the order of their numbers.
func (s *Source) owned() []*shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*shard, 0, len(s.shards))
	for _, sh := range s.shards {
		list = append(list, sh)
	}
	slices.SortFunc(list, func(a, b *shard) int { return int(a.number) - int(b.number) })
	return list
}

// expire drops all shards if their leases may have ended.
func (ls *leases) expire() {
	ls.mu.Lock()
	ended := time.Now().After(ls.valid)
	ls.mu.Unlock()
	if !ended {
		return
	}
	ls.drop(ls.owned(), leave{lost: true})
	for sh := range ls.leaving {
		ls.leaving[sh] = leave{lost: true}
	}
}

// drop stops reading shards.
func (ls *leases) drop(list []*shard, l leave) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, sh := range list {
		delete(ls.shards, sh.number)
		ls.leaving[sh] = l
	}
}

// release gives back the shards that are no longer read, as far as none of their
// messages is being processed. It waits for a short time for those.
func (ls *leases) release(ctx context.Context) error {
	if len(ls.leaving) == 0 {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, min(lookEvery, ls.opts.Lease/6)/2)
	defer cancel()
	var closing sync.WaitGroup
	var mu sync.Mutex
	var idle []*shard
	for sh := range ls.leaving {
		closing.Go(func() {
			if sh.partition.Close(wait) == nil {
				mu.Lock()
				defer mu.Unlock()
				idle = append(idle, sh)
			}
		})
	}
	closing.Wait()
	var numbers []int16
	var epochs []int64
	for _, sh := range idle {
		if !ls.leaving[sh].lost {
			numbers, epochs = append(numbers, sh.number), append(epochs, sh.epoch)
		}
	}
	if len(numbers) > 0 {
		if _, err := ls.pool.Exec(ctx, ls.sql.release, ls.owner, numbers, epochs); err != nil {
			return err
		}
	}
	for _, sh := range idle {
		delete(ls.leaving, sh)
	}
	return nil
}

// renew says that this process lives, and extends its leases. It drops the shards that
// have another owner, and all of them if the outbox belongs to another pipeline by now.
func (ls *leases) renew(ctx context.Context) error {
	began := time.Now()
	span := ls.opts.Lease.Microseconds()
	if err := ls.rebind(ctx); err != nil {
		if errors.Is(err, semel.ErrInvalidRequest) {
			ls.drop(ls.owned(), leave{})
		}
		return err
	}
	if _, err := ls.pool.Exec(ctx, ls.sql.live, ls.owner, span); err != nil {
		return err
	}
	list := ls.owned()
	for sh, l := range ls.leaving {
		if !l.lost {
			list = append(list, sh)
		}
	}
	numbers, epochs := make([]int16, len(list)), make([]int64, len(list))
	for i, sh := range list {
		numbers[i], epochs[i] = sh.number, sh.epoch
	}
	rows, err := ls.pool.Query(ctx, ls.sql.renew, ls.owner, span, numbers, epochs)
	if err != nil {
		return err
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil {
		return err
	}
	lost := slices.DeleteFunc(list, func(sh *shard) bool { return slices.Contains(kept, sh.number) })
	ls.drop(lost, leave{lost: true})
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.valid, ls.renewed = began.Add(ls.opts.Lease), began
	return nil
}

// take takes free shards. It leaves out those whose messages this process still
// processes under an earlier lease.
func (ls *leases) take(ctx context.Context, want int) error {
	except := make([]int16, 0, len(ls.leaving))
	for sh := range ls.leaving {
		except = append(except, sh.number)
	}
	rows, err := ls.pool.Query(ctx, ls.sql.take, ls.owner, ls.opts.Lease.Microseconds(), want, except)
	if err != nil {
		return err
	}
	var number int16
	var epoch int64
	var list []*shard
	if _, err := pgx.ForEachRow(rows, []any{&number, &epoch}, func() error {
		list = append(list, &shard{number: number, epoch: epoch, partition: pipeline.NewPartition(fmt.Sprintf("outbox/%d", number)), flying: map[int64]struct{}{}})
		return nil
	}); err != nil {
		return err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for _, sh := range list {
		ls.shards[sh.number] = sh
	}
	if len(list) > 0 {
		ls.hurry()
	}
	return nil
}
