package semel

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// Run claims the key, runs fn and completes the key. A duplicate returns nil, and fn does
// not run. Within fn, [ClaimOf] returns the claim. Run blocks as [Guard.Do] does, and
// returns the same errors. [Do] and Guard.Do are for effects with a result, and say whether
// the call was a duplicate.
func (g *Guard) Run(ctx context.Context, key Key, fn func(ctx context.Context) error) error {
	if fn == nil {
		return errNoEffect
	}
	_, err := g.Do(ctx, key, func(ctx context.Context, claim Claim) ([]byte, error) {
		return nil, fn(withClaim(ctx, claim))
	})
	return err
}

type claimKey struct{}

func withClaim(ctx context.Context, claim Claim) context.Context {
	return context.WithValue(ctx, claimKey{}, claim)
}

// ClaimOf returns the claim under which an effect runs: its fencing token and its attempt.
// ctx is the context that [Guard.Run], [Do] or [DoCodec] gave to the effect. With another
// context, ok is false.
func ClaimOf(ctx context.Context) (claim Claim, ok bool) {
	claim, ok = ctx.Value(claimKey{}).(Claim)
	return claim, ok
}

// Do claims the key, runs fn and completes the key with fn's result. A duplicate
// gets the stored result, and fn does not run. If the stored result is a
// permanent failure, the error is a [*PermanentError] with Replayed set.
//
// Do blocks while fn runs. If another holder has the key, it also blocks for up
// to the guard's Wait. Its errors are:
//   - the error of fn;
//   - ErrInFlight, ErrMismatch or ErrLate: fn did not run;
//   - ErrResultNotKept: the effect is complete but cannot be replayed;
//   - ErrOutcomeUnknown: the key is Unknown, or the effect ran and its
//     completion could not be recorded, so it may repeat;
//   - ErrLeaseLost: the effect ran or was stopped, and its key was taken over or
//     removed, so the effect may have happened in part, or twice;
//   - an error of the store or of Park.
//
// [MayAck] reports whether the message may be acknowledged after an error, and
// [Classify] returns the class of each. If fn returns the ErrResultNotKept of
// another key, Do returns only its text.
func (g *Guard) Do(ctx context.Context, key Key, fn Func) (Outcome, error) {
	return g.DoCall(ctx, Call{Key: key}, fn)
}

// errNoEffect is returned if the function is nil. No key is claimed.
var errNoEffect = fmt.Errorf("semel: the function that takes the effect is nil: %w", ErrInvalidRequest)

// DoCall is Do for a call with its own fingerprint, window or time.
func (g *Guard) DoCall(ctx context.Context, call Call, fn Func) (Outcome, error) {
	if fn == nil {
		return Outcome{}, errNoEffect
	}
	s, err := g.claim(ctx, call)
	if err != nil {
		return Outcome{}, err
	}
	if t := &s.task; t.Decision == Fresh {
		s.run(ctx, s.list[:], func(ctx context.Context) {
			var data []byte
			if data, t.Err = fn(ctx, t.Claim); data != nil {
				t.Result = Result{Kind: Value, Data: data}
			}
		})
	}
	return s.end()
}

// single is a batch of one task. Its memory is used again for other calls.
type single struct {
	Batch
	call Call
	task Task
	list [1]*Task
}

// claim claims the key of one call. If another holder has the key, it asks again until
// the guard's Wait is over. Call end when the call is over, but not after a panic.
func (g *Guard) claim(ctx context.Context, call Call) (*single, error) {
	if err := call.Key.Validate(); err != nil {
		return nil, err
	}
	s := g.singles.Get().(*single)
	s.call = call
	s.task.Call, s.list[0] = &s.call, &s.task
	if g.opts.Wait == 0 {
		s.Claim(ctx, s.list[:])
	} else if err := s.claimAndWait(ctx); err != nil {
		_, _ = s.end() // the key is in flight
		return nil, err
	}
	g.unused.abandon(s.list[:])
	return s, nil
}

func (s *single) claimAndWait(ctx context.Context) error {
	err := retry.Poll(ctx, time.Now().Add(s.guard.opts.Wait), func() bool {
		s.Claim(ctx, s.list[:])
		return s.task.Decision != InFlight
	})
	if err != nil {
		return fmt.Errorf("semel: wait for %s: %w", s.call.Key, impersonal(ctx, err))
	}
	return nil
}

// end returns how the call ended, and gives back its memory.
func (s *single) end() (Outcome, error) {
	out, err := s.task.Outcome, s.task.Err
	s.task, s.call = Task{}, Call{}
	s.guard.singles.Put(s)
	return out, err
}

// run runs the effects of tasks with a claim and records how they ended.
func (b *Batch) run(ctx context.Context, tasks []*Task, effect func(context.Context)) {
	under, end := b.guard.follow(b.Keep(ctx, tasks), StepEffect, tasks)
	returned := false
	defer func() {
		// effect panicked or called Goexit, which continues after this function.
		if !returned {
			end(ErrPanic)
			b.Stop()
			b.abort(ctx, tasks)
		}
	}()
	effect(under)
	returned = true
	end(nil)
	b.Stop()
	var done, failed []*Task
	for _, t := range tasks {
		switch {
		case t.Err == nil:
			done = append(done, t)
		case isPermanent(t.Err):
			t.Result = Result{Kind: Failed, Data: []byte(t.Err.Error())}
			done = append(done, t)
		default:
			// The result that was not kept is another key's: this one is not complete.
			if errors.Is(t.Err, ErrResultNotKept) {
				t.Err = errors.New(t.Err.Error())
			}
			t.Outcome = Outcome{Attempt: t.Claim.Attempt}
			failed = append(failed, t)
		}
	}
	b.Complete(ctx, done)
	b.GiveBack(detached(ctx), failed)
}

// Settle reports an answer to the guard's observer. It returns the outcome and the
// error that Do would return without an effect. Use it if you claim keys yourself,
// for instance in your own transaction; elapsed is the latency of the claim. Settle
// blocks while it parks a late message.
func (g *Guard) Settle(ctx context.Context, call *Call, a *ClaimAnswer, elapsed time.Duration) (Outcome, error) {
	g.observeDecision(call.Key, a, elapsed)
	return g.settle(ctx, call, a)
}

func (g *Guard) settle(ctx context.Context, call *Call, a *ClaimAnswer) (Outcome, error) {
	switch a.Decision {
	case Fresh:
		return Outcome{Decision: Fresh, Attempt: a.Claim.Attempt}, nil
	case Duplicate:
		out := Outcome{Decision: Duplicate, Result: a.Result}
		switch a.Result.Kind {
		case Failed:
			return out, &PermanentError{Err: errors.New(string(a.Result.Data)), Replayed: true}
		case NotKept:
			return out, fmt.Errorf("semel: %s is complete: %w", call.Key, ErrResultNotKept)
		}
		return out, nil
	case InFlight:
		return Outcome{Decision: InFlight}, &InFlightError{Key: call.Key, Holder: a.Holder, LeaseEnd: a.Claim.LeaseEnd}
	case Mismatch:
		return Outcome{Decision: Mismatch}, fmt.Errorf("semel: %s: %w", call.Key, ErrMismatch)
	case OutcomeUnknown:
		return Outcome{Decision: OutcomeUnknown}, fmt.Errorf("semel: %s was last held by %s, attempt %d: look whether its effect happened, and resolve the key, as semel keys resolve does: %w",
			call.Key, named(a.Holder), a.Claim.Attempt, ErrOutcomeUnknown)
	case Late:
		err := fmt.Errorf("semel: %s of %s: %w", call.Key, call.Time.UTC().Format(time.RFC3339), ErrLate)
		if g.opts.OnLate == LatePark {
			err = g.opts.Park(ctx, call, err)
		}
		return Outcome{Decision: Late}, err
	}
	return Outcome{}, fmt.Errorf("semel: the store did not decide on %s: %w", call.Key, ErrOutcomeUnknown)
}
