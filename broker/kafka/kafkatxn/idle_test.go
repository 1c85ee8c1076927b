package kafkatxn

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/operator"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestAPartitionWithoutACommitHasNoCommittedOffset(t *testing.T) {
	t.Parallel()
	p := &part{Chain: operator.Chain{Partition: operator.Partition{ID: cluster.Partition{Topic: "in"}}}}
	for offset, want := range map[int64]bool{-1: false, 0: true, 7: true} {
		if _, ok := committedOffset(map[string]map[int32]kgo.EpochOffset{"in": {0: {Offset: offset}}}, p); ok != want {
			t.Errorf("%d: %t", offset, ok)
		}
	}
}

// TestRecordsKeepAPartitionFromBeingIdle has a record from time to time. All have the same
// time, which the clock would close in the meantime.
func TestRecordsKeepAPartitionFromBeingIdle(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		p := b.start(b.counting(10*time.Second, 0, 20*time.Second))
		base := time.Now().Truncate(10 * time.Second)
		for i := range 30 {
			b.Write(counted(0, fmt.Sprint(i), "a", 1, base))
			p.Wait(i+1, kafkatest.Settled)
			time.Sleep(7 * time.Second) // in a bubble
		}
		time.Sleep(time.Minute) // in a bubble
		if got := b.finals(); got != "a n=30 s=30" {
			t.Errorf("results %s", got)
		}
		p.Stop()
	})
}

// TestAPartitionIsIdleFromTheTimeOfTheQuestion gets each answer about the end of the partition some
// seconds after it was asked for. A record may have come in the meantime.
func TestAPartitionIsIdleFromTheTimeOfTheQuestion(t *testing.T) {
	t.Parallel()
	for shift := range 8 { // of the questions
		inBubble(t, 1, func(b *bubble) {
			const size, idle, slow = 10 * time.Second, 20 * time.Second, 4 * time.Second
			opts := b.counting(size, 0, idle)
			opts.Timeouts.Session = time.Minute
			p := b.start(opts)
			base := time.Now().Truncate(size)
			time.Sleep(time.Duration(shift) * 500 * time.Millisecond) // in a bubble
			b.Write(counted(0, "1", "a", 1, time.Now()))
			p.Wait(1, kafkatest.Settled)
			var ends atomic.Bool
			b.Cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
				if !ends.Load() {
					b.Cluster.KeepControl()
					b.Sleep(slow)
				}
				return nil, nil, false
			})
			due := base.Add(size + idle + stream.ClockMargin)
			time.Sleep(time.Until(due.Add(slow - time.Second/2))) // in a bubble
			if watermarkOf(p) >= base.Add(size).UnixMilli() {
				t.Error("a window was closed by the time of an answer")
			}
			time.Sleep(time.Minute) // in a bubble
			if watermarkOf(p) < base.Add(size).UnixMilli() {
				t.Error("the window is not closed")
			}
			ends.Store(true)
			time.Sleep(time.Minute) // in a bubble
			p.Stop()
		})
	}
}

// watermarkOf returns the committed watermark of the only partition.
func watermarkOf(p *program) int64 {
	p.tr.slots.mu.Lock()
	defer p.tr.slots.mu.Unlock()
	return p.tr.slots.list[cluster.Partition{Topic: "in"}].watermark.Load()
}

// TestPartitionsThatAreNotUpToDateCloseNoWindows has one whose windows another process may
// have closed in the meantime.
func TestPartitionsThatAreNotUpToDateCloseNoWindows(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Idle = time.Second })
	for p := range int32(2) {
		for _, second := range []int{0, 60} {
			m := &semel.Message{RecordKey: fmt.Append(nil, second), Body: fmt.Appendf(nil, `{"g":"g%d"}`, p), Time: tr.base.Add(time.Duration(second) * time.Second), Origin: semel.Origin{Partition: p}}
			_, err := tr.Send(t.Context(), tr.base.Add(time.Minute), m)
			kafkatest.Must(t, err)
		}
	}
	behind := tr.s.parts[cluster.Partition{Topic: "in", Number: 1}]
	behind.ready = false
	before := behind.slot.store.Watermark()
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Hour))
	kafkatest.Must(t, err)
	if len(released) != 2 || string(released[0].Key) != "g0" || string(released[1].Key) != "g0" {
		t.Errorf("%d results", len(released))
	}
	if after := behind.slot.store.Watermark(); after != before {
		t.Errorf("the watermark moved by %d", after-before)
	}
}

// TestOnlyAPartitionThatIsReadToItsEndIsIdle has answers of brokers about its end.
func TestOnlyAPartitionThatIsReadToItsEndIsIdle(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Idle = time.Second })
	tr.at(0, 0, "1", `{"g":"a"}`)
	for _, c := range []struct {
		name  string
		ends  kadm.ListedOffsets
		quiet bool
	}{
		{"no answer", kadm.ListedOffsets{}, false},
		{"an error", kadm.ListedOffsets{"in": {0: {Offset: -1, Err: kerr.NotLeaderForPartition}}}, false},
		{"a record that is not read", kadm.ListedOffsets{"in": {0: {Offset: 2}}}, false},
		{"the end", tr.listEnds(), true},
	} {
		for _, minute := range []int{5, 6} {
			tr.s.t.source.settle(tr.s, tr.base.Add(time.Duration(minute)*time.Minute).UnixMilli(), nil, c.ends)
		}
		if got := tr.s.parts[cluster.Partition{Topic: "in"}].Due(false); got != c.quiet {
			t.Errorf("%s: the window is due: %t", c.name, got)
		}
	}
}
