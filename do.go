package semel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
)

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
// [Classify] returns the class of each. Acknowledge the message only if the error
// is nil, ErrResultNotKept or a *PermanentError.
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
	return g.doResult(ctx, call, func(ctx context.Context, claim Claim) (Result, error) {
		data, err := fn(ctx, claim)
		if data == nil {
			return Result{}, err
		}
		return Result{Kind: Value, Data: data}, err
	})
}

// resultFunc is an effect that sets the kind of its result itself.
type resultFunc func(context.Context, Claim) (Result, error)

func (g *Guard) doResult(ctx context.Context, call Call, fn resultFunc) (Outcome, error) {
	if err := call.Key.Validate(); err != nil {
		return Outcome{}, err
	}
	answer, asked, err := g.claim(ctx, &call)
	if err != nil {
		return Outcome{}, err
	}
	if answer.Decision != Fresh {
		return g.Settle(ctx, &call, answer)
	}
	return g.run(ctx, &call, answer.Claim, asked, fn)
}

// claim repeats the request until the answer is final or the wait is over. It
// returns the answer and the time just before the request.
func (g *Guard) claim(ctx context.Context, call *Call) (*ClaimAnswer, time.Time, error) {
	req := [1]ClaimRequest{g.Request(call)}
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		var answer [1]ClaimAnswer
		asked := time.Now()
		err := g.ask(ctx, req[:], answer[:])
		g.ObserveDecision(call.Key, &answer[0], time.Since(asked))
		switch {
		case answer[0].Decision != Undecided:
			err = nil // an answer counts, even if the call failed for other requests
		case answer[0].Err != nil:
			err = answer[0].Err
		}
		if err != nil {
			g.Observe(Event{Kind: EventStoreError, Key: call.Key, Err: err})
			return nil, asked, fmt.Errorf("semel: claim %s: %w", call.Key, err)
		}
		left := g.opts.Wait - time.Since(start)
		if answer[0].Decision != InFlight || left <= 0 {
			return &answer[0], asked, nil
		}
		// Jitter spreads the waiters of one key.
		pause := min(left, pause/2+rand.N(pause))
		if err := sleep(ctx, pause); err != nil {
			return nil, asked, fmt.Errorf("semel: wait for %s: %w", call.Key, err)
		}
	}
}

// ask sends claims a second time if an answer was lost. This is safe: the store
// recognises its own claims by their owners.
func (g *Guard) ask(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) error {
	first := impersonal(ctx, g.store.Claim(ctx, reqs, answers))
	if Classify(first) != ClassUnknown || ctx.Err() != nil || !slices.ContainsFunc(answers, unanswered) {
		return first
	}
	clear(answers)
	err := again(first, impersonal(ctx, g.store.Claim(ctx, reqs, answers)))
	for i := range answers {
		if Classify(answers[i].Err) == ClassRetryable {
			answers[i].Err = again(first, answers[i].Err)
		}
	}
	return err
}

func unanswered(a ClaimAnswer) bool { return a.Decision == Undecided && a.Err == nil }

// again returns the error of a repeated call; first is the error of the first
// call. If first left the outcome open, a refusal now does not settle it: the
// first call may have made the change.
func again(first, err error) error {
	if err == nil || Classify(first) != ClassUnknown {
		return err
	}
	return fmt.Errorf("asked again after a lost answer: %w: %w", ErrOutcomeUnknown, err)
}

// Settle turns an answer that grants nothing into the outcome and error that Do
// would return. Use it if you claim keys yourself, for instance in your own
// transaction. It blocks while it parks a late message.
func (g *Guard) Settle(ctx context.Context, call *Call, a *ClaimAnswer) (Outcome, error) {
	switch a.Decision {
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
	case InDoubt:
		return Outcome{Decision: InDoubt}, fmt.Errorf("semel: %s was last held by %s, attempt %d: resolve the key: %w",
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

// run runs the effect under a granted claim and records how it ended.
func (g *Guard) run(ctx context.Context, call *Call, claim Claim, asked time.Time, fn resultFunc) (out Outcome, err error) {
	held := []heldKey{{call.Key, claim}}
	effect, beat := g.keep(ctx, held, asked)
	returned := false
	defer func() {
		// fn panicked or called Goexit, which continues after this function.
		if !returned {
			beat.stop()
			g.release(ctx, held, true)
		}
	}()
	result, err := fn(effect, claim)
	returned = true
	beat.stop()
	result = resultOf(result, err)
	if err != nil && result.Kind != Failed {
		g.Observe(Event{Kind: EventReleased, Key: call.Key, Attempt: claim.Attempt, Err: err})
		g.release(ctx, held, inDoubt(err))
		return Outcome{Attempt: claim.Attempt}, err
	}
	out = Outcome{Decision: Fresh, Attempt: claim.Attempt, Result: result}
	reqs := []CompleteRequest{{Key: call.Key, Token: claim.Token, Result: result, Window: g.window(call)}}
	answers := make([]error, 1)
	g.finish(ctx, reqs, answers, beat.began)
	if answers[0] != nil {
		return out, answers[0]
	}
	return out, err
}

// resultOf returns the result to store. For a permanent failure that is the
// error's text.
func resultOf(result Result, err error) Result {
	var permanent *PermanentError
	switch {
	case errors.As(err, &permanent):
		return Result{Kind: Failed, Data: []byte(err.Error())}
	case err != nil:
		return Result{}
	}
	return result
}

// inDoubt reports whether the effect may have happened in spite of its error.
func inDoubt(err error) bool {
	for _, doubt := range []error{ErrOutcomeUnknown, ErrLeaseLost, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, doubt) {
			return true
		}
	}
	return false
}

// finish completes keys whose effects are done and fills answers with the errors
// for the callers. The completion must be recorded even if the caller's context
// has ended. finish retries until the length of a lease has passed; repeating a
// completion is safe.
func (g *Guard) finish(ctx context.Context, reqs []CompleteRequest, answers []error, began time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opts.Lease)
	defer cancel()
	err := g.store.Complete(ctx, reqs, answers)
	for pause := time.Millisecond; err != nil && retryable(err); pause = min(2*pause, time.Second) {
		g.Observe(Event{Kind: EventStoreError, Key: reqs[0].Key, Err: err})
		if sleep(ctx, pause) != nil {
			break
		}
		err = g.store.Complete(ctx, reqs, answers)
	}
	for i := range reqs {
		e := answers[i]
		if err != nil && e == nil {
			e = err
		}
		if errors.Is(e, ErrResultTooLarge) {
			e = g.finishWithout(ctx, reqs[i])
		}
		answers[i] = g.completion(&reqs[i], e, began)
	}
}

// finishWithout records that the effect is complete and that its result was not
// kept.
func (g *Guard) finishWithout(ctx context.Context, req CompleteRequest) error {
	req.Result = Result{Kind: NotKept}
	var answer [1]error
	if err := g.store.Complete(ctx, []CompleteRequest{req}, answer[:]); err != nil {
		return err
	}
	return answer[0]
}

// completion reports the outcome of one completion and returns the caller's
// error.
func (g *Guard) completion(req *CompleteRequest, err error, began time.Time) error {
	switch {
	case err == nil:
		g.Observe(Event{Kind: EventCompleted, Key: req.Key, Elapsed: time.Since(began)})
		return nil
	case errors.Is(err, ErrStaleToken):
		g.Observe(Event{Kind: EventCompletionRefused, Key: req.Key, Err: err})
		return fmt.Errorf("semel: %s: the effect ran, but %w: %w", req.Key, ErrLeaseLost, err)
	}
	g.Observe(Event{Kind: EventStoreError, Key: req.Key, Err: err})
	return fmt.Errorf("semel: %s: the effect ran, but its completion is not recorded: %w: %w", req.Key, ErrOutcomeUnknown, err)
}

// retryable reports whether the same store call may succeed now.
func retryable(err error) bool {
	c := Classify(err)
	return (c == ClassRetryable || c == ClassUnknown) && !errors.Is(err, ErrStoreFailed)
}

// heldKey is a claim that this guard holds.
type heldKey struct {
	key   Key
	claim Claim
}

// release gives claims back. If doubt is set and the policy is Hold, the records
// become Unknown. A failure is only reported: the lease ends by itself.
//
// The record of a later attempt stays, and only its lease ends. This attempt had
// no effect, but an earlier one may have had, and the next attempt must know.
func (g *Guard) release(ctx context.Context, held []heldKey, doubt bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), g.opts.Lease)
	defer cancel()
	var releases []ReleaseRequest
	var ends []ExtendRequest
	for _, h := range held {
		unknown := doubt && g.opts.OnLeaseExpired == Hold
		if h.claim.Attempt > 1 && !unknown {
			ends = append(ends, ExtendRequest{Key: h.key, Token: h.claim.Token, Lease: time.Millisecond})
		} else {
			releases = append(releases, ReleaseRequest{Key: h.key, Token: h.claim.Token, Unknown: unknown})
		}
	}
	if len(releases) > 0 {
		answers := make([]error, len(releases))
		err := g.store.Release(ctx, releases, answers)
		for i, r := range releases {
			g.observeError(r.Key, errors.Join(err, answers[i]))
		}
	}
	if len(ends) > 0 {
		answers := make([]ExtendAnswer, len(ends))
		err := g.store.Extend(ctx, ends, answers)
		for i, r := range ends {
			g.observeError(r.Key, errors.Join(err, answers[i].Err))
		}
	}
}

// observeError reports the store's answer if it is an error.
func (g *Guard) observeError(key Key, err error) {
	if err != nil {
		g.Observe(Event{Kind: EventStoreError, Key: key, Err: err})
	}
}

// sleep waits for d or until ctx ends. It then returns the cause of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return impersonal(ctx, context.Cause(ctx))
	}
}

// impersonal returns an error of the store or of a context without any
// PermanentError in it. Such a PermanentError belongs to another message:
// errgroup, for example, ends a context with it as the cause. A caller would
// acknowledge its own message because of it.
func impersonal(ctx context.Context, err error) error {
	if _, permanent := errors.AsType[*PermanentError](err); !permanent {
		return err
	}
	return fmt.Errorf("%w: %v", cmp.Or(ctx.Err(), ErrOutcomeUnknown), err)
}
