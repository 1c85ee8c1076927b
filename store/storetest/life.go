package storetest

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

var lifeCases = []testCase{
	{"a call with a cancelled context changes nothing", cancelledBefore},
	{"calls cancelled in the middle leave a legal state", cancelledDuring},
	{"calls during close are answered or refused", closeDuringCalls},
	{"a closed store refuses every call", closedRefuses},
}

// wantUntouched checks for the error of a call whose context ended before it.
func (e *env) wantUntouched(verb string, err error) {
	e.Helper()
	if semel.Classify(err) != semel.ClassRetryable || !errors.Is(err, context.Canceled) {
		e.Errorf("%s after the end of its context: %v, want ErrStoreUnavailable with the error of the context", verb, err)
	}
}

// wantCancelled checks for an error that a call cancelled on its way may return.
func (e *env) wantCancelled(verb string, err error) {
	e.Helper()
	for _, allowed := range []error{nil, context.Canceled, semel.ErrOutcomeUnknown, semel.ErrStoreUnavailable} {
		if errors.Is(err, allowed) {
			return
		}
	}
	e.Errorf("%s with a cancelled context: %v, want no error or one that says cancelled or unknown", verb, err)
}

// do calls a guard of the store, whose effect must not run.
func (e *env) do(ctx context.Context) error {
	guard, err := semel.NewGuard(e.store, nil)
	if err == nil {
		_, err = guard.Do(ctx, e.key(), func(context.Context, semel.Claim) ([]byte, error) {
			e.Error("an effect runs without a claim")
			return nil, nil
		})
	}
	return err
}

func cancelledBefore(e *env) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	key := e.key()
	e.wantUntouched("claim", e.store.Claim(ctx, []semel.ClaimRequest{e.request(key)}, make([]semel.ClaimAnswer, 1)))
	c := e.fresh(e.request(key)) // of another owner
	e.want(semel.InFlight, e.request(key))

	extended := make([]semel.ExtendAnswer, 1)
	e.wantUntouched("extend", e.store.Extend(ctx, []semel.ExtendRequest{{Key: key, Token: c.Token, Lease: e.lease}}, extended))
	if a := e.extend(key, c.Token, e.lease); a.Err != nil {
		e.Errorf("extend after a cancelled extend: %v", a.Err)
	}

	errs := make([]error, 1)
	complete := semel.CompleteRequest{Key: key, Token: c.Token, Result: text("r"), Window: e.window}
	e.wantUntouched("complete", e.store.Complete(ctx, []semel.CompleteRequest{complete}, errs))
	e.want(semel.InFlight, e.request(key))
	e.mustComplete(key, c.Token, text("r"))
	e.wantResult(key, text("r"))

	key = e.key()
	c = e.fresh(e.request(key))
	e.wantUntouched("release", e.store.Release(ctx, []semel.ReleaseRequest{{Key: key, Token: c.Token}}, errs))
	if err := e.release(semel.ReleaseRequest{Key: key, Token: c.Token}); err != nil {
		e.Errorf("release after one that was cancelled: %v", err)
	}
	e.fresh(e.request(key))
	e.wantUntouched("Guard.Do", e.do(ctx))
}

func cancelledDuring(e *env) {
	const workers = 8
	rounds := times(60)
	type outcome struct {
		req       semel.ClaimRequest
		token     semel.Token // of a requested completion
		completed bool        // and answered
	}
	outcomes := make([][]outcome, workers)
	inParallel(workers, func(w int) {
		for i := range rounds {
			o := outcome{req: e.request(e.key())}
			ctx, cancel := context.WithCancel(context.Background())
			var group sync.WaitGroup
			group.Go(func() {
				for range i % 20 {
					runtime.Gosched()
				}
				cancel()
			})
			answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
			err := e.store.Claim(ctx, []semel.ClaimRequest{o.req}, answers)
			e.wantCancelled("claim", err)
			if err == nil {
				o.token = answers[0].Claim.Token
				err = e.store.Complete(ctx, []semel.CompleteRequest{
					{Key: o.req.Key, Token: o.token, Result: text(o.req.Key.ID), Window: e.window},
				}, errs)
				e.wantCancelled("complete", err)
				o.completed = err == nil && errs[0] == nil
			}
			group.Wait()
			outcomes[w] = append(outcomes[w], o)
		}
	})
	for _, list := range outcomes {
		for _, o := range list {
			a := e.claim(o.req)
			switch {
			case a.Decision == semel.Fresh && !o.completed && (o.token == 0 || a.Claim.Token == o.token):
				e.want(semel.InFlight, e.request(o.req.Key))
				e.mustComplete(o.req.Key, a.Claim.Token, text(o.req.Key.ID))
			case a.Decision == semel.Duplicate && o.token != 0:
			default:
				e.Errorf("after a cancelled call (completion asked for: %t, answered: %t) its claim is %s with token %d, had %d",
					o.token != 0, o.completed, a.Decision, a.Claim.Token, o.token)
				continue
			}
			e.wantResult(o.req.Key, text(o.req.Key.ID))
		}
	}
}

// within checks that f returns within the suite's patience.
func (e *env) within(what string, f func()) {
	e.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		e.Fatalf("%s hangs", what)
	}
}

func closeDuringCalls(e *env) {
	closer, ok := e.inner.(io.Closer)
	if !ok {
		oneRacerWins(e) // nothing to close; the store continues to work
		return
	}
	const workers = 8
	var completed [workers][]semel.Key
	var calls atomic.Int64
	enough := make(chan struct{})
	e.within("closing during calls", func() {
		inParallel(workers+1, func(w int) {
			if w == workers {
				<-enough
				if err := closer.Close(); err != nil {
					e.Errorf("close during calls: %v", err)
				}
				return
			}
			for {
				key, err := e.cycle()
				if calls.Add(1) == 200 {
					close(enough)
				}
				if err != nil {
					if !errors.Is(err, semel.ErrClosed) {
						e.Errorf("a call during close: %v, want ErrClosed", err)
					}
					return
				}
				completed[w] = append(completed[w], key)
			}
		})
	})
	if !e.traits.Durable {
		return
	}
	e.reopen()
	for _, keys := range completed {
		for _, key := range keys {
			e.wantResult(key, text(key.ID))
		}
	}
}

// cycle claims and completes a new key. It is safe for concurrent use.
func (e *env) cycle() (semel.Key, error) {
	key := e.key()
	answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
	if err := e.store.Claim(context.Background(), []semel.ClaimRequest{e.request(key)}, answers); err != nil {
		return key, err
	}
	if answers[0].Decision != semel.Fresh {
		e.Errorf("the first claim of %s is answered %s, %v", key, answers[0].Decision, answers[0].Err)
	}
	err := e.store.Complete(context.Background(), []semel.CompleteRequest{
		{Key: key, Token: answers[0].Claim.Token, Result: text(key.ID), Window: e.window},
	}, errs)
	if err == nil {
		err = errs[0]
	}
	return key, err
}

func closedRefuses(e *env) {
	closer, ok := e.inner.(io.Closer)
	if !ok {
		firstClaimIsGranted(e) // nothing to close
		return
	}
	key := e.key()
	c := e.fresh(e.request(key))
	for range 2 {
		if err := closer.Close(); err != nil && !errors.Is(err, semel.ErrClosed) {
			e.Fatalf("close: %v", err)
		}
	}
	ctx := e.Context()
	for verb, err := range map[string]error{
		"claim":    e.store.Claim(ctx, []semel.ClaimRequest{e.request(key)}, make([]semel.ClaimAnswer, 1)),
		"complete": e.store.Complete(ctx, []semel.CompleteRequest{{Key: key, Token: c.Token, Window: e.window}}, make([]error, 1)),
		"release":  e.store.Release(ctx, []semel.ReleaseRequest{{Key: key, Token: c.Token}}, make([]error, 1)),
		"extend":   e.store.Extend(ctx, []semel.ExtendRequest{{Key: key, Token: c.Token, Lease: e.lease}}, make([]semel.ExtendAnswer, 1)),
		"Guard.Do": e.do(ctx),
	} {
		if !errors.Is(err, semel.ErrClosed) || semel.Classify(err) != semel.ClassPermanent {
			e.Errorf("%s on a closed store: %v, want ErrClosed without another class", verb, err)
		}
	}
}
