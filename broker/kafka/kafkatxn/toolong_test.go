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

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// slow is a Transform that passes records on, and takes a time for each.
func slow(each time.Duration) Transform {
	return func(ctx context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
		if retry.Sleep(ctx, each) != nil {
			return nil, ctx.Err()
		}
		return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
	}
}

// TestASlowTransformKeepsTheTransactorRunning has transforms that need longer for the records than a
// transaction may be open, and with the last ones for each record.
func TestASlowTransformKeepsTheTransactorRunning(t *testing.T) {
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

// TestATransformThatBecomesSlowKeepsTheTransactorRunning has many records that are quick, and then some
// that take longer than a transaction may be open.
func TestATransformThatBecomesSlowKeepsTheTransactorRunning(t *testing.T) {
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

// TestATransactionThatTimesOutIsReported has a record with an output before
// one that takes longer than a transaction may be open.
func TestATransactionThatTimesOutIsReported(t *testing.T) {
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

func TestATransformThatFailsForAllRecordsParksThem(t *testing.T) {
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
				_ = retry.Sleep(b.Context(), 5*time.Second)
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

// slowFilter is a FilterMap that passes all records, and takes a time for each. Some take
// longer. The bodies have a group key for windows.
func slowFilter(each time.Duration, longer map[string]time.Duration) pipeline.FilterMap {
	return func(ctx context.Context, d pipeline.Delivery) ([]byte, bool, error) {
		if retry.Sleep(ctx, each+longer[string(d.RecordKey)]) != nil {
			return nil, false, context.Cause(ctx)
		}
		return []byte(`{"g":"a"}`), true, nil
	}
}

// TestASlowFilterKeepsTheTransactorRunning has filters that need longer for what one read returns than a
// transaction may be open, and with the last ones for nearly each record. Each transaction
// keeps what it has decided.
func TestASlowFilterKeepsTheTransactorRunning(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		each time.Duration
		n    int
	}{{2 * time.Millisecond, 8000}, {300 * time.Millisecond, 100}, {7 * time.Second, 16}, {9 * time.Second, 16}} {
		for name, set := range map[string]func(b *bubble, opts *TransactorOptions){
			"alone":      func(*bubble, *TransactorOptions) {},
			"two stages": func(_ *bubble, opts *TransactorOptions) { opts.Repartition = &Repartition{} },
			"windows": func(b *bubble, opts *TransactorOptions) {
				opts.Aggregate = b.counting(time.Minute, 0, time.Second).Aggregate
			},
		} {
			t.Run(tc.each.String()+" "+name, func(t *testing.T) {
				t.Parallel()
				inBubble(t, 2, func(b *bubble) {
					opts := b.options()
					set(b, &opts)
					calls := 0
					opts.FilterMap = func(ctx context.Context, d pipeline.Delivery) ([]byte, bool, error) {
						calls++
						return slowFilter(tc.each, nil)(ctx, d)
					}
					b.Write(kafkatest.Numbered(0, tc.n, 2)...)
					began := time.Now()
					p := b.start(opts)
					p.Wait(tc.n, kafkatest.Settled)
					if took, most := time.Since(began), time.Duration(tc.n)*tc.each*3/2+10*time.Second; took > most {
						t.Errorf("it took %v, want at most %v", took, most)
					}
					p.Stop()
					if calls > tc.n+tc.n/10 {
						t.Errorf("%d calls for %d records", calls, tc.n)
					}
					if got := b.Read("aside"); len(got) > 0 {
						t.Errorf("%d were parked: %s", len(got), headersOf(got[0]))
					}
					if got := len(b.Read("out")); opts.Aggregate == nil && got != tc.n {
						t.Errorf("%d records are in the output, want %d", got, tc.n)
					}
				})
			})
		}
	}
}

// TestARecordThatIsTooSlowAloneIsParked has records that take longer than a transaction may
// be open, between others.
func TestARecordThatIsTooSlowAloneIsParked(t *testing.T) {
	t.Parallel()
	longer := map[string]time.Duration{"1": 15 * time.Second, "7": time.Hour}
	for name, set := range map[string]func(b *bubble, opts *TransactorOptions){
		"alone":      func(*bubble, *TransactorOptions) {},
		"two stages": func(_ *bubble, opts *TransactorOptions) { opts.Repartition = &Repartition{} },
		"windows": func(b *bubble, opts *TransactorOptions) {
			opts.Aggregate = b.counting(time.Minute, 0, time.Second).Aggregate
		},
		"windows of two stages": func(b *bubble, opts *TransactorOptions) {
			opts.Aggregate, opts.Repartition = b.counting(time.Minute, 0, time.Second).Aggregate, &Repartition{}
		},
		"held records": func(b *bubble, opts *TransactorOptions) {
			opts.Keep = b.keeping(stream.Keep{Last: stream.Tumbling(time.Second), Idle: time.Second}).Keep
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 2, func(b *bubble) {
				opts := b.options()
				set(b, &opts)
				opts.FilterMap = slowFilter(20*time.Millisecond, longer)
				b.Write(kafkatest.Numbered(0, 20, 2)...)
				p := b.start(opts)
				done := func(e *kafkatest.Events) int { return e.Count(pipeline.EventParked) + e.Count(pipeline.EventDelivered) }
				if opts.Aggregate != nil {
					done = func(e *kafkatest.Events) int { return e.Count(pipeline.EventParked) + e.Decisions(semel.Fresh) }
				}
				p.Wait(20, done)
				p.Stop()
				aside := b.Read("aside")
				if len(aside) != 2 {
					t.Errorf("%d records were parked, want 2", len(aside))
				}
				for _, r := range aside {
					if want := "brokers abort a transaction after 10s (Timeouts.Transaction): make it simpler"; !strings.Contains(headersOf(r), want) {
						t.Errorf("a parked record has the headers %s, want %q", headersOf(r), want)
					}
				}
			})
		})
	}
}

// TestAFilterIsNotCalledLongAfterTheEnd ends while a record takes longer than the time for
// the end. What was decided before is kept, and no record is parked for the end alone.
func TestAFilterIsNotCalledLongAfterTheEnd(t *testing.T) {
	t.Parallel()
	for _, each := range []time.Duration{700 * time.Millisecond, 9 * time.Second} {
		for _, stages := range []bool{false, true} {
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Timeouts.Shutdown = 2 * time.Second
				if stages {
					opts.Repartition = &Repartition{}
					opts.Aggregate = b.counting(time.Minute, 0, time.Second).Aggregate
				}
				opts.FilterMap = slowFilter(each, nil)
				b.Write(kafkatest.Numbered(0, 1000, 1)...)
				p := b.start(opts)
				_ = retry.Sleep(b.Context(), 12*time.Second)
				began := time.Now()
				p.Stop()
				if took := time.Since(began); took > opts.Timeouts.Shutdown {
					t.Errorf("%v: the end took %v, want at most %v", each, took, opts.Timeouts.Shutdown)
				}
				if got := b.Read("aside"); len(got) > 0 {
					t.Errorf("%v: %d were parked, for the end alone", each, len(got))
				}
			})
		}
	}
}
