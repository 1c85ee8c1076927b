package brokertest

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// acknowledged returns how many messages are.
func (l *ledger) acknowledged() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// total returns how many messages there are.
func (l *ledger) total() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.expected
}

// reach waits until so many messages are acknowledged, or ctx ends.
func (l *ledger) reach(ctx context.Context, goal int) {
	for l.acknowledged() < goal && ctx.Err() == nil {
		_ = retry.Sleep(ctx, time.Millisecond) // its error is that of ctx
	}
}

// when has a function called, with the mutex held, as soon as so many messages are acknowledged:
// by who acknowledges, so that no other goroutine has to be quick. Nil has none called.
func (l *ledger) when(goal int, do func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.goal, l.atGoal = goal, do
}

// mustBeSettled reports what is not acknowledged.
func (l *ledger) mustBeSettled() {
	l.tb.Helper()
	if l.acknowledged() != l.total() {
		l.tb.Errorf("messages are lost or stuck: nothing happened for %v, and the source was not told to acknowledge %s", l.patience, l.missing())
	}
}

// errPatience is the cause of a context that ended because nothing happened.
var errPatience = errors.New("the suite has waited for long enough, see Patience in the harness")

// context returns a context that ends when nothing has happened to any message for the
// suite's patience. The time of a restart does not count.
func (l *ledger) context() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(l.tb.Context())
	began := time.Now()
	var mu sync.Mutex // guards timer
	var timer *time.Timer
	look := func() {
		l.mu.Lock()
		last := l.lastEvent
		if l.restarting > 0 {
			last = time.Now()
		}
		l.mu.Unlock()
		if last.Before(began) {
			last = began
		}
		left := l.patience - time.Since(last)
		if left <= 0 {
			cancel(errPatience)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		timer.Reset(left)
	}
	mu.Lock()
	defer mu.Unlock()
	timer = time.AfterFunc(l.patience, look)
	return ctx, func() {
		timer.Stop()
		cancel(context.Canceled)
	}
}

// during restarts a server. A server may take longer to start than the suite's patience.
func (l *ledger) during(restart func(ctx context.Context) error) error {
	add := func(n int) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.restarting += n
		l.lastEvent = time.Now()
	}
	add(1)
	defer add(-1)
	ctx, cancel := context.WithTimeout(l.tb.Context(), 10*Patience)
	defer cancel()
	return restart(ctx)
}

// untilSettled runs a pipeline until all is acknowledged, or nothing happens any more.
func (l *ledger) untilSettled(run func(ctx context.Context)) {
	l.tb.Helper()
	ctx, cancel := l.context()
	defer cancel()
	go func() {
		defer cancel()
		select {
		case <-l.settled():
		case <-ctx.Done():
		}
	}()
	run(ctx)
	l.mustBeSettled()
}

// inParts runs pipelines one after the other until all is acknowledged. Each is
// ended after some more messages are, mostly while others are under way.
func (l *ledger) inParts(ctx context.Context, random *rand.Rand, run func(ctx context.Context)) {
	l.tb.Helper()
	ended := 0
	for l.acknowledged() < l.total() && ctx.Err() == nil {
		goal := min(l.acknowledged()+1+random.IntN(l.total()/5), l.total())
		running, stop := context.WithCancel(ctx)
		l.when(goal, stop)
		run(running)
		l.when(0, nil)
		stop()
		if l.acknowledged() < l.total() {
			ended++
		}
	}
	if ended == 0 {
		l.tb.Error("no pipeline was ended in the middle")
	}
	l.mustBeSettled()
}
