package semel

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// heartbeat extends the leases of keys while their effects run. It ends the
// effects' context when a lease is lost. A timer starts each beat, so an effect
// shorter than one beat needs no goroutine.
type heartbeat struct {
	guard *Guard
	held  []heldKey
	began time.Time
	// lose ends the effects' context. The beats have their own context: they
	// continue after the caller cancels, until the effects have returned.
	lose    context.CancelCauseFunc
	beating context.Context
	end     context.CancelFunc

	mu      sync.Mutex // guards the fields below; held for the whole of a beat
	timer   *time.Timer
	stopped bool
	// sure is the time until which the leases certainly last: the start of the last
	// successful request plus one lease.
	sure time.Time
}

// keep starts the heartbeat of keys whose claims were requested at asked. It
// returns the context for the effects.
func (g *Guard) keep(ctx context.Context, held []heldKey, asked time.Time) (context.Context, *heartbeat) {
	effect, lose := context.WithCancelCause(ctx)
	h := &heartbeat{guard: g, held: held, began: asked, lose: lose, sure: asked.Add(g.opts.Lease)}
	h.beating, h.end = context.WithCancel(context.WithoutCancel(ctx))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.timer = time.AfterFunc(g.opts.Heartbeat, h.beat)
	return effect, h
}

// stop ends the heartbeat. After it returns, no beat runs or will run. It waits
// at most until the store notices that its call was cancelled.
func (h *heartbeat) stop() {
	h.end()
	h.lose(nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.timer.Stop()
}

// beat extends once and sets the timer for the next beat.
func (h *heartbeat) beat() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return
	}
	g := h.guard
	reqs := make([]ExtendRequest, len(h.held))
	for i, k := range h.held {
		reqs[i] = ExtendRequest{Key: k.key, Token: k.claim.Token, Lease: g.opts.Lease}
	}
	answers := make([]ExtendAnswer, len(reqs))
	asked := time.Now()
	ctx, cancel := context.WithDeadline(h.beating, h.sure)
	err := g.store.Extend(ctx, reqs, answers)
	cancel()
	if h.beating.Err() != nil {
		return
	}
	for i := range answers {
		if answers[i].Err != nil {
			h.lost(h.held[i].key, answers[i].Err)
			return
		}
	}
	if err == nil || !slices.ContainsFunc(answers, func(a ExtendAnswer) bool { return a.LeaseEnd.IsZero() }) {
		h.sure = asked.Add(g.opts.Lease)
		h.timer.Reset(g.opts.Heartbeat)
		return
	}
	// The store did not answer. The effects may continue as long as the leases
	// certainly last, and the store may recover.
	g.Observe(Event{Kind: EventStoreError, Key: h.held[0].key, Err: err})
	left := time.Until(h.sure)
	if left <= 0 {
		h.lost(h.held[0].key, err)
		return
	}
	h.timer.Reset(min(left, g.opts.Heartbeat/4+time.Millisecond))
}

// lost ends the effects. The beats end with them.
func (h *heartbeat) lost(key Key, err error) {
	h.guard.Observe(Event{Kind: EventLeaseLost, Key: key, Err: err})
	h.lose(fmt.Errorf("semel: %s: %w: %w", key, ErrLeaseLost, err))
}
