package brokertest

import (
	"context"
	"math/rand/v2"
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

// mustBeSettled reports what is not acknowledged.
func (l *ledger) mustBeSettled() {
	l.tb.Helper()
	if l.acknowledged() != l.total() {
		l.tb.Errorf("messages are lost or stuck: %s", l.missing())
	}
}

// untilSettled runs a pipeline until all is acknowledged, or patience ends.
func (l *ledger) untilSettled(patience time.Duration, run func(ctx context.Context)) {
	l.tb.Helper()
	ctx, cancel := context.WithTimeout(l.tb.Context(), patience)
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
		go func() {
			defer stop()
			l.reach(running, goal)
		}()
		run(running)
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
