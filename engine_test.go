package semel_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// engines are the ways to take keys from claim to completion. They must agree on
// every case of [engineCases].
var engines = map[string]func(*engineRun) map[string]error{
	"Do":       (*engineRun).do,
	"DoBatch":  (*engineRun).doBatch,
	"TwoPhase": (*engineRun).twoPhase,
}

// engineRun is one run of a case.
type engineRun struct {
	*testing.T
	c       *engineCase
	inner   *memstore.Store
	store   *hooked
	opts    semel.GuardOptions
	journal *journal
	cancel  context.CancelCauseFunc // ends the caller's context
	began   time.Time
	calls   int // calls of the hook
	nonce   uint64

	mu    sync.Mutex
	runs  map[string]int
	ended map[string]time.Duration // when an effect's context ended
}

// engineCase is a case in which the outcome is in doubt, or could be mistaken.
type engineCase struct {
	name  string
	keys  []string // defaults to "a"
	hold  bool     // OnLeaseExpired: ExpiryHold
	opts  func(*semel.GuardOptions)
	large int64 // the largest result that the store keeps
	// claimed: another holder claimed the key a minute ago and died.
	claimed  bool
	before   func(*engineRun)
	claim    func(*engineRun, context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error
	complete func(*engineRun, context.Context, []semel.CompleteRequest, []error) error
	extend   func(*engineRun, context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error
	effect   func(*engineRun, context.Context, string) ([]byte, error)

	// Of each key: the class of the error, errors that it wraps, how often the
	// effect ran, and the record afterwards.
	class map[string]semel.Class
	is    []error
	not   []error
	runs  map[string]int
	state map[string]semel.State
	// next is what the next delivery of each key gets a second later.
	next    semel.Decision
	attempt int
	events  []semel.EventKind
	check   func(*engineRun)
}

var (
	errBroken  = errors.New("the target refuses")
	errForeign = semel.Permanent(errors.New("another message is malformed"))
	errReset   = errors.New("connection reset")
)

// all is an expectation of every key.
func all[T any](v T) map[string]T { return map[string]T{"": v} }

// of returns the expectation for a key. It is not ok if there is no expectation.
func of[T any](m map[string]T, key string) (v T, ok bool) {
	if v, ok = m[key]; !ok {
		v, ok = m[""]
	}
	return v, ok
}

// lostFirst makes the claim, and loses the answer of the first call. Later calls are
// refused by refuse.
func lostFirst(refuse func([]semel.ClaimAnswer) error) func(*engineRun, context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error {
	return func(r *engineRun, ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
		switch r.calls++; r.calls {
		case 1:
			_ = r.inner.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs)))
			return errReset
		case 2:
			return refuse(answers)
		}
		return semel.ErrStoreUnavailable
	}
}

var engineCases = []engineCase{
	{
		name:  "the claim's answer is lost once",
		claim: lostThenAnswered,
		class: all(semel.ClassNone), runs: all(1), state: all(semel.Done), next: semel.Duplicate,
		events: []semel.EventKind{semel.EventDecided, semel.EventCompleted},
	},
	{
		name:  "the repeated claim is refused",
		claim: lostFirst(func([]semel.ClaimAnswer) error { return semel.ErrStoreUnavailable }),
		class: all(semel.ClassUnknown), runs: all(0), state: all(semel.Claimed), next: semel.InFlight,
		events: []semel.EventKind{semel.EventDecided, semel.EventStoreError},
	},
	{
		name:  "the repeated claim finds the store closed",
		claim: lostFirst(func([]semel.ClaimAnswer) error { return semel.ErrClosed }),
		class: all(semel.ClassUnknown), runs: all(0), state: all(semel.Claimed), next: semel.InFlight,
	},
	{
		name: "the repeated claim of the key is refused",
		claim: lostFirst(func(answers []semel.ClaimAnswer) error {
			answers[0].Err = semel.ErrStoreFull
			return nil
		}),
		class: all(semel.ClassUnknown), runs: all(0), state: all(semel.Claimed), next: semel.InFlight,
	},
	{
		name: "the repeated claim of the key is refused permanently",
		claim: lostFirst(func(answers []semel.ClaimAnswer) error {
			answers[0].Err = semel.ErrInvalidKey
			return nil
		}),
		class: all(semel.ClassPermanent), runs: all(0), state: all(semel.Claimed), next: semel.InFlight,
	},
	{
		name:  "the store decides nothing and says nothing",
		claim: func(*engineRun, context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error { return nil },
		class: all(semel.ClassUnknown), runs: all(0), is: []error{semel.ErrOutcomeUnknown}, next: semel.Fresh, attempt: 1,
	},
	{
		name: "the claim fails because of another message",
		claim: func(r *engineRun, ctx context.Context, _ []semel.ClaimRequest, _ []semel.ClaimAnswer) error {
			r.cancel(errForeign)
			return fmt.Errorf("the store waited: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
		},
		class: all(semel.ClassUnknown), runs: all(0), is: []error{context.Canceled}, next: semel.Fresh, attempt: 1,
	},
	{
		name: "the claim of the key fails because of another message",
		claim: func(_ *engineRun, _ context.Context, _ []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			answers[0].Err = errForeign
			return nil
		},
		class: all(semel.ClassUnknown), runs: all(0), next: semel.Fresh, attempt: 1,
	},
	{
		name: "the claim fails for another key", keys: []string{"a", "b"},
		claim: func(r *engineRun, ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			var refused error
			for i := range reqs {
				if reqs[i].Key.ID == "b" {
					refused = semel.ErrStoreUnavailable
				} else if err := r.inner.Claim(ctx, reqs[i:i+1], answers[i:i+1]); err != nil {
					return err
				}
			}
			return refused
		},
		class: map[string]semel.Class{"a": semel.ClassNone, "b": semel.ClassRetryable}, runs: map[string]int{"a": 1}, state: map[string]semel.State{"a": semel.Done},
	},
	{
		name: "the claim was answered, and is asked again for another key", keys: []string{"a", "b"},
		claim: func(r *engineRun, ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			if r.calls++; r.calls > 1 && reqs[0].Key.ID == "a" {
				return semel.ErrStoreUnavailable
			}
			for i := range reqs {
				if reqs[i].Key.ID == "a" {
					return errors.Join(r.inner.Claim(ctx, reqs[i:i+1], answers[i:i+1]), errReset)
				}
			}
			return semel.ErrStoreUnavailable
		},
		class: map[string]semel.Class{"a": semel.ClassNone}, runs: map[string]int{"a": 1}, state: map[string]semel.State{"a": semel.Done},
	},
	{
		name: "the context ended before the claim",
		before: func(r *engineRun) {
			r.cancel(errForeign)
		},
		class: all(semel.ClassUnknown), runs: all(0), is: []error{context.Canceled}, next: semel.Fresh, attempt: 1,
	},
	{
		name: "the lease is lost, and the effect returns the error of its context",
		extend: func(*engineRun, context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error {
			return semel.ErrStoreUnavailable
		},
		effect: untilLost,
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrLeaseLost, semel.ErrStoreUnavailable}, next: semel.Fresh, attempt: 2,
		events: []semel.EventKind{semel.EventLeaseLost, semel.EventStoreError, semel.EventReleased},
		check:  endedWithTheLease,
	},
	{
		name: "a renewal does not return",
		opts: func(o *semel.GuardOptions) { o.Heartbeat = 25 * time.Second },
		extend: func(r *engineRun, ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			if r.calls++; r.calls > 1 {
				return r.inner.Extend(ctx, reqs, answers)
			}
			<-ctx.Done()
			return ctx.Err()
		},
		effect: untilLost,
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrLeaseLost}, next: semel.Fresh, attempt: 2,
		check: endedWithTheLease,
	},
	{
		name: "a renewal is answered although its call failed",
		extend: func(r *engineRun, ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			return errors.Join(r.inner.Extend(ctx, reqs, answers), semel.ErrStoreUnavailable)
		},
		effect: func(_ *engineRun, ctx context.Context, _ string) ([]byte, error) {
			<-time.After(2 * time.Minute)
			return nil, ctx.Err()
		},
		class: all(semel.ClassNone), runs: all(1), state: all(semel.Done), next: semel.Duplicate,
		events: []semel.EventKind{semel.EventStoreError},
	},
	{
		name: "the renewal fails because of another message",
		extend: func(r *engineRun, ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			if r.calls++; r.calls > 1 {
				return r.inner.Extend(ctx, reqs, answers)
			}
			answers[0].Err = errForeign
			return nil
		},
		effect: func(_ *engineRun, ctx context.Context, _ string) ([]byte, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		},
		class: all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrLeaseLost}, next: semel.Fresh, attempt: 2,
	},
	{
		name: "the lease of another key is lost", keys: []string{"a", "b"},
		effect: func(r *engineRun, _ context.Context, id string) ([]byte, error) {
			if id == "a" { // the first effect takes the key of its claim away
				if _, err := r.inner.Remove(context.Background(), semel.Key{ID: "a"}); err != nil {
					r.Error(err)
				}
			}
			<-time.After(2 * time.Minute) // whatever the context says
			if id == "b" {
				if a := r.another("b", time.Second); a.Decision != semel.InFlight {
					r.Errorf("another holder gets %s during the effect", a.Decision)
				}
			}
			return nil, nil
		},
		class: map[string]semel.Class{"a": semel.ClassUnknown, "b": semel.ClassNone}, runs: all(1), state: map[string]semel.State{"b": semel.Done},
		events: []semel.EventKind{semel.EventLeaseLost, semel.EventCompletionRefused, semel.EventCompleted},
	},
	{
		name:   "the effect fails",
		effect: func(*engineRun, context.Context, string) ([]byte, error) { return nil, errBroken },
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{errBroken}, not: []error{semel.ErrOutcomeUnknown}, next: semel.Fresh, attempt: 1,
		events: []semel.EventKind{semel.EventReleased},
	},
	{
		name: "the effect fails after an attempt that may have had it", claimed: true,
		effect: func(*engineRun, context.Context, string) ([]byte, error) { return nil, errBroken },
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{errBroken}, state: all(semel.Claimed), next: semel.Fresh, attempt: 3,
		events: []semel.EventKind{semel.EventTookOver, semel.EventReleased},
	},
	{
		name:   "the effect may have happened",
		effect: func(*engineRun, context.Context, string) ([]byte, error) { return nil, semel.ErrOutcomeUnknown },
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrOutcomeUnknown}, state: all(semel.Claimed), next: semel.Fresh, attempt: 2,
		events: []semel.EventKind{semel.EventReleased},
	},
	{
		name: "the effect may have happened, and such keys are held", hold: true,
		effect: func(*engineRun, context.Context, string) ([]byte, error) { return nil, context.DeadlineExceeded },
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{context.DeadlineExceeded}, state: all(semel.Unknown), next: semel.OutcomeUnknown,
		events: []semel.EventKind{semel.EventReleased},
	},
	{
		name: "the effect fails, and keys in doubt are held", hold: true,
		effect: func(*engineRun, context.Context, string) ([]byte, error) { return nil, errBroken },
		class:  all(semel.ClassUnknown), runs: all(1), is: []error{errBroken}, next: semel.Fresh, attempt: 1,
	},
	{
		name: "the context ends during the effect",
		effect: func(r *engineRun, ctx context.Context, _ string) ([]byte, error) {
			r.cancel(errForeign)
			<-ctx.Done()
			return nil, ctx.Err()
		},
		class: all(semel.ClassUnknown), runs: all(1), is: []error{context.Canceled}, not: []error{semel.ErrLeaseLost}, state: all(semel.Claimed), next: semel.Fresh, attempt: 2,
	},
	{
		name: "the context ends after the effect, and answers to the completion are lost",
		effect: func(r *engineRun, _ context.Context, _ string) ([]byte, error) {
			r.cancel(errForeign)
			return []byte("ok"), nil
		},
		complete: func(r *engineRun, ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			err := r.inner.Complete(ctx, reqs, answers)
			if r.calls++; r.calls < 3 {
				return errReset
			}
			return err
		},
		class: all(semel.ClassNone), runs: all(1), state: all(semel.Done), next: semel.Duplicate,
		events: []semel.EventKind{semel.EventStoreError, semel.EventCompleted},
	},
	{
		name: "no answer to the completion arrives",
		complete: func(r *engineRun, ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			_ = r.inner.Complete(ctx, reqs, answers)
			clear(answers)
			return errReset
		},
		class: all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrOutcomeUnknown, errReset}, state: all(semel.Done), next: semel.Duplicate,
		check: func(r *engineRun) {
			if took := time.Since(r.began); took < semel.DefaultLease || took > semel.DefaultLease+5*time.Second {
				r.Errorf("it asked for %v, want for as long as a lease", took)
			}
		},
	},
	{
		name: "the store fails at the completion",
		complete: func(r *engineRun, _ context.Context, _ []semel.CompleteRequest, _ []error) error {
			if r.calls++; r.calls > 1 {
				r.Errorf("a store that failed is asked again")
			}
			return semel.ErrStoreFailed
		},
		class: all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrOutcomeUnknown, semel.ErrStoreFailed}, state: all(semel.Claimed), next: semel.InFlight,
	},
	{
		name: "the repeated completion is answered with silence for success",
		complete: func(r *engineRun, ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			if r.calls++; r.calls == 1 {
				answers[0] = semel.ErrStoreUnavailable
				return semel.ErrStoreUnavailable
			}
			quiet := make([]error, len(reqs)) // this store writes errors only
			err := r.inner.Complete(ctx, reqs, quiet)
			for i, e := range quiet {
				if e != nil {
					answers[i] = e
				}
			}
			return err
		},
		class: all(semel.ClassNone), runs: all(1), state: all(semel.Done), next: semel.Duplicate,
	},
	{
		name: "the completion fails because of another message",
		complete: func(*engineRun, context.Context, []semel.CompleteRequest, []error) error {
			return errForeign
		},
		// The completion is repeated for as long as the lease lasts.
		class: all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrOutcomeUnknown}, state: all(semel.Claimed), next: semel.Fresh, attempt: 2,
	},
	{
		name: "the completion of the key fails because of another message",
		complete: func(_ *engineRun, _ context.Context, _ []semel.CompleteRequest, answers []error) error {
			answers[0] = errForeign
			return nil
		},
		class: all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrOutcomeUnknown}, state: all(semel.Claimed), next: semel.InFlight,
	},
	{
		name: "the result is too large, and the answer to the completion without it is lost", large: 4,
		effect: func(*engineRun, context.Context, string) ([]byte, error) { return []byte("too long"), nil },
		complete: func(r *engineRun, ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			if r.calls++; r.calls == 2 {
				return errReset
			}
			return r.inner.Complete(ctx, reqs, answers)
		},
		class: all(semel.ClassNone), runs: all(1), state: all(semel.Done), next: semel.Duplicate,
	},
	{
		name: "the key is removed during the effect",
		effect: func(r *engineRun, ctx context.Context, id string) ([]byte, error) {
			_, err := r.inner.Remove(ctx, semel.Key{ID: id})
			return nil, err
		},
		class: all(semel.ClassUnknown), runs: all(1), is: []error{semel.ErrLeaseLost, semel.ErrStaleToken}, next: semel.Fresh, attempt: 1,
		events: []semel.EventKind{semel.EventCompletionRefused},
	},
	{
		name: "another holder has the key", hold: true,
		before: func(r *engineRun) { r.another("a", time.Hour) },
		class:  all(semel.ClassRetryable), runs: all(0), is: []error{semel.ErrInFlight}, state: all(semel.Claimed), next: semel.InFlight,
	},
}

// lostThenAnswered makes the claim, and loses the answer of the first call.
func lostThenAnswered(r *engineRun, ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if r.calls++; r.calls == 1 {
		_ = r.inner.Claim(ctx, reqs, make([]semel.ClaimAnswer, len(reqs)))
		return errReset
	}
	return r.inner.Claim(ctx, reqs, answers)
}

// untilLost is an effect that ends with its context.
func untilLost(r *engineRun, ctx context.Context, id string) ([]byte, error) {
	began := time.Now()
	<-ctx.Done()
	if !errors.Is(context.Cause(ctx), semel.ErrLeaseLost) {
		r.Errorf("the effect's context ended with %v", context.Cause(ctx))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended[id] = time.Since(began)
	return nil, ctx.Err()
}

func endedWithTheLease(r *engineRun) {
	if lasted := r.ended["a"]; lasted < semel.DefaultLease-time.Second || lasted > semel.DefaultLease {
		r.Errorf("the effect was ended after %v, its lease is %v", lasted, semel.DefaultLease)
	}
}

// another claims a key as another process does.
func (r *engineRun) another(id string, lease time.Duration) semel.ClaimAnswer {
	r.Helper()
	r.nonce++
	answers := make([]semel.ClaimAnswer, 1)
	req := semel.ClaimRequest{Key: semel.Key{ID: id}, Owner: semel.Owner{Name: "another", Nonce: r.nonce}, Lease: lease, Window: time.Hour}
	if err := r.inner.Claim(context.Background(), []semel.ClaimRequest{req}, answers); err != nil {
		r.Fatal(err)
	}
	return answers[0]
}

func (r *engineRun) effect(ctx context.Context, id string) ([]byte, error) {
	r.mu.Lock()
	r.runs[id]++
	r.mu.Unlock()
	if r.c.effect == nil {
		return nil, nil
	}
	return r.c.effect(r, ctx, id)
}

func (r *engineRun) context() context.Context {
	ctx, cancel := context.WithCancelCause(r.Context())
	r.cancel = cancel
	if r.c.before != nil {
		r.c.before(r)
	}
	return ctx
}

// do makes the calls concurrently.
func (r *engineRun) do() map[string]error {
	ctx, g := r.context(), newGuard(r.T, r.store, r.opts)
	errs := make([]error, len(r.c.keys))
	var calls sync.WaitGroup
	for i, id := range r.c.keys {
		calls.Go(func() {
			_, errs[i] = g.Do(ctx, semel.Key{ID: id}, func(ctx context.Context, _ semel.Claim) ([]byte, error) { return r.effect(ctx, id) })
		})
		synctest.Wait()
	}
	calls.Wait()
	return r.byKey(errs)
}

func (r *engineRun) byKey(errs []error) map[string]error {
	m := map[string]error{}
	for i, id := range r.c.keys {
		m[id] = errs[i]
	}
	return m
}

func (r *engineRun) doBatch() map[string]error {
	ctx := r.context()
	calls := make([]semel.Call, len(r.c.keys))
	for i, id := range r.c.keys {
		calls[i].Key = semel.Key{ID: id}
	}
	errs := make([]error, len(calls))
	for i, out := range newGuard(r.T, r.store, r.opts).DoBatch(ctx, calls, func(ctx context.Context, fresh []*semel.BatchItem) error {
		for _, item := range fresh {
			item.Data, item.Err = r.effect(ctx, item.Call.Key.ID)
		}
		return nil
	}) {
		errs[i] = out.Err
	}
	return r.byKey(errs)
}

// engineSink is a sink whose deliveries are the effects of a run.
type engineSink struct{ r *engineRun }

func (s engineSink) Deliver(ctx context.Context, items []*pipeline.Item) {
	for _, it := range items {
		data, err := s.r.effect(ctx, it.Call.Key.ID)
		if it.Err = err; data != nil {
			it.Result = semel.Result{Kind: semel.Value, Data: data}
		}
	}
}
func (engineSink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{} }
func (engineSink) Close(context.Context) error { return nil }

// twoPhase processes a message of each key once. What the session still holds is
// abandoned, as the runner does with a message that goes back to its source.
func (r *engineRun) twoPhase() map[string]error {
	ctx := r.context()
	session, err := pipeline.NewTwoPhase(r.store, engineSink{r}, &pipeline.TwoPhaseOptions{Guard: r.opts})
	if err != nil {
		r.Fatal(err)
	}
	partition := pipeline.NewPartition("p")
	items := make([]*pipeline.Item, len(r.c.keys))
	for i, id := range r.c.keys {
		items[i] = &pipeline.Item{Partition: partition, Group: uint64(i + 1), Call: semel.Call{Key: semel.Key{ID: id}}}
	}
	session.Process(ctx, items)
	errs := make([]error, len(items))
	for i, it := range items {
		errs[i] = it.Err
		_, store := errors.AsType[*pipeline.StoreError](it.Err)
		if ran := r.runs[r.c.keys[i]] > 0; ran && store != (it.Held != nil && strings.Contains(fmt.Sprint(it.Err), "the effect ran")) {
			r.Errorf("%v is an error of the store: %t", it.Err, store)
		}
	}
	r.dropUnfinished(ctx, session, items)
	if err := session.Close(r.Context()); err != nil {
		r.Error(err)
	}
	return r.byKey(errs)
}

// dropUnfinished abandons items. A message whose effect happened is not abandoned
// by a runner; its completion is repeated, and here its process ends instead.
func (r *engineRun) dropUnfinished(ctx context.Context, session *pipeline.TwoPhase, items []*pipeline.Item) {
	session.Abandon(ctx, slices.DeleteFunc(items, func(it *pipeline.Item) bool {
		return r.runs[it.Call.Key.ID] > 0 && strings.Contains(fmt.Sprint(it.Err), "the effect ran")
	}))
}

func TestDoAndDoBatchAgree(t *testing.T) {
	t.Parallel()
	for _, c := range engineCases {
		for name, run := range engines {
			t.Run(c.name+", "+name, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { newEngineRun(t, c).verify(run) })
			})
		}
	}
}

func newEngineRun(t *testing.T, c engineCase) *engineRun {
	if c.keys == nil {
		c.keys = []string{"a"}
	}
	inner := newStore(t, &memstore.Options{MaxResult: c.large})
	r := &engineRun{T: t, c: &c, inner: inner, store: &hooked{Store: inner}, journal: &journal{}, runs: map[string]int{}, ended: map[string]time.Duration{}}
	r.opts = semel.GuardOptions{Observer: r.journal}
	if c.hold {
		r.opts.OnLeaseExpired = semel.ExpiryHold
	}
	if c.opts != nil {
		c.opts(&r.opts)
	}
	if c.claimed {
		r.another("a", time.Minute)
		<-time.After(time.Minute)
	}
	if c.claim != nil {
		r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
			return c.claim(r, ctx, reqs, answers)
		}
	}
	if c.complete != nil {
		r.store.complete = func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			return c.complete(r, ctx, reqs, answers)
		}
	}
	if c.extend != nil {
		r.store.extend = func(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
			return c.extend(r, ctx, reqs, answers)
		}
	}
	return r
}

func (r *engineRun) verify(run func(*engineRun) map[string]error) {
	r.began = time.Now()
	c, errs := r.c, run(r)
	if c.check != nil {
		c.check(r)
	}
	for _, id := range c.keys {
		err := errs[id]
		if want, ok := of(c.class, id); ok && semel.Classify(err) != want {
			r.Errorf("%s: %v is %s, want %s", id, err, semel.Classify(err), want)
		}
		for _, want := range c.is {
			if !errors.Is(err, want) {
				r.Errorf("%s: %v does not wrap %v", id, err, want)
			}
		}
		for _, other := range c.not {
			if errors.Is(err, other) {
				r.Errorf("%s: %v wraps %v", id, err, other)
			}
		}
		if want, _ := of(c.runs, id); r.runs[id] != want {
			r.Errorf("%s: the effect ran %d times, want %d", id, r.runs[id], want)
		}
		record := look(r.T, r.inner, semel.Key{ID: id})
		if want, ok := of(c.state, id); ok && record.State != want {
			r.Errorf("%s: the record is %s, want %s", id, record.State, want)
		}
	}
	for _, kind := range c.events {
		if !r.journal.has(kind) {
			r.Errorf("the event %s is missing", kind)
		}
	}
	if c.next != semel.Undecided {
		<-time.After(time.Second)
		if a := r.another("a", time.Minute); a.Decision != c.next || a.Claim.Attempt != c.attempt && c.attempt != 0 {
			r.Errorf("the next delivery is %s, attempt %d, want %s, attempt %d", a.Decision, a.Claim.Attempt, c.next, c.attempt)
		}
	}
}
