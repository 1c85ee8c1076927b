package semel_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

// classCase is one error that a guard documents.
type classCase struct {
	name string
	// before prepares the store, its hooks and the guard's options.
	before func(s *classScene)
	call   semel.Call
	// fn is the effect; nil means an effect that succeeds.
	fn func(s *classScene, ctx context.Context) ([]byte, error)
	// want is nil for an error that wraps no sentinel.
	want  error
	class semel.Class
	// alone means that DoBatch differs: it does not wait for keys.
	alone bool
}

// classScene is the setup of a case.
type classScene struct {
	*testing.T
	ctx    context.Context
	cancel context.CancelCauseFunc
	inner  *memstore.Store
	store  *hooked
	opts   semel.GuardOptions
}

// claimed claims the key as another holder.
func (s *classScene) claimed(lease time.Duration, hold bool) semel.Claim {
	s.Helper()
	answer := make([]semel.ClaimAnswer, 1)
	req := semel.ClaimRequest{Key: orderKey, Owner: semel.Owner{Name: "another"}, Lease: lease, Window: time.Hour, Hold: hold}
	if err := s.inner.Claim(context.Background(), []semel.ClaimRequest{req}, answer); err != nil || answer[0].Decision != semel.Fresh {
		s.Fatalf("another claims the key: %s, %v", answer[0].Decision, err)
	}
	return answer[0].Claim
}

// done completes the key as another holder.
func (s *classScene) done(result semel.Result, print semel.Fingerprint) {
	s.Helper()
	answer, done := make([]semel.ClaimAnswer, 1), make([]error, 1)
	req := semel.ClaimRequest{Key: orderKey, Lease: time.Minute, Window: time.Hour, Fingerprint: print}
	err := s.inner.Claim(context.Background(), []semel.ClaimRequest{req}, answer)
	if err == nil {
		err = s.inner.Complete(context.Background(), []semel.CompleteRequest{{Key: orderKey, Token: answer[0].Claim.Token, Result: result, Window: time.Hour}}, done)
	}
	if err = errors.Join(err, done[0]); err != nil {
		s.Fatal(err)
	}
}

// remove deletes the key while its effect runs.
func (s *classScene) remove() {
	s.Helper()
	if _, err := s.inner.Remove(context.Background(), orderKey); err != nil {
		s.Fatal(err)
	}
}

// refuseClaim makes the store's Claim fail with an error.
func (s *classScene) refuseClaim(err error) {
	s.store.claim = func(context.Context, []semel.ClaimRequest, []semel.ClaimAnswer) error { return err }
}

func (s *classScene) refuseComplete(err error) {
	s.store.complete = func(context.Context, []semel.CompleteRequest, []error) error { return err }
}

func (s *classScene) refuseExtend(err error) {
	s.store.extend = func(context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error { return err }
}

// untilEnd is an effect that waits for the end of its context and returns the
// cause.
func untilEnd(_ *classScene, ctx context.Context) ([]byte, error) {
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

var (
	errOwn        = errors.New("out of stock")
	errPark       = errors.New("the parking place is full")
	classPayload  = semel.Fingerprint{1}
	classTooLarge = make([]byte, 101)
)

// classCases lists each error that Do and its variants document.
func classCases() []classCase {
	return []classCase{
		{name: "the key is invalid", call: semel.Call{Key: semel.Key{Scope: "no id"}}, want: semel.ErrInvalidKey, class: semel.ClassPermanent},
		{name: "the effect fails",
			fn:   func(*classScene, context.Context) ([]byte, error) { return nil, errOwn },
			want: errOwn, class: semel.ClassUnknown},
		{name: "the effect fails permanently",
			fn:   func(*classScene, context.Context) ([]byte, error) { return nil, semel.Permanent(errOwn) },
			want: errOwn, class: semel.ClassPermanent},
		{name: "the effect failed permanently before",
			before: func(s *classScene) {
				s.done(semel.Result{Kind: semel.Failed, Data: []byte("no account")}, semel.Fingerprint{})
			},
			class: semel.ClassPermanent},
		{name: "the effect does not know its outcome",
			fn:   func(*classScene, context.Context) ([]byte, error) { return nil, semel.ErrOutcomeUnknown },
			want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		{name: "the caller cancels the effect",
			fn: func(s *classScene, ctx context.Context) ([]byte, error) {
				s.cancel(nil)
				return nil, ctx.Err()
			},
			want: context.Canceled, class: semel.ClassUnknown},
		{name: "another holds the key",
			before: func(s *classScene) { s.claimed(time.Hour, false) },
			want:   semel.ErrInFlight, class: semel.ClassRetryable},
		{name: "the caller ends the wait for a key",
			before: func(s *classScene) {
				s.opts.Wait = time.Hour
				s.claimed(time.Hour, false)
				time.AfterFunc(time.Second, func() { s.cancel(nil) })
			},
			want: context.Canceled, class: semel.ClassUnknown, alone: true},
		{name: "a foreign failure ends the wait for a key",
			before: func(s *classScene) {
				s.opts.Wait = time.Hour
				s.claimed(time.Hour, false)
				time.AfterFunc(time.Second, func() { s.cancel(semel.Permanent(errOwn)) })
			},
			want: context.Canceled, class: semel.ClassUnknown, alone: true},
		{name: "the key has another payload",
			before: func(s *classScene) { s.done(semel.Result{}, semel.Fingerprint{2}) },
			call:   semel.Call{Key: orderKey, Fingerprint: classPayload},
			want:   semel.ErrMismatch, class: semel.ClassPermanent},
		{name: "the message is late",
			call: semel.Call{Key: orderKey, Time: time.Unix(0, 0)}, want: semel.ErrLate, class: semel.ClassPermanent},
		{name: "a late message cannot be parked",
			before: func(s *classScene) {
				s.opts.OnLate = semel.LatePark
				s.opts.Park = func(context.Context, *semel.Call, error) error { return errPark }
			},
			call: semel.Call{Key: orderKey, Time: time.Unix(0, 0)}, want: errPark, class: semel.ClassUnknown},
		{name: "the result was not kept",
			before: func(s *classScene) { s.done(semel.Result{Kind: semel.NotKept}, semel.Fingerprint{}) },
			want:   semel.ErrResultNotKept, class: semel.ClassPermanent},
		{name: "the key is unknown",
			before: func(s *classScene) {
				s.claimed(time.Second, true)
				<-time.After(2 * time.Second) // in the bubble
			},
			want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},

		{name: "the store is away at the claim",
			before: func(s *classScene) { s.refuseClaim(semel.ErrStoreUnavailable) },
			want:   semel.ErrStoreUnavailable, class: semel.ClassRetryable},
		{name: "the store is full",
			before: func(s *classScene) {
				s.store.claim = func(_ context.Context, _ []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
					answers[0].Err = semel.ErrStoreFull
					return nil
				}
			},
			want: semel.ErrStoreFull, class: semel.ClassRetryable},
		{name: "the store is closed", before: func(s *classScene) { s.refuseClaim(semel.ErrClosed) }, want: semel.ErrClosed, class: semel.ClassPermanent},
		{name: "the store is corrupt", before: func(s *classScene) { s.refuseClaim(semel.ErrCorrupt) }, want: semel.ErrCorrupt, class: semel.ClassPermanent},
		{name: "the store failed at the claim",
			before: func(s *classScene) { s.refuseClaim(semel.ErrStoreFailed) },
			want:   semel.ErrStoreFailed, class: semel.ClassUnknown},
		{name: "the store failed because its files are corrupt",
			before: func(s *classScene) { s.refuseClaim(errors.Join(semel.ErrStoreFailed, semel.ErrCorrupt)) },
			want:   semel.ErrStoreFailed, class: semel.ClassUnknown},
		{name: "the store does not answer the claim",
			before: func(s *classScene) { s.refuseClaim(semel.ErrOutcomeUnknown) },
			want:   semel.ErrOutcomeUnknown, class: semel.ClassUnknown},

		{name: "the store is away at the completion",
			before: func(s *classScene) { s.refuseComplete(semel.ErrStoreUnavailable) },
			want:   semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		{name: "the store is closed at the completion",
			before: func(s *classScene) { s.refuseComplete(semel.ErrClosed) },
			want:   semel.ErrOutcomeUnknown, class: semel.ClassUnknown},
		{name: "the store keeps no such result, and is away then",
			before: func(s *classScene) {
				s.store.complete = func(_ context.Context, reqs []semel.CompleteRequest, _ []error) error {
					if reqs[0].Result.Kind == semel.NotKept {
						return semel.ErrStoreUnavailable
					}
					return semel.ErrResultTooLarge
				}
			},
			fn:   func(*classScene, context.Context) ([]byte, error) { return classTooLarge, nil },
			want: semel.ErrOutcomeUnknown, class: semel.ClassUnknown},

		{name: "the key is removed during the effect",
			fn: func(s *classScene, _ context.Context) ([]byte, error) {
				s.remove()
				return []byte("done"), nil
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "another takes the key over during the effect",
			fn: func(s *classScene, _ context.Context) ([]byte, error) {
				s.remove()
				s.claimed(time.Hour, false)
				return []byte("done"), nil
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "another completes the key during the effect",
			fn: func(s *classScene, _ context.Context) ([]byte, error) {
				s.remove()
				s.done(semel.Result{}, semel.Fingerprint{})
				return []byte("done"), nil
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "the key is removed during an effect that fails permanently",
			fn: func(s *classScene, _ context.Context) ([]byte, error) {
				s.remove()
				return nil, semel.Permanent(errOwn)
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "the effect stops because its key was removed",
			fn: func(s *classScene, ctx context.Context) ([]byte, error) {
				s.remove()
				return untilEnd(s, ctx)
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "the effect stops because another took its key over",
			fn: func(s *classScene, ctx context.Context) ([]byte, error) {
				s.remove()
				s.claimed(time.Hour, false)
				return untilEnd(s, ctx)
			},
			want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "the effect stops because the store is away",
			before: func(s *classScene) { s.refuseExtend(semel.ErrStoreUnavailable) },
			fn:     untilEnd, want: semel.ErrLeaseLost, class: semel.ClassUnknown},
		{name: "the effect stops because the store is closed",
			before: func(s *classScene) { s.refuseExtend(semel.ErrClosed) },
			fn:     untilEnd, want: semel.ErrLeaseLost, class: semel.ClassUnknown},
	}
}

// TestEachErrorOfAGuardHasItsClass causes each error through a single call, a
// call with a typed result, and a batch.
func TestEachErrorOfAGuardHasItsClass(t *testing.T) {
	type doer func(s *classScene, g *semel.Guard, call semel.Call, fn semel.Func) error
	kin := map[string]doer{
		"DoCall": func(s *classScene, g *semel.Guard, call semel.Call, fn semel.Func) error {
			_, err := g.DoCall(s.ctx, call, fn)
			return err
		},
		"Run": func(s *classScene, g *semel.Guard, call semel.Call, fn semel.Func) error {
			if call != (semel.Call{Key: call.Key}) {
				_, err := g.DoCall(s.ctx, call, fn) // Run has no options
				return err
			}
			return g.Run(s.ctx, call.Key, func(ctx context.Context) error {
				claim, _ := semel.ClaimOf(ctx)
				_, err := fn(ctx, claim)
				return err
			})
		},
		"DoCodec": func(s *classScene, g *semel.Guard, call semel.Call, fn semel.Func) error {
			_, _, err := semel.DoCodec(s.ctx, g, call, semel.JSON[[]byte]{}, func(ctx context.Context) ([]byte, error) {
				claim, _ := semel.ClaimOf(ctx)
				return fn(ctx, claim)
			})
			return err
		},
		"DoBatch": func(s *classScene, g *semel.Guard, call semel.Call, fn semel.Func) error {
			return g.DoBatch(s.ctx, []semel.Call{call}, func(ctx context.Context, fresh []*semel.BatchItem) (err error) {
				fresh[0].Data, err = fn(ctx, fresh[0].Claim)
				return err
			})[0].Err
		},
	}
	for _, c := range classCases() {
		for name, do := range kin {
			if c.alone && name == "DoBatch" {
				continue // it has no such error
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					ctx, cancel := context.WithCancelCause(t.Context())
					defer cancel(nil)
					inner := newStore(t, nil)
					s := &classScene{T: t, ctx: ctx, cancel: cancel, inner: inner, store: &hooked{Store: inner}, opts: semel.GuardOptions{Lease: time.Second}}
					if c.before != nil {
						c.before(s)
					}
					call := c.call
					if call.Key == (semel.Key{}) {
						call.Key = orderKey
					}
					err := do(s, newGuard(t, s.store, s.opts), call, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
						if c.fn == nil {
							return []byte("done"), nil
						}
						return c.fn(s, ctx)
					})
					switch {
					case err == nil:
						t.Error("there is no error")
					case c.want != nil && !errors.Is(err, c.want):
						t.Errorf("got %v, want %v", err, c.want)
					case semel.Classify(err) != c.class:
						t.Errorf("%v is %s, want %s", err, semel.Classify(err), c.class)
					}
				})
			})
		}
	}
}
