package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// session returns a TwoPhase whose sink calls try for each item.
func session(t *testing.T, store semel.Store, opts *pipeline.TwoPhaseOptions, try func(*pipeline.Item) error) *pipeline.TwoPhase {
	s, err := pipeline.NewTwoPhase(store, &tryingSink{try}, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s
}

func itemOf(group uint64, id string) *pipeline.Item {
	return &pipeline.Item{Group: group, Call: semel.Call{Key: semel.Key{ID: id}}}
}

// TestMessageBehindARefusedOneKeepsItsOrderAndLease refuses the key of the first
// item of a group. The second waits, and its claim lasts.
func TestMessageBehindARefusedOneKeepsItsOrderAndLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: newStore(t)}
		store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			err := store.Store.Claim(ctx, reqs, answers)
			for i, r := range reqs {
				if r.Key.ID == "refused" {
					answers[i] = semel.ClaimAnswer{Err: semel.ErrInvalidKey}
				}
			}
			return err
		}
		s := session(t, store, nil, func(it *pipeline.Item) error {
			t.Errorf("%s is delivered", it.Call.Key.ID)
			return nil
		})
		first, second := itemOf(1, "refused"), itemOf(1, "second")
		s.Process(t.Context(), []*pipeline.Item{first, second})
		if !errors.Is(first.Err, semel.ErrInvalidKey) || !errors.Is(second.Err, pipeline.ErrBehind) {
			t.Errorf("%v, %v", first.Err, second.Err)
		}
		_, permanent := errors.AsType[*semel.PermanentError](first.Err)
		if _, ofStore := errors.AsType[*pipeline.StoreError](first.Err); !permanent || !ofStore {
			t.Errorf("%v: permanent %t, of the store %t: it would be retried forever", first.Err, permanent, ofStore)
		}
		time.Sleep(5 * time.Minute) // ten leases
		other := []semel.ClaimAnswer{{}}
		err := store.Store.Claim(t.Context(), []semel.ClaimRequest{{Key: second.Call.Key, Owner: semel.Owner{Nonce: 1}, Lease: time.Second, Window: time.Hour}}, other)
		if err != nil || other[0].Decision != semel.InFlight {
			t.Errorf("another holder gets %v, %v", other[0].Decision, err)
		}
		s.Abandon(t.Context(), []*pipeline.Item{second})
	})
}

// TestFailedCompletionIsRetriedWithoutAnotherDelivery completes the key later, and does not
// deliver the message again.
func TestFailedCompletionIsRetriedWithoutAnotherDelivery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: newStore(t)}
		store.complete = func(context.Context, []semel.CompleteRequest, []error) error { return semel.ErrStoreFailed }
		delivered := 0
		s := session(t, store, nil, func(*pipeline.Item) error { delivered++; return nil })
		it := itemOf(1, "a")
		s.Process(t.Context(), []*pipeline.Item{it})
		if _, ok := errors.AsType[*pipeline.StoreError](it.Err); !ok || it.Held == nil {
			t.Fatalf("%v, held %t", it.Err, it.Held != nil)
		}
		time.Sleep(5 * time.Minute) // ten leases
		store.heal()
		s.Process(t.Context(), []*pipeline.Item{it})
		if it.Err != nil || it.Held != nil || delivered != 1 {
			t.Errorf("%v, held %t, delivered %d times", it.Err, it.Held != nil, delivered)
		}
	})
}

// TestDuplicateInABatchGetsTheOutcomeOfTheFirstMessage processes two items of one key and group.
func TestDuplicateInABatchGetsTheOutcomeOfTheFirstMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failure error
		s := session(t, newStore(t), nil, func(it *pipeline.Item) error {
			it.Result = semel.Result{Kind: semel.Value, Data: []byte("done")}
			return failure
		})
		first, second := itemOf(1, "a"), itemOf(1, "a")
		s.Process(t.Context(), []*pipeline.Item{first, second})
		if first.Decision != semel.Fresh || second.Err != nil || second.Decision != semel.Duplicate || string(second.Result.Data) != "done" {
			t.Errorf("%v; %v, %v, %q", first.Decision, second.Decision, second.Err, second.Result.Data)
		}
		failure = errors.New("later")
		first, second = itemOf(1, "b"), itemOf(1, "b")
		s.Process(t.Context(), []*pipeline.Item{first, second})
		if !errors.Is(first.Err, failure) || !errors.Is(second.Err, pipeline.ErrBehind) || second.Decision != semel.Undecided {
			t.Errorf("%v; %v, %v", first.Err, second.Decision, second.Err)
		}
		s.Abandon(t.Context(), []*pipeline.Item{first})
	})
}

// TestAReusedItemForgetsItsObservedDecision reuses the memory of an item, as
// sources do.
func TestAReusedItemForgetsItsObservedDecision(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := session(t, newStore(t), &pipeline.TwoPhaseOptions{Observe: true}, func(*pipeline.Item) error { return nil })
		s.Process(t.Context(), []*pipeline.Item{itemOf(1, "a")})
		it := itemOf(1, "a")
		s.Process(t.Context(), []*pipeline.Item{it})
		if it.Decision != semel.Duplicate || !it.Delivered {
			t.Errorf("a duplicate that is observed: %v, delivered %t", it.Decision, it.Delivered)
		}
		it.Call.Key.ID = "b"
		s.Process(t.Context(), []*pipeline.Item{it})
		if it.Decision != semel.Fresh || it.Delivered {
			t.Errorf("a new message in the same item: %v, delivered %t", it.Decision, it.Delivered)
		}
	})
}

// TestNoPassIsReportedWhileTheStoreAnswers: an alert counts such events.
func TestNoPassIsReportedWhileTheStoreAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen passed
		s := session(t, newStore(t), &pipeline.TwoPhaseOptions{Pass: true, Observer: &seen}, func(*pipeline.Item) error { return nil })
		s.Process(t.Context(), []*pipeline.Item{itemOf(1, "a")})
		if seen != 0 {
			t.Errorf("%d events", seen)
		}
	})
}

// passed counts the events of a pipeline.
type passed int

func (p *passed) Observe(semel.Event) {}

func (p *passed) ObservePipeline(pipeline.Event) { *p++ }

// TestDeliveryWithoutAClaimIsSettledWhenItsCompletionFails loses the claim's answers
// until the message passed. Then the store answers again, and refuses completions.
func TestDeliveryWithoutAClaimIsSettledWhenItsCompletionFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := &flaky{Store: newStore(t)}
		delivered := false
		store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			if delivered {
				return store.Store.Claim(ctx, reqs, answers)
			}
			_ = store.Store.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs))) // the answer is lost
			return semel.ErrOutcomeUnknown
		}
		completions := 0
		store.complete = func(context.Context, []semel.CompleteRequest, []error) error {
			completions++
			return semel.ErrStoreFailed
		}
		s := session(t, store, &pipeline.TwoPhaseOptions{Pass: true}, func(*pipeline.Item) error { delivered = true; return nil })
		it := itemOf(1, "a")
		s.Process(t.Context(), []*pipeline.Item{it})
		if completions == 0 || it.Decision != semel.Fresh || it.Err != nil || it.Held != nil {
			t.Errorf("after %d completions: %v, %v, held %t", completions, it.Decision, it.Err, it.Held != nil)
		}
	})
}

// TestSessionIsNotReadyOnlyIfMessagesWaitForItsStore asks sessions whether they are
// ready.
func TestSessionIsNotReadyOnlyIfMessagesWaitForItsStore(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		opts  pipeline.TwoPhaseOptions
		ready bool
	}{{}, {opts: pipeline.TwoPhaseOptions{Pass: true}, ready: true}, {opts: pipeline.TwoPhaseOptions{Observe: true}, ready: true}} {
		s := session(t, unready{newStore(t)}, &c.opts, nil)
		if err := s.Ready(t.Context()); (err == nil) != c.ready {
			t.Errorf("pass %t, observe %t: %v", c.opts.Pass, c.opts.Observe, err)
		}
	}
}

// unready is a store that cannot work now.
type unready struct{ semel.Store }

func (unready) Ready(context.Context) error { return semel.ErrStoreUnavailable }

func TestDuplicatesInABatchDelayNoOtherMessage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Order = pipeline.OrderPartition
		sink := &orderedSink{}
		r.sink = sink
		var want []int64
		for i := range int64(500) {
			id := i
			if i%5 == 4 {
				id = i - 1 - i%3
			} else {
				want = append(want, i)
			}
			r.add(i, strconv.FormatInt(id, 10), "")
		}
		began := time.Now()
		r.run()
		if took := time.Since(began); took != 0 {
			t.Errorf("it waited for %v", took)
		}
		r.wantAcked(500)
		if !slices.Equal(sink.got, want) {
			t.Errorf("delivered: %v", sink.got)
		}
	})
}

func TestDuplicateInABatchWaitsUntilTheFirstMessageSucceeds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Order = pipeline.OrderPartition
		r.opts.Failure = pipeline.Failure{Attempts: 100, From: time.Second, To: time.Second}
		sink := &orderedSink{until: time.Now().Add(10 * time.Second)}
		r.sink = sink
		for i, id := range []string{"a", "b", "a", "c"} {
			r.add(int64(i), id, "")
		}
		end := r.start(t.Context())
		time.Sleep(5 * time.Second)
		r.wantAcked(0)
		if err := end(); err != nil {
			t.Error(err)
		}
		r.wantAcked(4)
		if !slices.Equal(sink.got, []int64{0, 1, 3}) {
			t.Errorf("delivered: %v", sink.got)
		}
	})
}
