package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/pipeline"
)

// standby keeps the states of partitions that no session of this process works on up to
// date. A session that is assigned one takes its state over, and reads only the end of
// the changelog. The records that a standby applied are committed and in order, as in
// an unfinished restore. The session checks with a barrier whether they are complete
// and still exist. One goroutine runs it.
type standby struct {
	t     *Transactor
	parts map[cluster.Partition]*copied // whose slots it holds
	keys  int                           // read since the last report
	lag   int64                         // as last reported, or -1

	mu     sync.Mutex // guards the fields below
	wanted []cluster.Partition
	wake   context.CancelFunc // ends the current wait
}

// copied is a partition with a copy on disk.
type copied struct {
	part
	next map[string]int64 // the offset after the last record that was read, by changelog
}

func newStandby(t *Transactor) *standby {
	return &standby{t: t, parts: map[cluster.Partition]*copied{}, lag: -1}
}

// standbyScan is how often a standby looks for free partitions and measures its lag. It starts
// this time later than the sessions, so they have their partitions by then.
const standbyScan = time.Second

// run keeps copies until ctx ends. It reports errors and retries: the sessions do not
// need the standby.
func (b *standby) run(ctx context.Context) {
	defer b.releaseAll()
	most := standbyScan
	for failures := 0; ctx.Err() == nil; {
		if wait, cancel := b.until(ctx, most); failures > 0 || len(b.parts) == 0 {
			<-wait.Done()
			cancel()
		} else {
			cancel()
		}
		b.giveBack(nil)
		err := b.live(ctx)
		if most = standbyScan; err == nil || ctx.Err() != nil || b.asked() {
			failures = 0
			continue
		}
		failures++
		most = min(20*time.Millisecond<<min(failures, 8), 5*time.Second)
		b.t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "the standby restarts", Err: err})
	}
}

// live takes free partitions and follows their changelogs, until there are more of them
// or a session asks for one.
func (b *standby) live(ctx context.Context) error {
	for _, id := range b.t.slots.free(b.t.sizes) {
		if b.asked() {
			return nil
		}
		if err := b.hold(ctx, id); err != nil {
			return err
		}
	}
	if len(b.parts) == 0 {
		b.report(ctx)
		return nil
	}
	soon, cancel := b.until(ctx, time.Minute)
	defer cancel()
	var parts []*part
	for id, p := range b.parts {
		if err := (restorer{b.t}).load(ctx, id, p.slot); err != nil { // what is broken
			return err
		}
		parts = append(parts, &p.part)
	}
	from, err := restorer{b.t}.positions(soon, parts)
	if err != nil {
		return err
	}
	for _, p := range b.parts {
		p.next = map[string]int64{}
		for _, name := range b.t.changelogs.names(p.ID.Topic) {
			p.next[name] = from[name][p.ID.Number].EpochOffset().Offset
		}
	}
	client, err := kgo.NewClient(b.t.clientOptions(
		kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.KeepControlRecords(), kgo.FetchMaxWait(time.Second), kgo.FetchMaxBytes(4<<20), kgo.FetchMaxPartitionBytes(1<<20),
	)...)
	if err != nil {
		return fmt.Errorf("kafka: standby: %w", err)
	}
	defer client.Close()
	return b.follow(ctx, client)
}

// hold takes a partition, if it is still free, with its copy on disk.
func (b *standby) hold(ctx context.Context, id cluster.Partition) error {
	at := b.t.slots.takeFree(id, b)
	if at == nil {
		return nil
	}
	if err := (restorer{b.t}).load(ctx, id, at); err != nil {
		b.t.slots.release(id, b)
		return err
	}
	b.parts[id] = &copied{part: part{Chain: operator.Chain{Partition: operator.Partition{ID: id}}, slot: at}}
	return nil
}

// follow applies committed records of the changelogs.
func (b *standby) follow(ctx context.Context, client *kgo.Client) error {
	scanned := time.Now()
	for ctx.Err() == nil {
		soon, cancel := b.until(ctx, standbyScan)
		fetches := client.PollFetches(soon)
		cancel()
		if err := b.applyAll(ctx, fetches); err != nil {
			return err
		}
		if b.giveBack(client); len(b.parts) == 0 {
			return nil
		}
		if time.Since(scanned) >= standbyScan {
			scanned = time.Now()
			b.report(ctx)
			if len(b.t.slots.free(b.t.sizes)) > 0 {
				return nil
			}
		}
	}
	return nil
}

func (b *standby) applyAll(ctx context.Context, fetches kgo.Fetches) (err error) {
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if f.Err != nil && !errors.Is(f.Err, context.DeadlineExceeded) && !errors.Is(f.Err, context.Canceled) {
			err = errors.Join(err, fmt.Errorf("kafka: standby: read %s/%d: %w", f.Topic, f.Partition, f.Err))
		}
		p := b.copyOf(f.Topic, f.Partition)
		if p == nil || len(f.Records) == 0 || err != nil {
			return
		}
		next := f.Records[len(f.Records)-1].Offset + 1
		records := slices.DeleteFunc(f.Records, func(r *kgo.Record) bool { return r.Attrs.IsControl() })
		for i, l := range p.slot.logs {
			if l.Topic() != f.Topic {
				continue
			}
			var n int
			n, _, err = l.Read(ctx, records, state.ID{}) // no barrier has the zero nonce, so everything is read
			if i == 0 {
				b.keys += n
			}
		}
		p.slot.measure()
		p.next[f.Topic] = next
	})
	return err
}

// copyOf returns the copy of a changelog partition, or nil.
func (b *standby) copyOf(changelog string, number int32) *copied {
	for input := range b.t.sizes {
		if slices.Contains(b.t.changelogs.names(input), changelog) {
			return b.parts[cluster.Partition{Topic: input, Number: number}]
		}
	}
	return nil
}

// report reports how many changelog records the copies lack, if the number has changed
// or records were read.
func (b *standby) report(ctx context.Context) {
	lag := int64(0)
	if len(b.parts) > 0 {
		ctx, cancel := b.until(ctx, 5*time.Second)
		defer cancel()
		ends, err := b.t.adm().ListEndOffsets(ctx, b.t.changelogs.names(b.t.decided...)...)
		if err != nil || ends.Error() != nil {
			return // reading reports unreachable partitions
		}
		for id, p := range b.parts {
			for name, next := range p.next {
				if end, ok := ends.Lookup(name, id.Number); ok {
					lag += max(end.Offset-next, 0)
				}
			}
		}
	}
	if lag == b.lag && b.keys == 0 {
		return
	}
	b.t.observe(pipeline.Event{Kind: pipeline.EventStandby, Count: int(lag), Reason: fmt.Sprintf("copies of %d partitions, %d keys were read", len(b.parts), b.keys)})
	b.lag, b.keys = lag, 0
}

// ask is called by a session that was assigned a partition of the standby.
func (b *standby) ask(id cluster.Partition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wanted = append(b.wanted, id)
	if b.wake != nil {
		b.wake()
	}
}

func (b *standby) asked() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.wanted) > 0
}

// until returns a context that ends after most, or when a session asks.
func (b *standby) until(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, most)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wake = cancel
	if len(b.wanted) > 0 {
		cancel()
	}
	return ctx, cancel
}

// giveBack releases partitions that sessions ask for, and stops reading them.
func (b *standby) giveBack(client *kgo.Client) {
	b.mu.Lock()
	wanted := b.wanted
	b.wanted = nil
	b.mu.Unlock()
	given := map[string][]int32{}
	for _, id := range wanted {
		if b.parts[id] == nil {
			continue
		}
		delete(b.parts, id)
		b.t.slots.release(id, b)
		for _, name := range b.t.changelogs.names(id.Topic) {
			given[name] = append(given[name], id.Number)
		}
	}
	if client != nil && len(given) > 0 {
		client.RemoveConsumePartitions(given)
	}
}

func (b *standby) releaseAll() {
	for id := range b.parts {
		b.t.slots.release(id, b)
		delete(b.parts, id)
	}
}
