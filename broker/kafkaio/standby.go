package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/pipeline"
)

// standby keeps the states of those partitions up to date that no session of
// this process works on. A session that is given one takes its state over and
// reads the end of the changelog alone. What a standby applied is committed and
// was read in order, as in a restore that has not come to its end; whether it is
// all there is, and still there, is for the session to find out, with a barrier.
// One goroutine runs it.
type standby struct {
	t     *Transactor
	parts map[partitionID]*copied // whose slots it holds
	keys  int                     // read since the last report
	lag   int64                   // as it was last reported, or -1

	mu     sync.Mutex // guards what follows
	wanted []partitionID
	wake   context.CancelFunc // ends the wait of the moment
}

// copied is a partition of which a copy is kept.
type copied struct {
	part
	next int64 // the offset behind what was read of the changelog
}

func newStandby(t *Transactor) *standby {
	return &standby{t: t, parts: map[partitionID]*copied{}, lag: -1}
}

// standbyScan is how often a standby looks for partitions that nobody holds, and
// for how far it is behind. It begins that much later than the sessions, which
// have what is theirs by then.
const standbyScan = time.Second

// run keeps copies until ctx ends. What goes wrong is told and tried again: the
// sessions do not need it.
func (b *standby) run(ctx context.Context) {
	defer b.letGo()
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
		b.t.observe(pipeline.Event{Kind: pipeline.EventSourceChanged, Reason: "the standby begins anew", Err: err})
	}
}

// live takes the partitions that are free and follows what is held, until there
// are more of them. It also ends where a session asks for one.
func (b *standby) live(ctx context.Context) error {
	for _, id := range b.t.free() {
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
	for _, p := range b.parts {
		parts = append(parts, &p.part)
	}
	from, err := b.t.positions(soon, parts)
	if err != nil {
		return err
	}
	for _, p := range b.parts {
		p.next = from[b.t.opts.changelogOf(p.id.topic)][p.id.number].EpochOffset().Offset
	}
	client, err := kgo.NewClient(b.t.clientOptions(
		kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.KeepControlRecords(), kgo.FetchMaxWait(time.Second), kgo.FetchMaxBytes(4<<20), kgo.FetchMaxPartitionBytes(1<<20),
	)...)
	if err != nil {
		return fmt.Errorf("kafkaio: standby: %w", err)
	}
	defer client.Close()
	return b.follow(ctx, client)
}

// hold takes a partition, if it still is free, and what the local copy has of it.
func (b *standby) hold(ctx context.Context, id partitionID) (err error) {
	at := b.t.takeFree(id, b)
	if at == nil {
		return nil
	}
	if at.state == nil {
		if at.state, err = b.t.load(ctx, id); err != nil {
			b.t.release(id, b)
			return err
		}
	}
	b.parts[id] = &copied{part: part{id: id, slot: at}}
	return nil
}

// follow applies what is committed to the changelogs.
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
			if len(b.t.free()) > 0 {
				return nil
			}
		}
	}
	return nil
}

func (b *standby) applyAll(ctx context.Context, fetches kgo.Fetches) (err error) {
	now := b.t.now()
	fetches.EachPartition(func(f kgo.FetchTopicPartition) {
		if f.Err != nil && !errors.Is(f.Err, context.DeadlineExceeded) && !errors.Is(f.Err, context.Canceled) {
			err = errors.Join(err, fmt.Errorf("kafkaio: standby: read %s/%d: %w", f.Topic, f.Partition, f.Err))
		}
		p := b.copyOf(f.Topic, f.Partition)
		if p == nil || len(f.Records) == 0 || err != nil {
			return
		}
		next := f.Records[len(f.Records)-1].Offset + 1
		records := slices.DeleteFunc(f.Records, func(r *kgo.Record) bool { return r.Attrs.IsControl() })
		// No barrier has the zero nonce: everything is read.
		n, _, failed := b.t.applyAll(ctx, &p.part, records, digest.Secret{}, now)
		b.keys += n
		p.next, err = next, failed
	})
	return err
}

// copyOf returns what is held for a partition of a changelog, or nil.
func (b *standby) copyOf(changelog string, number int32) *copied {
	for input := range b.t.sizes {
		if b.t.opts.changelogOf(input) == changelog {
			return b.parts[partitionID{input, number}]
		}
	}
	return nil
}

// report tells how many records of the changelogs the copies lack, if that has
// changed or something was read.
func (b *standby) report(ctx context.Context) {
	lag := int64(0)
	if len(b.parts) > 0 {
		ctx, cancel := b.until(ctx, 5*time.Second)
		defer cancel()
		var names []string
		for input := range b.t.sizes {
			names = append(names, b.t.opts.changelogOf(input))
		}
		ends, err := b.t.adm().ListEndOffsets(ctx, names...)
		if err != nil || ends.Error() != nil {
			return // what cannot be reached tells of itself when it is read
		}
		for id, p := range b.parts {
			if end, ok := ends.Lookup(b.t.opts.changelogOf(id.topic), id.number); ok {
				lag += max(end.Offset-p.next, 0)
			}
		}
	}
	if lag == b.lag && b.keys == 0 {
		return
	}
	b.t.observe(pipeline.Event{Kind: pipeline.EventStandby, Count: int(lag), Reason: fmt.Sprintf("copies of %d partitions, %d keys were read", len(b.parts), b.keys)})
	b.lag, b.keys = lag, 0
}

// ask is called by a session that was given a partition which the standby holds.
func (b *standby) ask(id partitionID) {
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

// giveBack lets go of what was asked for, and ends its reading.
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
		b.t.release(id, b)
		name := b.t.opts.changelogOf(id.topic)
		given[name] = append(given[name], id.number)
	}
	if client != nil && len(given) > 0 {
		client.RemoveConsumePartitions(given)
	}
}

func (b *standby) letGo() {
	for id := range b.parts {
		b.t.release(id, b)
		delete(b.parts, id)
	}
}
