package semel

import (
	"context"
	"slices"
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

// DoBatch is Do for many calls. It uses one round trip for all claims, one call of fn, and a
// second round trip for all completions. The outcomes are in the order of the calls, with the
// errors of Do. DoBatch does not wait for keys that others hold. If a key occurs twice, the calls
// are decided in order. The second is a duplicate if the first succeeded; otherwise it runs in
// another call of fn.
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
	b := g.NewBatch()
	memory, tasks := make([]Task, len(todo)), make([]*Task, len(todo))
	for n, i := range todo {
		tasks[n] = &memory[n]
		tasks[n].Call = &calls[i]
	}
	b.Claim(ctx, tasks)
	g.unused.abandon(tasks)

	var items []*BatchItem
	var fresh []*Task
	ours := make(map[Key]bool)
	for n, i := range todo {
		t := tasks[n]
		switch {
		case t.Decision == Fresh:
			items = append(items, &BatchItem{Index: i, Call: t.Call, Claim: t.Claim})
			fresh = append(fresh, t)
			ours[t.Call.Key] = true
		case t.Decision == InFlight && ours[t.Call.Key]:
			again = append(again, i)
		default:
			outcomes[i] = BatchOutcome{t.Outcome, t.Err}
		}
	}
	if len(fresh) == 0 {
		return again
	}
	b.run(ctx, fresh, func(ctx context.Context) {
		err := fn(ctx, slices.Clone(items)) // fn may sort its items
		for n, item := range items {
			t := fresh[n]
			if t.Err = item.Err; t.Err == nil {
				t.Err = err
			}
			if t.Err == nil && item.Data != nil {
				t.Result = Result{Kind: Value, Data: item.Data}
			}
		}
	})
	for n, item := range items {
		outcomes[item.Index] = BatchOutcome{fresh[n].Outcome, fresh[n].Err}
	}
	return again
}
