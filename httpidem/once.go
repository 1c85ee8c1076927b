package httpidem

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

const (
	// decideWithin limits the wait for the decision on a key. Then nothing has run.
	decideWithin = 10 * time.Second
	// recordWithin is how long a client waits until its complete answer is recorded. A
	// client with an answer that is not recorded does not repeat its request, and so sees
	// nothing of the doubt. A client that waits longer would give up.
	recordWithin = time.Second
)

// once claims the key, runs the request, and records how it ended. Other answers about
// the key are those of semel.Guard.DoCall. If left is set, the client has its answer.
func (e *exchange) once(ctx context.Context) (semel.Outcome, error) {
	if e.do != nil {
		return e.do(ctx, e.call, e.run)
	}
	if err := e.call.Key.Validate(); err != nil {
		return semel.Outcome{}, err
	}
	t := &semel.Task{Call: &e.call}
	b, tasks := e.guard.NewBatch(), []*semel.Task{t}
	e.claim(ctx, b, tasks)
	if t.Decision == semel.Fresh {
		e.effect(ctx, b, tasks)
		e.record(ctx, b, tasks)
	}
	return t.Outcome, t.Err
}

func (e *exchange) claim(ctx context.Context, b *semel.Batch, tasks []*semel.Task) {
	ctx, cancel := context.WithTimeout(ctx, decideWithin)
	defer cancel()
	b.Claim(ctx, tasks)
	if tasks[0].Lost() {
		b.GiveBack(ctx, tasks)
	}
}

// errEnded is the error of a request whose handler panicked or ended its goroutine.
var errEnded = fmt.Errorf("%w: %w", semel.ErrPanic, semel.ErrOutcomeUnknown)

// effect runs the request under its lease.
func (e *exchange) effect(ctx context.Context, b *semel.Batch, tasks []*semel.Task) {
	t := tasks[0]
	under, end := e.guard.BeginStep(b.Keep(ctx, tasks), semel.StepEffect, 1)
	returned := false
	defer func() {
		if !returned { // the panic continues after this function
			t.Err = errEnded
			end(t.Decision, semel.ErrPanic)
			b.Stop()
			b.GiveBack(ctx, tasks)
		}
	}()
	data, err := e.run(under, t.Claim)
	returned = true
	if t.Err = err; data != nil {
		t.Result = semel.Result{Kind: semel.Value, Data: data}
	}
	end(t.Decision, err)
	b.Stop()
}

// record completes the key, or gives it back. If that takes long, the client gets its
// answer first.
func (e *exchange) record(ctx context.Context, b *semel.Batch, tasks []*semel.Task) {
	t := tasks[0]
	ran := settled{data: t.Result.Data, err: t.Err}
	var second atomic.Bool // one of the two that end here has ended
	recorded := make(chan struct{})
	go func() {
		defer close(recorded)
		if t.Err == nil {
			b.Complete(ctx, tasks)
		} else {
			b.GiveBack(ctx, tasks)
			t.Outcome = semel.Outcome{Attempt: t.Claim.Attempt}
		}
		if second.Swap(true) {
			e.finish(e.result(t.Outcome, t.Err))
			e.end()
		}
	}()
	timer := time.NewTimer(recordWithin)
	defer timer.Stop()
	select {
	case <-recorded:
		return
	case <-timer.C:
	}
	if second.Swap(true) {
		<-recorded
		return
	}
	e.left = true
	e.opts.Go(func() { <-recorded })
	e.respond(semel.Outcome{}, ran)
}
