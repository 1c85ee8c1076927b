package semel

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Renewer renews the leases of tasks. A timer starts each renewal, so it needs no
// goroutine while effects are shorter than a heartbeat. A [Batch] has one while
// effects run. Use one of your own for tasks that wait for their next attempt.
//
// It is safe for concurrent use.
type Renewer struct {
	guard *Guard
	// lose ends the effects' context.
	effect context.Context
	lose   context.CancelCauseFunc
	// Renewals continue after the caller cancels, until the effects have returned.
	caller context.Context

	renewing sync.Mutex // held during a renewal; before mu

	mu      sync.Mutex // guards all fields but renewing, and the lease of each task in tasks
	tasks   []*Task
	single  [1]*Task // the memory of tasks, mostly
	timer   *time.Timer
	next    time.Time          // when the timer fires; zero if it does not
	end     context.CancelFunc // ends the renewal that runs
	stopped bool
}

// NewRenewer returns a renewer without tasks. Stop it when you are done.
func (g *Guard) NewRenewer() *Renewer { return newRenewer(g, context.Background()) }

func newRenewer(g *Guard, ctx context.Context) *Renewer {
	r := &Renewer{}
	r.begin(g, ctx)
	return r
}

// begin makes a renewer usable, also one that was stopped. A renewal of its earlier
// tasks that comes late renews those of now, which does no harm.
func (r *Renewer) begin(g *Guard, ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.guard, r.caller, r.stopped = g, ctx, false
	r.tasks = r.single[:0]
	r.effect, r.lose = context.WithCancelCause(ctx)
}

// Keep renews the leases of tasks until they are completed, given back, or taken
// over by another Renewer or Batch. It ignores tasks without a claim.
func (r *Renewer) Keep(tasks ...*Task) {
	for _, t := range tasks {
		t.leaveRenewer()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var first *Task // its lease ends first
	for _, t := range tasks {
		if !t.granted {
			continue
		}
		t.renewer.Store(r)
		t.at = len(r.tasks)
		r.tasks = append(r.tasks, t)
		if first == nil || t.validUntil.Before(first.validUntil) {
			first = t
		}
	}
	// The renewal is due one heartbeat after the last one. A lease that lasts for a
	// heartbeat longer than the next renewal can wait for it.
	beat := r.guard.opts.Heartbeat
	if first != nil && (r.next.IsZero() || r.next.After(first.validUntil.Add(-beat))) {
		r.schedule(first.validUntil.Add(beat - r.guard.opts.Lease))
	}
}

// schedule sets the timer unless it fires earlier. The caller holds r.mu.
func (r *Renewer) schedule(at time.Time) {
	if r.stopped || !r.next.IsZero() && !at.Before(r.next) {
		return
	}
	r.next = at
	if r.timer == nil {
		r.timer = time.AfterFunc(time.Until(at), r.renew)
	} else {
		r.timer.Reset(time.Until(at))
	}
}

// leaveRenewer ends the renewal of a task's lease. A renewal that runs may still
// extend it.
func (t *Task) leaveRenewer() {
	r := t.renewer.Load()
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.renewer.Load() == nil {
		return // the renewer was stopped in between
	}
	last := len(r.tasks) - 1
	r.tasks[t.at] = r.tasks[last]
	r.tasks[t.at].at = t.at
	r.tasks[last] = nil
	r.tasks = r.tasks[:last]
	t.renewer.Store(nil)
}

// Stop ends the renewals. When it returns, no renewal runs or will run. It waits at
// most until the store notices that its call was cancelled.
func (r *Renewer) Stop() {
	r.lose(nil)
	r.mu.Lock()
	if r.stopped = true; r.end != nil {
		r.end()
	}
	r.mu.Unlock()
	r.renewing.Lock()
	defer r.renewing.Unlock()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.timer != nil {
		r.timer.Stop()
	}
	for _, t := range r.tasks {
		t.renewer.Store(nil)
	}
	clear(r.single[:])
	r.tasks, r.next, r.caller, r.effect = nil, time.Time{}, nil, nil
}

// renew renews all leases once and sets the timer for the next time.
func (r *Renewer) renew() {
	r.renewing.Lock()
	defer r.renewing.Unlock()
	asked := time.Now()
	ctx, tasks, reqs := r.due(asked)
	if ctx == nil {
		return
	}
	defer r.end()
	answers := make([]ExtendAnswer, len(reqs))
	err := impersonal(ctx, r.guard.store.Extend(ctx, reqs, answers))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return
	}
	r.guard.observeError(reqs[0].Key, err)
	pause := r.guard.opts.Heartbeat
	if err != nil {
		pause = pause/4 + time.Millisecond
	}
	now := time.Now()
	for i, t := range tasks {
		if t.renewer.Load() != r {
			continue // it left during the call
		}
		switch left := t.validUntil.Sub(now); {
		case answers[i].Err != nil:
			r.lost(t, reqs[i].Key, impersonal(ctx, answers[i].Err))
		case err == nil || !answers[i].LeaseEnd.IsZero():
			t.validUntil = asked.Add(r.guard.opts.Lease)
		case left <= 0:
			r.lost(t, reqs[i].Key, err)
		default:
			// The store did not answer. The effect may continue as long as the
			// lease certainly lasts, and the store may recover.
			pause = min(pause, left)
		}
	}
	r.schedule(now.Add(pause))
}

// due returns the tasks to renew and their requests, with a context that ends when the
// first of their leases does, and at Stop. It returns nil if there is nothing to renew.
func (r *Renewer) due(now time.Time) (ctx context.Context, tasks []*Task, reqs []ExtendRequest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.next = time.Time{}
	wait := r.guard.opts.Lease
	for _, t := range r.tasks {
		if t.leaseLost != nil {
			continue
		}
		tasks = append(tasks, t)
		reqs = append(reqs, ExtendRequest{Key: t.Call.Key, Token: t.Claim.Token, Lease: r.guard.opts.Lease})
		if left := t.validUntil.Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	if r.stopped || len(tasks) == 0 {
		return nil, nil, nil
	}
	ctx, r.end = context.WithTimeout(detached(r.caller), wait)
	return ctx, tasks, reqs
}

// lost ends the effects. The caller holds r.mu.
func (r *Renewer) lost(t *Task, key Key, err error) {
	t.leaseLost = fmt.Errorf("semel: %s: %w: %w", key, ErrLeaseLost, err)
	r.guard.Observe(Event{Kind: EventLeaseLost, Key: key, Err: err})
	r.lose(t.leaseLost)
}
