package outbox

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel/pipeline"
)

// lookEvery is how often a relay looks for other relays and for free shards.
const lookEvery = time.Second

// keeper keeps the shards of a source: its share of them, by leases. Only its goroutine
// uses it.
type keeper struct {
	*Source
	renewed time.Time
	// leaving are shards that are no longer read, until the messages of theirs that are
	// being processed are settled. Then they are given back, unless they are lost.
	leaving map[*shard]leave
}

// leave says whether the lease of a shard was lost.
type leave struct{ lost bool }

// keep keeps the shards until ctx ends.
func (s *Source) keep(ctx context.Context) {
	k := &keeper{Source: s, leaving: map[*shard]leave{}}
	for ctx.Err() == nil {
		began := time.Now()
		err := k.tend(ctx)
		if err != nil {
			err = fmt.Errorf("leases: %w", err)
		}
		if ctx.Err() == nil {
			s.note(&s.leaseTrouble, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(min(lookEvery, s.opts.Lease/6)))):
		}
	}
}

// tend looks once after the shards.
func (k *keeper) tend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, k.opts.Lease/3)
	defer cancel()
	k.expire()
	if err := k.release(ctx); err != nil {
		return err
	}
	if time.Since(k.renewed) >= k.opts.Lease/3 {
		if err := k.renew(ctx); err != nil {
			return err
		}
	}
	var others int
	var free bool
	if err := k.pool.QueryRow(ctx, k.sql.look, k.owner).Scan(&others, &free); err != nil {
		return err
	}
	share := (shardCount + others) / (others + 1) // rounded up
	mine := k.owned()
	if len(mine) > share {
		k.drop(mine[share:], leave{})
		return k.release(ctx)
	}
	for _, l := range k.leaving {
		if !l.lost {
			share--
		}
	}
	if want := share - len(mine); free && want > 0 {
		return k.take(ctx, want)
	}
	return nil
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
func (k *keeper) expire() {
	k.mu.Lock()
	ended := time.Now().After(k.valid)
	k.mu.Unlock()
	if !ended {
		return
	}
	k.drop(k.owned(), leave{lost: true})
	for sh := range k.leaving {
		k.leaving[sh] = leave{lost: true}
	}
}

// drop stops reading shards.
func (k *keeper) drop(list []*shard, l leave) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, sh := range list {
		delete(k.shards, sh.number)
		k.leaving[sh] = l
	}
}

// release gives back the shards that are no longer read, as far as none of their
// messages is being processed. It waits for a short time for those.
func (k *keeper) release(ctx context.Context) error {
	if len(k.leaving) == 0 {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, min(lookEvery, k.opts.Lease/6)/2)
	defer cancel()
	var closing sync.WaitGroup
	var mu sync.Mutex
	var idle []*shard
	for sh := range k.leaving {
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
		if !k.leaving[sh].lost {
			numbers, epochs = append(numbers, sh.number), append(epochs, sh.epoch)
		}
	}
	if len(numbers) > 0 {
		if _, err := k.pool.Exec(ctx, k.sql.release, k.owner, numbers, epochs); err != nil {
			return err
		}
	}
	for _, sh := range idle {
		delete(k.leaving, sh)
	}
	return nil
}

// renew says that this process lives, and extends its leases. It drops the shards that
// have another owner.
func (k *keeper) renew(ctx context.Context) error {
	began := time.Now()
	span := k.opts.Lease.Microseconds()
	if _, err := k.pool.Exec(ctx, k.sql.live, k.owner, span); err != nil {
		return err
	}
	list := k.owned()
	for sh, l := range k.leaving {
		if !l.lost {
			list = append(list, sh)
		}
	}
	numbers, epochs := make([]int16, len(list)), make([]int64, len(list))
	for i, sh := range list {
		numbers[i], epochs[i] = sh.number, sh.epoch
	}
	rows, err := k.pool.Query(ctx, k.sql.renew, k.owner, span, numbers, epochs)
	if err != nil {
		return err
	}
	kept, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil {
		return err
	}
	lost := slices.DeleteFunc(list, func(sh *shard) bool { return slices.Contains(kept, sh.number) })
	k.drop(lost, leave{lost: true})
	k.mu.Lock()
	defer k.mu.Unlock()
	k.valid, k.renewed = began.Add(k.opts.Lease), began
	return nil
}

// take takes free shards. It leaves out those whose messages this process still
// processes under an earlier lease.
func (k *keeper) take(ctx context.Context, want int) error {
	except := make([]int16, 0, len(k.leaving))
	for sh := range k.leaving {
		except = append(except, sh.number)
	}
	rows, err := k.pool.Query(ctx, k.sql.take, k.owner, k.opts.Lease.Microseconds(), want, except)
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
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, sh := range list {
		k.shards[sh.number] = sh
	}
	if len(list) > 0 {
		k.hurry()
	}
	return nil
}
