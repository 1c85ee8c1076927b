package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

var errCut = pipeline.Unavailable(fmt.Errorf("the connection was cut: %w", semel.ErrOutcomeUnknown), time.Second)

// TestMessagesAreNotParkedWhileDeliveryOutcomesAreUnknown lets a sink lose every answer for an hour.
// Each delivery has another attempt number, and none counts towards the limit.
func TestMessagesAreNotParkedWhileDeliveryOutcomesAreUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure = pipeline.Failure{Attempts: 3}
		over := time.Now().Add(time.Hour)
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			if time.Now().Before(over) {
				return semel.Result{}, errCut
			}
			return semel.Result{}, nil
		}
		for i := range 5 {
			r.add(int64(i), fmt.Sprint(i), "")
		}
		r.run()
		r.wantAcked(5)
		r.wantParked(nil)
		total := 0
		for i := range 5 {
			list := r.attempts(fmt.Sprint(i))
			total += len(list)
			if !slices.IsSorted(list) || list[len(list)-1] != len(list) {
				t.Errorf("message %d had the attempts %v", i, list)
			}
		}
		if total < 50 {
			t.Errorf("%d deliveries in an hour", total)
		}
	})
}

// TestAMessageThatCutsTheConnectionIsParked has a message that looks like an outage,
// while the sink accepts others.
func TestAMessageThatCutsTheConnectionIsParked(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Failure = pipeline.Failure{Attempts: 3}
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			if m.Key.ID == "bad" {
				return semel.Result{}, errCut
			}
			return semel.Result{}, nil
		}
		r.add(0, "bad", "")
		r.source.endless = true
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		for i := range 100 {
			time.Sleep(10 * time.Second)
			r.add(int64(i+1), fmt.Sprint(i), "")
		}
		time.Sleep(time.Minute)
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(101)
		r.wantParked(map[string]string{"bad": string(pipeline.ReasonAttempts)})
	})
}

// TestMessagesOfAnOutageComeBeforeWhatWasReadAhead lets the sink or the store fail for minutes,
// while thousands of messages were read ahead. Those that failed must not wait behind them.
func TestMessagesOfAnOutageComeBeforeWhatWasReadAhead(t *testing.T) {
	t.Parallel()
	for _, down := range []string{"sink", "store", "message"} {
		t.Run(down, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const all, workers = 4000, 2
				r := newRig(t)
				r.opts.Workers = workers
				over := time.Now().Add(5 * time.Minute)
				failed, order := map[string]bool{}, []string(nil)
				fails := func(id string) bool { // the caller holds r.mu
					if time.Now().After(over) {
						return false
					}
					failed[id] = true
					return true
				}
				r.handler = func(ctx context.Context, m pipeline.Delivery) (semel.Result, error) {
					time.Sleep(250 * time.Millisecond)
					r.mu.Lock()
					defer r.mu.Unlock()
					switch {
					case down == "sink" && fails(m.Key.ID):
						return semel.Result{}, pipeline.Unavailable(errors.New("down"), 0)
					case down == "message" && len(m.Key.ID) == 1 && fails(m.Key.ID): // no outage, but messages of their own
						return semel.Result{}, pipeline.Retry(errors.New("not yet"), time.Until(over))
					}
					order = append(order, m.Key.ID)
					return semel.Result{}, nil
				}
				if down == "store" {
					r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
						r.mu.Lock()
						fail := false
						for i := range reqs {
							fail = fails(reqs[i].Key.ID) || fail
						}
						r.mu.Unlock()
						if fail {
							return semel.ErrStoreUnavailable
						}
						return r.store.Store.Claim(ctx, reqs, answers)
					}
				}
				for i := range all {
					r.add(int64(i), fmt.Sprint(i), "")
				}
				end := r.start(t.Context())
				time.Sleep(time.Until(over) - time.Second)
				synctest.Wait()
				now := r.runner.Progress()
				r.mu.Lock()
				before, seen := len(order), maps.Clone(failed)
				r.mu.Unlock()
				if now.Retrying > len(seen) || now.Retrying < len(seen)-1 || now.Working > workers || now.Working+now.Retrying+now.Ahead != all-before {
					t.Errorf("in the outage: %+v with %d failed messages, and %d settled ones", now, len(seen), before)
				}
				for id := range seen {
					at := r.runner.KeyProgress(semel.Key{ID: id})
					if len(at) != 1 || at[0].Retrying == at[0].Working || at[0].Next.IsZero() == (down == "message") {
						t.Errorf("message %s: %+v", id, at)
					}
				}
				if err := end(); err != nil {
					t.Error(err)
				}
				r.wantAcked(all)
				if len(failed) < 3 || len(failed) > 50 {
					t.Fatalf("%d messages failed", len(failed))
				}
				last := 0
				for at, id := range order[before:] {
					if failed[id] {
						last = at
					}
				}
				if most := 2*(len(failed)+workers) + 2*workers; last > most {
					t.Errorf("the last of %d messages that failed was delivered as number %d behind the outage, want %d at most", len(failed), last, most)
				}
			})
		})
	}
}

// TestMessagesThatAreRetriedDoNotHoldUpOthers has more messages that fail than the workers can
// retry.
func TestMessagesThatAreRetriedDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const bad, good = 1000, 100
		r := newRig(t)
		r.opts.Workers = 1
		r.opts.Failure = pipeline.Failure{Attempts: 1000, From: time.Second, To: time.Second}
		begin := time.Now()
		var last time.Duration
		r.handler = func(_ context.Context, m pipeline.Delivery) (semel.Result, error) {
			time.Sleep(100 * time.Millisecond)
			if strings.HasPrefix(m.Key.ID, "bad") && time.Since(begin) < 20*time.Minute {
				return semel.Result{}, errors.New("refused")
			}
			if strings.HasPrefix(m.Key.ID, "good") {
				last = time.Since(begin)
			}
			return semel.Result{}, nil
		}
		for i := range bad {
			r.add(int64(i), fmt.Sprint("bad", i), "")
		}
		for i := range good {
			r.add(int64(bad+i), fmt.Sprint("good", i), "")
		}
		r.run()
		r.wantAcked(bad + good)
		if last > 10*time.Minute {
			t.Errorf("the last good message was delivered after %v", last)
		}
	})
}

// togetherSink fails a whole batch if it has a bad message, as a connection that breaks does. A batch
// takes a moment of the bubble's time, in which all that the source has is read. The size of the next
// one does not depend on how fast the reader is.
type togetherSink struct{ batches int } // of one worker

func (s *togetherSink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 50} }

func (s *togetherSink) Close(context.Context) error { return nil }

func (s *togetherSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.batches++
	nap(ctx, time.Millisecond)
	if !slices.ContainsFunc(items, func(it *pipeline.Item) bool { return it.Call.Key.ID == "bad" }) {
		return
	}
	err := pipeline.Unavailable(errors.New("the connection broke"), 0)
	for _, it := range items {
		it.Err = err
	}
}

// TestAMessageThatBreaksItsBatchIsFound has a message that looks like an outage of all messages of
// its batch.
func TestAMessageThatBreaksItsBatchIsFound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		sink := &togetherSink{}
		r := newRig(t)
		r.sink = sink
		r.opts.Failure = pipeline.Failure{Attempts: 3}
		r.source.endless = true
		ctx, stop := context.WithCancel(t.Context())
		end := r.start(ctx)
		const rounds, each = 60, 100
		for i := range rounds * each {
			id := fmt.Sprint(i)
			if i == 7 {
				id = "bad"
			}
			r.add(int64(i), id, "")
			if i%each == each-1 {
				time.Sleep(10 * time.Second)
			}
			if i == rounds*each/2 && r.acked() < i-2*each {
				t.Errorf("%d messages are settled of %d", r.acked(), i)
			}
		}
		r.wantAcked(rounds * each)
		r.wantParked(map[string]string{"bad": string(pipeline.ReasonAttempts)})
		if sink.batches > 3*rounds*each/50+2*each {
			t.Errorf("%d batches", sink.batches)
		}
		stop()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// flapping is a sink that fails two of three batches until a time.
type flapping struct {
	over             time.Time
	batches, healthy int // of one worker
}

func (s *flapping) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Batch: 50} }

func (s *flapping) Close(context.Context) error { return nil }

func (s *flapping) Deliver(_ context.Context, items []*pipeline.Item) {
	s.batches++
	if time.Now().After(s.over) {
		s.healthy++
		return
	}
	if s.batches%3 == 0 {
		return
	}
	err := pipeline.Unavailable(errors.New("one of three replicas is up"), 0)
	for _, it := range items {
		it.Err = err
	}
}

// TestAnOutageThatComesAndGoesLeavesFewBatches has a sink that takes a batch now and then for a
// while. No message is the cause, and all of them go out in batches when the sink is well.
func TestAnOutageThatComesAndGoesLeavesFewBatches(t *testing.T) {
	t.Parallel()
	for _, outage := range []time.Duration{10 * time.Second, time.Minute, 10 * time.Minute} {
		t.Run(outage.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const all = 10_000
				sink := &flapping{over: time.Now().Add(outage)}
				r := newRig(t)
				r.sink = sink
				r.source.endless = true
				for i := range all {
					r.add(int64(i), fmt.Sprint(i), "")
				}
				ctx, stop := context.WithCancel(t.Context())
				end := r.start(ctx)
				time.Sleep(outage)
				before := r.acked()
				time.Sleep(time.Hour)
				r.wantAcked(all)
				r.wantParked(nil)
				stop()
				if err := end(); err != nil {
					t.Error(err)
				}
				t.Logf("%d batches in the outage, %d messages left, %d batches behind it", sink.batches-sink.healthy, all-before, sink.healthy)
				if most := 4*(all-before)/50 + 10; sink.healthy > most {
					t.Errorf("%d messages were left behind the outage, and delivered in %d batches, want %d at most", all-before, sink.healthy, most)
				}
			})
		})
	}
}

// TestAMessageThatComesAgainDoesNotWaitBehindWhatWasReadAhead lets a message come again while a slow
// sink has a backlog.
func TestAMessageThatComesAgainDoesNotWaitBehindWhatWasReadAhead(t *testing.T) {
	t.Parallel()
	for name, again := range map[string]func(r *rig, it *pipeline.Item){
		"redriven": func(r *rig, it *pipeline.Item) {
			parked := pipeline.Parked{ID: "9f2c41d07be35a1186c0de42", Pipeline: r.opts.Name, Key: semel.Key{ID: "again"}, Reason: pipeline.ReasonPermanent, At: time.Now(), Message: it.Message}
			if err := errors.Join(r.letters.Park(r.t.Context(), []pipeline.Parked{parked}), r.letters.Queue(r.t.Context(), []string{parked.ID})); err != nil {
				r.t.Fatal(err)
			}
		},
		"returned": func(r *rig, it *pipeline.Item) {
			it.Returned = true
			r.put(it)
		},
		"delivered again by its server": func(r *rig, it *pipeline.Item) {
			it.Message.Origin.Delivery = 2
			r.put(it)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.opts.Name, r.opts.Workers = "slow", 1
				r.source.endless = true
				r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
					time.Sleep(time.Second)
					return semel.Result{}, nil
				}
				for i := range 1000 {
					r.add(int64(i), fmt.Sprint(i), "")
				}
				ctx, stop := context.WithCancel(t.Context())
				end := r.start(ctx)
				time.Sleep(10500 * time.Millisecond)
				again(r, message(r.partition, 5000, "again", ""))
				time.Sleep(5 * time.Second)
				if n := len(r.attempts("again")); n != 1 {
					t.Errorf("it was delivered %d times after five others", n)
				}
				stop()
				if err := end(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
