package kafkatxn

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// timed returns n records in one partition, a second from one to the next.
func timed(begin time.Time, from, n int) []*kgo.Record {
	list := kafkatest.Numbered(from, n, 1)
	for i, r := range list {
		r.Timestamp = begin.Add(time.Duration(from+i) * time.Second)
	}
	return list
}

// writeEachSecond writes ten timed records in each second of the bubble, which p settles.
func (b *bubble) writeEachSecond(p *program, begin time.Time, from, to int) {
	b.Helper()
	for ; from < to; from += 10 {
		b.Write(timed(begin, from, 10)...)
		p.Wait(from+10, kafkatest.Settled)
		_ = retry.Sleep(b.Context(), time.Second) // at the end of the test, the next Write fails
	}
}

// firstOffset returns the first offset that is left of a changelog.
func (b *bubble) firstOffset() int64 {
	for _, p := range b.Cluster.PartitionInfos("g-keys") {
		return p.LogStartOffset
	}
	return -1
}

// TestAChangelogByEventTimeIsCutOff lets a window and its grace pass by event time,
// restarts without a copy on disk, and writes all again, with a standby and without.
func TestAChangelogByEventTimeIsCutOff(t *testing.T) {
	t.Parallel()
	for _, standby := range []bool{false, true} {
		t.Run(fmt.Sprintf("standby %v", standby), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				begin := time.Now().Add(-time.Hour)
				opts := b.options()
				opts.Window, opts.EventTime = 60*time.Second, &EventTime{Grace: 20 * time.Second, OnLate: pipeline.Drop}
				p := b.start(opts)
				var s *program
				promote := func() {}
				if standby {
					s, promote = b.startStandby(opts)
				}
				b.writeEachSecond(p, begin, 0, 300)
				time.Sleep(time.Minute)
				first := b.firstOffset()
				if first < 20 {
					t.Errorf("the changelog begins at %d: it was not cut off", first)
				}
				if standby {
					s.copies()
					p.Kill()
					<-p.Done
					promote()
					p = s
				} else {
					p.Stop()
					p = b.start(opts)
				}
				// Stream time is 299 s. What is older than 279 is late unless its key is
				// known, as are those from 219 on.
				b.Write(timed(begin, 0, 320)...)
				p.Wait(320, kafkatest.Settled)
				p.Stop()
				b.Exactly(320)
				duplicate, late := p.Events.Decisions(semel.Duplicate), p.Events.Decisions(semel.Late)
				if duplicate < 80 || duplicate > 81 || duplicate+late != 300 {
					t.Errorf("%d duplicates and %d late, want 80 or 81 and the rest", duplicate, late)
				}
			})
		})
	}
}

// TestACutThatIsRefusedHarmsNothing answers what deletes records with an error.
func TestACutThatIsRefusedHarmsNothing(t *testing.T) {
	t.Parallel()
	for _, refusal := range []*kerr.Error{kerr.TopicAuthorizationFailed, kerr.PolicyViolation, kerr.NotLeaderForPartition} {
		t.Run(refusal.Message, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				handle := b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Err: refusal, Count: 1})
				opts := b.options()
				opts.Window, opts.EventTime = 10*time.Second, &EventTime{}
				begin := time.Now().Add(-time.Hour)
				p := b.start(opts)
				b.writeEachSecond(p, begin, 0, 600)
				p.Stop()
				b.Exactly(600)
				if handle.Hits() == 0 {
					t.Error("it was never refused")
				}
				if b.firstOffset() == 0 {
					t.Error("the next cut was not made")
				}
			})
		})
	}
}

// TestAChangelogMayBeCutOffWhileItIsRead has a process cut a changelog off late, when another one
// has asked where the changelog begins, and not read it yet.
func TestAChangelogMayBeCutOffWhileItIsRead(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var cut atomic.Int64
		b.Cluster.ControlKey(int16(kmsg.DeleteRecords), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			cut.Store(req.(*kmsg.DeleteRecordsRequest).Topics[0].Partitions[0].Offset)
			return nil, nil, false
		})
		b.Cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.DeleteRecords}, Err: kerr.PolicyViolation, Count: -1})
		opts := b.options()
		opts.Window, opts.EventTime = 10*time.Second, &EventTime{}
		begin := time.Now().Add(-time.Hour)
		p := b.start(opts)
		b.writeEachSecond(p, begin, 0, 300)
		p.Stop()
		if first := b.firstOffset(); first != 0 || cut.Load() == 0 {
			t.Fatalf("the changelog begins at %d, and is cut off at %d", first, cut.Load())
		}
		var barrier, late atomic.Bool
		line := b.NewLine()
		line.On(func(kind kmsg.Key) bool {
			switch {
			case kind == kmsg.Produce:
				barrier.Store(true)
			case kind == kmsg.Fetch && barrier.Load() && late.CompareAndSwap(false, true):
				if err := b.Cluster.DeleteRecords("g-keys", 0, cut.Load()); err != nil {
					b.Error(err)
				}
			}
			return false
		}, nil)
		p = b.startOn(line, opts)
		b.Write(timed(begin, 300, 10)...)
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		b.Exactly(310)
		if first := b.firstOffset(); !late.Load() || first < cut.Load() {
			t.Errorf("the changelog begins at %d", first)
		}
	})
}

// TestAStandbyContinuesAfterRecordsThatItNeedsAreDeleted cuts the changelog off while a standby
// cannot read.
func TestAStandbyContinuesAfterRecordsThatItNeedsAreDeleted(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Window, opts.EventTime = 20*time.Second, &EventTime{OnLate: pipeline.Drop}
		begin := time.Now().Add(-time.Hour)
		p := b.start(opts)
		s, promote := b.startStandby(opts)
		b.Write(timed(begin, 0, 10)...)
		p.Wait(10, kafkatest.Settled)
		s.copies()
		s.Line.Sever(true)
		b.writeEachSecond(p, begin, 10, 210)
		time.Sleep(20 * time.Second)
		if b.firstOffset() < 10 {
			t.Errorf("the changelog begins at %d", b.firstOffset())
		}
		s.Line.Mend()
		s.copies()
		p.Kill()
		<-p.Done
		promote()
		b.Write(timed(begin, 180, 40)...)
		s.Wait(40, kafkatest.Settled)
		s.Stop()
		b.Exactly(220)
		if got := s.Events.Restored(t); got != 0 {
			t.Errorf("%d keys were read at the take-over", got)
		}
	})
}
