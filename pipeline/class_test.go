package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// TestEachErrorOfATwoPhaseSessionHasItsClass causes each error that Session documents
// for its items.
func TestEachErrorOfATwoPhaseSessionHasItsClass(t *testing.T) {
	t.Parallel()
	failed := errors.New("the target refuses")
	remove := func(r *rig) {
		if _, err := r.store.Store.(semel.Resolver).Remove(context.Background(), semel.Key{ID: "a"}); err != nil {
			r.t.Error(err)
		}
	}
	refuseClaim := func(r *rig, err error) {
		r.store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error { return err }
	}
	for name, c := range map[string]struct {
		before  func(r *rig, call *semel.Call)
		deliver func(r *rig, ctx context.Context) error
		want    error
		class   semel.Class
	}{
		"another holds the key": {
			before: func(r *rig, _ *semel.Call) { r.claim("a", time.Hour) },
			want:   semel.ErrInFlight, class: semel.ClassRetryable},
		"the key has another payload": {
			before: func(r *rig, call *semel.Call) {
				call.Fingerprint = semel.Fingerprint{1}
				req := []semel.ClaimRequest{{Key: call.Key, Fingerprint: semel.Fingerprint{2}, Window: time.Hour, Done: true}}
				if err := r.store.Store.Claim(context.Background(), req, make([]semel.ClaimAnswer, 1)); err != nil {
					r.t.Error(err)
				}
			},
			want: semel.ErrMismatch, class: semel.ClassPermanent},
		"the message is late": {
			before: func(_ *rig, call *semel.Call) { call.Time = time.Unix(0, 0) },
			want:   semel.ErrLate, class: semel.ClassPermanent},
		"the key is unknown": {
			before: func(r *rig, _ *semel.Call) {
				a := r.claim("a", time.Hour)
				req := []semel.ReleaseRequest{{Key: semel.Key{ID: "a"}, Token: a.Claim.Token, Unknown: true}}
				if err := r.store.Store.Release(context.Background(), req, make([]error, 1)); err != nil {
					r.t.Error(err)
				}
			},
			want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		"the store is away at the claim": {
			before: func(r *rig, _ *semel.Call) { refuseClaim(r, semel.ErrStoreUnavailable) },
			want:   semel.ErrStoreUnavailable, class: semel.ClassRetryable},
		"the store does not answer the claim": {
			before: func(r *rig, _ *semel.Call) { refuseClaim(r, semel.ErrOutcomeUnknown) },
			want:   semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		"the store refuses the key": {
			before: func(_ *rig, call *semel.Call) { call.Key.ID = "" },
			want:   semel.ErrInvalidKey, class: semel.ClassPermanent},
		"the store is away at the completion": {
			before: func(r *rig, _ *semel.Call) {
				r.store.complete = func(context.Context, []semel.CompleteRequest, []error) error { return semel.ErrStoreUnavailable }
			},
			want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		"the sink fails": {
			deliver: func(*rig, context.Context) error { return failed },
			want:    failed, class: semel.ClassUnknown},
		"the sink fails permanently": {
			deliver: func(*rig, context.Context) error { return semel.Permanent(failed) },
			want:    failed, class: semel.ClassPermanent},
		"the key is removed during the delivery": {
			deliver: func(r *rig, _ context.Context) error {
				remove(r)
				return nil
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		"another takes the key over during the delivery": {
			deliver: func(r *rig, _ context.Context) error {
				remove(r)
				r.claim("a", time.Hour)
				return nil
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		"the delivery stops because its key was removed": {
			deliver: func(r *rig, ctx context.Context) error {
				remove(r)
				<-ctx.Done()
				return context.Cause(ctx)
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		"the delivery stops because the store is away": {
			before: func(r *rig, _ *semel.Call) {
				r.store.extend = func(context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error {
					return semel.ErrStoreUnavailable
				}
			},
			deliver: func(_ *rig, ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				sink := pipeline.NewHandler(func(ctx context.Context, _ pipeline.Delivery) (semel.Result, error) {
					if c.deliver == nil {
						return semel.Result{}, nil
					}
					return semel.Result{}, c.deliver(r, ctx)
				})

				session, err := pipeline.NewTwoPhase(r.store, sink, &r.phases)
				if err != nil {
					t.Fatal(err)
				}
				it := message(r.partition, 1, "a", "")
				it.Call.Key = semel.Key{ID: "a"}
				if c.before != nil {
					c.before(r, &it.Call)
				}
				session.Process(t.Context(), []*pipeline.Item{it})
				switch {
				case !errors.Is(it.Err, c.want):
					t.Errorf("got %v, want %v", it.Err, c.want)
				case semel.Classify(it.Err) != c.class:
					t.Errorf("%v is %s, want %s", it.Err, semel.Classify(it.Err), c.class)
				}
				r.store.heal()
				session.Abandon(t.Context(), []*pipeline.Item{it})
				if err := session.Close(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
