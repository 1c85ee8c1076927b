package kafkaio

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
)

// done waits until the group has committed all that was written.
func (b *bubble) done(group string) {
	b.Helper()
	if !within(time.Minute, func() bool {
		info := b.cluster.GroupInfo(group)
		if info == nil {
			return false
		}
		for _, p := range b.cluster.PartitionInfos("in") {
			if c, ok := info.Commits["in"][p.Partition]; p.HighWatermark > 0 && (!ok || c.Offset < p.HighWatermark) {
				return false
			}
		}
		return true
	}) {
		b.Errorf("not all was read: %+v", b.cluster.GroupInfo(group))
	}
}

// TestMembersComeAndGo lets programs join, leave and die at random, and checks
// that together they write each key once.
func TestMembersComeAndGo(t *testing.T) {
	t.Parallel()
	for range 3 {
		seed := rand.Uint64()
		t.Run("", func(t *testing.T) {
			t.Parallel()
			t.Logf("seed %d", seed)
			random := rand.New(rand.NewPCG(seed, 0))
			inRealTime(t, 6, func(b *bubble) {
				dirs := []string{t.TempDir(), t.TempDir(), ""}
				programs := make([]*program, len(dirs))
				begin := func(i int) {
					opts := b.options()
					opts.Instance = fmt.Sprintf("g-%d", i)
					opts.StateDir = dirs[i]
					opts.Sessions = 1 + i%2
					opts.Interval = 20 * time.Millisecond
					opts.SessionTimeout = time.Second
					opts.TransactionTimeout = 2 * time.Second
					opts.Shutdown = 3 * time.Second
					programs[i] = b.start(opts)
				}
				begin(0)
				next := 0
				for range 40 {
					from := max(0, next-random.IntN(60))
					n := 1 + random.IntN(100)
					b.write(numbered(from, n, 6)...)
					next = max(next, from+n)
					pause(context.Background(), time.Duration(random.IntN(100))*time.Millisecond)
					i := random.IntN(len(programs))
					switch {
					case programs[i] == nil:
						begin(i)
					case random.IntN(4) > 0: // it goes on
					case random.IntN(2) == 0:
						programs[i].kill()
						<-programs[i].done
						programs[i] = nil
					default:
						programs[i].stop()
						programs[i] = nil
					}
				}
				if programs[0] == nil {
					begin(0)
				}
				b.done("g")
				for _, p := range programs {
					if p != nil {
						p.stop()
					}
				}
				b.exactly(next)
			}, kfake.NumBrokers(3))
		})
	}
}

func TestCoordinatorsAndLeadersMove(t *testing.T) {
	t.Parallel()
	inRealTime(t, 4, func(b *bubble) {
		opts := b.options()
		opts.Sessions = 2
		opts.Interval = 20 * time.Millisecond
		p := b.start(opts)
		for i := range 12 {
			b.write(numbered(50*i, 100, 4)...)
			b.cluster.RehashCoordinators()
			if i%3 == 0 {
				b.cluster.ShufflePartitionLeaders()
			}
			p.wait(100*i, settled)
		}
		b.done("g")
		p.stop()
		b.exactly(650)
	}, kfake.NumBrokers(3))
}

// TestOfTwoWithOneNameTheLaterOneWorks starts a second program under the name of
// the first.
func TestOfTwoWithOneNameTheLaterOneWorks(t *testing.T) {
	t.Parallel()
	inRealTime(t, 2, func(b *bubble) {
		opts := b.options()
		opts.Interval = 20 * time.Millisecond
		first := b.start(opts)
		b.write(numbered(0, 100, 2)...)
		first.wait(100, settled)
		second := b.start(opts)
		for i := 1; ; i++ {
			b.write(numbered(50*i, 100, 2)...)
			b.done("g")
			select {
			case <-first.done:
			default:
				if i < 100 {
					continue
				}
				t.Error("the first program goes on")
			}
			second.stop()
			first.cancel()
			if <-first.done; !errors.Is(first.err, ErrFenced) {
				t.Errorf("the first program ended with %v", first.err)
			}
			b.exactly(50*i + 100)
			return
		}
	})
}
