package semel

import (
	"context"
	"fmt"
	"time"
)

// BatchItem is one call of a batch whose claim was granted. The effect reads the
// first three fields and sets the others.
type BatchItem struct {
	// Index is the position of the call in the slice given to DoBatch.
	Index int
	Call  *Call
	Claim Claim
	// Data is the result, as a [Func] would return it. Nil means no result.
	Data []byte
	// Err is the error, as a Func would return it.
	Err error
}

// BatchFunc is the effect of many calls. It gets those whose claims were granted,
// in the order of the batch. If it returns an error, each item without an error
// of its own gets it.
type BatchFunc func(ctx context.Context, fresh []*BatchItem) error

// BatchOutcome is the outcome of one call of a batch.
type BatchOutcome struct {
	Outcome
	Err error
}

// DoBatch is Do for many calls. It uses one round trip for all claims, one call
// of fn, and one round trip for all completions. The outcomes are in the order of
// the calls, with the errors of Do. DoBatch does not wait for keys that others
// hold. If a key occurs twice, the calls are decided in order. The second is a
// duplicate if the first succeeded; otherwise it runs in another call of fn.
//
// When one of the leases is lost, the context of fn ends with the cause
// ErrLeaseLost.
func (g *Guard) DoBatch(ctx context.Context, calls []Call, fn BatchFunc) []BatchOutcome {
	outcomes := make([]BatchOutcome, len(calls))
	todo := make([]int, 0, len(calls))
	for i := range calls {
		err := calls[i].Key.Validate()
		if err == nil && fn == nil {
			err = errNoEffect
		}
		if err != nil {
			outcomes[i].Err = err
			continue
		}
		todo = append(todo, i)
	}
	for len(todo) > 0 {
		todo = g.round(ctx, calls, todo, outcomes, fn)
	}
	return outcomes
}

// round decides and runs the calls of todo. It returns the calls that were in
// flight only because an earlier call of the same round held the key.
func (g *Guard) round(ctx context.Context, calls []Call, todo []int, outcomes []BatchOutcome, fn BatchFunc) (again []int) {
	reqs := make([]ClaimRequest, len(todo))
	for n, i := range todo {
		reqs[n] = g.Request(&calls[i])
	}
	answers := make([]ClaimAnswer, len(reqs))
	asked := time.Now()
	err := g.ask(ctx, reqs, answers)
	elapsed := time.Since(asked)

	var fresh []*BatchItem
	ours := make(map[Key]bool)
	for n, i := range todo {
		a, call := &answers[n], &calls[i]
		g.ObserveDecision(call.Key, a, elapsed)
		switch {
		case a.Decision == Fresh:
			fresh = append(fresh, &BatchItem{Index: i, Call: call, Claim: a.Claim})
			ours[call.Key] = true
		case a.Decision == InFlight && ours[call.Key]:
			again = append(again, i)
		case a.Decision == Undecided:
			if a.Err == nil {
				a.Err = err
			}
			g.Observe(Event{Kind: EventStoreError, Key: call.Key, Err: a.Err})
			outcomes[i].Err = fmt.Errorf("semel: claim %s: %w", call.Key, a.Err)
		default:
			outcomes[i].Outcome, outcomes[i].Err = g.Settle(ctx, call, a)
		}
	}
	if len(fresh) > 0 {
		g.runBatch(ctx, fresh, asked, outcomes, fn)
	}
	return again
}

// runBatch runs the effect of granted items and records the outcome of each.
func (g *Guard) runBatch(ctx context.Context, fresh []*BatchItem, asked time.Time, outcomes []BatchOutcome, fn BatchFunc) {
	held := make([]heldKey, len(fresh))
	for n, item := range fresh {
		held[n] = heldKey{item.Call.Key, item.Claim}
	}
	effect, beat := g.keep(ctx, held, asked)
	returned := false
	defer func() {
		// fn panicked or called Goexit, which continues after this function.
		if !returned {
			beat.stop()
			g.release(ctx, held, true)
		}
	}()
	err := fn(effect, fresh)
	returned = true
	beat.stop()

	var (
		reqs            []CompleteRequest
		completed       []*BatchItem
		failed, doubted []heldKey
	)
	for n, item := range fresh {
		if item.Err == nil {
			item.Err = err
		}
		out := &outcomes[item.Index]
		result := Result{}
		if item.Data != nil {
			result = Result{Kind: Value, Data: item.Data}
		}
		result = resultOf(result, item.Err)
		out.Err, out.Attempt = item.Err, item.Claim.Attempt
		if out.Err == nil || result.Kind == Failed {
			out.Decision, out.Result = Fresh, result
			reqs = append(reqs, CompleteRequest{Key: item.Call.Key, Token: item.Claim.Token, Result: result, Window: g.window(item.Call)})
			completed = append(completed, item)
			continue
		}
		g.Observe(Event{Kind: EventReleased, Key: item.Call.Key, Attempt: item.Claim.Attempt, Err: out.Err})
		if inDoubt(out.Err) {
			doubted = append(doubted, held[n])
		} else {
			failed = append(failed, held[n])
		}
	}
	if len(reqs) > 0 {
		answers := make([]error, len(reqs))
		g.finish(ctx, reqs, answers, beat.began)
		for n, item := range completed {
			if answers[n] != nil {
				outcomes[item.Index].Err = answers[n]
			}
		}
	}
	if len(failed) > 0 {
		g.release(ctx, failed, false)
	}
	if len(doubted) > 0 {
		g.release(ctx, doubted, true)
	}
}
