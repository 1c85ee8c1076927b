package kafkatxn

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// slow is a Transform that passes records on, and takes a time for each.
func slow(each time.Duration) Transform {
	return func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
		if !cluster.Pause(ctx, each) {
			return nil, ctx.Err()
		}
		return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
	}
}

// TestASlowTransformGoesOn has transforms that need longer for what is there than a
// transaction may be open, and with the last ones for each record.
func TestASlowTransformGoesOn(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		each time.Duration
		n    int
	}{{2 * time.Millisecond, 8000}, {300 * time.Millisecond, 100}, {7 * time.Second, 10}, {15 * time.Second, 6}} {
		t.Run(tc.each.String(), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				opts.Transform = slow(tc.each)
				b.Write(kafkatest.Numbered(0, tc.n, 2)...)
				began := time.Now()
				p := b.start(opts)
				p.Wait(tc.n, kafkatest.Settled)
				if took, most := time.Since(began), time.Duration(tc.n)*tc.each*3/2+10*time.Second; took > most {
					t.Errorf("it took %v, want at most %v", took, most)
				}
				p.Stop()
				b.Exactly(tc.n)
			})
		})
	}
}

// TestATransformThatBecomesSlowGoesOn has many at once that are quick, and then some
// that take longer than a transaction may be open.
func TestATransformThatBecomesSlowGoesOn(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		calls, delays := 0, map[string]time.Duration{"20000": 15 * time.Second, "20003": 6 * time.Second, "20004": 6 * time.Second}
		opts.Transform = func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
			calls++
			return slow(delays[string(m.RecordKey)])(ctx, m)
		}
		b.Write(kafkatest.Numbered(0, 20_010, 1)...)
		p := b.start(opts)
		p.Wait(20_010, kafkatest.Settled)
		p.Stop()
		b.Exactly(20_010)
		if calls > 2*20_010+100 {
			t.Errorf("%d calls for 20010 records", calls)
		}
	})
}

// TestATransactionThatBrokersAbortForItsTimeSaysSo has a record with an output before
// one that takes longer than a transaction may be open.
func TestATransactionThatBrokersAbortForItsTimeSaysSo(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		delays := map[string]time.Duration{"1": 15 * time.Second}
		opts.Transform = func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
			return slow(delays[string(m.RecordKey)])(ctx, m)
		}
		b.Write(kafkatest.Numbered(0, 2, 1)...)
		p := b.start(opts)
		p.Wait(2, kafkatest.Settled)
		p.becomesReady()
		p.Stop()
		b.Exactly(2)
		want := "brokers abort it after the Timeouts.Transaction of 10s: the Transform needs more than that: make it quicker, or raise it"
		if log := strings.Join(p.Events.Log, "\n"); !strings.Contains(log, want) {
			t.Errorf("nothing says %q:\n%s", want, log)
		}
	})
}

// TestATransactorWhoseTransactionsAllFailIsNotReady has brokers that refuse what is
// written, for a while.
func TestATransactorWhoseTransactionsAllFailIsNotReady(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		var refuse atomic.Bool
		var refused atomic.Int32
		refuse.Store(true)
		b.Cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
			b.Cluster.KeepControl()
			if !refuse.Load() || req.(*kmsg.ProduceRequest).TransactionID == nil {
				return nil, nil, false
			}
			refused.Add(1)
			return refuseAll(req.(*kmsg.ProduceRequest), kerr.InvalidTimestamp), nil, true
		})
		b.Write(kafkatest.Numbered(0, 10, 1)...)
		p := b.start(b.options())
		p.Wait(1, paused)
		p.unready("transactions fail: write out/")
		time.Sleep(time.Minute)
		p.unready("raise its message.timestamp.after.max.ms")
		if n := refused.Load(); n > 200 {
			t.Errorf("%d requests were refused in a minute, want at most 200", n)
		}
		refuse.Store(false)
		p.becomesReady()
		p.Wait(10, kafkatest.Settled)
		p.Stop()
		b.Exactly(10)
	})
}

// refuseAll is the answer to a request of a producer that refuses all of it.
func refuseAll(req *kmsg.ProduceRequest, why *kerr.Error) *kmsg.ProduceResponse {
	answer := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range req.Topics {
		t := kmsg.NewProduceResponseTopic()
		t.Topic, t.TopicID = topic.Topic, topic.TopicID
		for _, partition := range topic.Partitions {
			p := kmsg.NewProduceResponseTopicPartition()
			p.Partition, p.ErrorCode = partition.Partition, why.Code
			t.Partitions = append(t.Partitions, p)
		}
		answer.Topics = append(answer.Topics, t)
	}
	return answer
}

func TestATransformThatFailsForAllPutsThemAside(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		opts.Transform = func(context.Context, pipeline.Delivery) ([]*kgo.Record, error) {
			return nil, errors.New("the lookup is down")
		}
		b.Write(kafkatest.Numbered(0, 2000, 2)...)
		p := b.start(opts)
		p.Wait(2000, kafkatest.Settled)
		p.Stop()
		if got := len(b.Read("aside")); got != 2000 {
			t.Errorf("%d were parked, want 2000", got)
		}
	})
}

// TestATransformIsNotCalledLongAfterTheEnd ends while there is more to do than fits
// into the time for the end. What was begun is finished if it fits.
func TestATransformIsNotCalledLongAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, each := range []time.Duration{2 * time.Millisecond, 700 * time.Millisecond, 30 * time.Second} {
		t.Run(each.String(), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Timeouts.Shutdown = 2 * time.Second
				opts.Failure.Attempts = 1
				opts.Transform = slow(each)
				b.Write(kafkatest.Numbered(0, 8000, 1)...)
				p := b.start(opts)
				cluster.Pause(b.Context(), 5*time.Second)
				began := time.Now()
				p.Stop()
				if took := time.Since(began); took > opts.Timeouts.Shutdown {
					t.Errorf("the end took %v, want at most %v", took, opts.Timeouts.Shutdown)
				}
				out, began := b.Values(b.Read("out")), time.Now()
				if each < time.Second && len(out) == 0 {
					t.Error("nothing was done")
				}
				if got := b.Read("aside"); len(got) > 0 {
					t.Errorf("%d were parked, for the end alone", len(got))
				}
				if took := time.Since(began); took > time.Second {
					t.Errorf("readers waited %v for a transaction that was left open", took)
				}
				opts.Transform = nil
				p = b.start(opts)
				p.Wait(8000-len(out), kafkatest.Settled)
				p.Stop()
				b.Exactly(8000)
			})
		})
	}
}
