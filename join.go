package semel

import (
	"context"
	"fmt"
	"slices"
	"sync"
)

// Joined is a store whose concurrent single calls are joined into batches.
// While one call of a verb runs, the single requests that arrive gather; when
// it ends they go together, and where the store works on several calls at once
// also when half as many have gathered as are under way. There is no timer: a lone caller never waits.
// Calls with several requests pass through unchanged.
//
// It is safe for concurrent use. It starts no goroutines.
type Joined struct {
	store    Store
	through  bool // the store joins calls itself
	claim    joiner[ClaimRequest, ClaimAnswer]
	complete joiner[CompleteRequest, error]
	release  joiner[ReleaseRequest, error]
	extend   joiner[ExtendRequest, ExtendAnswer]
}

var _ Store = (*Joined)(nil)

// Join wraps a store. At most most requests go in one call; 0 is 1024. A
// store that is joined already is returned as it is.
//
// A store with a method JoinsCalls() gets each call as it comes. It joins them
// itself where that pays: calls that it answers from memory must not wait for
// those that take a round trip. For a store with a method JoinLanes() int, which
// works on several calls at once, so many calls of a verb may run at once.
func Join(store Store, most int) *Joined {
	if j, ok := store.(*Joined); ok {
		return j
	}
	if most <= 0 {
		most = 1024
	}
	j := &Joined{store: store}
	_, j.through = store.(interface{ JoinsCalls() })
	lanes := 1
	if l, ok := store.(interface{ JoinLanes() int }); ok {
		lanes = max(l.JoinLanes(), 1)
	}
	j.claim.init(most, lanes, store.Claim)
	j.complete.init(most, lanes, store.Complete)
	j.release.init(most, lanes, store.Release)
	j.extend.init(most, lanes, store.Extend)
	j.claim.orphan = j.giveBack
	return j
}

// Claim implements Store.
func (j *Joined) Claim(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) error {
	if j.through {
		return j.store.Claim(ctx, reqs, answers)
	}
	return j.claim.do(ctx, reqs, answers)
}

// Complete implements Store.
func (j *Joined) Complete(ctx context.Context, reqs []CompleteRequest, answers []error) error {
	if j.through {
		return j.store.Complete(ctx, reqs, answers)
	}
	return j.complete.do(ctx, reqs, answers)
}

// Release implements Store.
func (j *Joined) Release(ctx context.Context, reqs []ReleaseRequest, answers []error) error {
	if j.through {
		return j.store.Release(ctx, reqs, answers)
	}
	return j.release.do(ctx, reqs, answers)
}

// Extend implements Store.
func (j *Joined) Extend(ctx context.Context, reqs []ExtendRequest, answers []ExtendAnswer) error {
	if j.through {
		return j.store.Extend(ctx, reqs, answers)
	}
	return j.extend.do(ctx, reqs, answers)
}

// Traits implements Store.
func (j *Joined) Traits() Traits { return j.store.Traits() }

// Unwrap returns the store below.
func (j *Joined) Unwrap() Store { return j.store }

// giveBack releases claims that were granted to callers who had gone: nobody
// will use them, and the lease should not have to run out first.
func (j *Joined) giveBack(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) {
	var back []ReleaseRequest
	for i, a := range answers {
		if a.Decision == Fresh && !reqs[i].Done {
			back = append(back, ReleaseRequest{Key: reqs[i].Key, Token: a.Claim.Token})
		}
	}
	if len(back) > 0 {
		// A failure is mended by the end of the lease.
		_ = j.store.Release(ctx, back, make([]error, len(back)))
	}
}

// joiner joins the single calls of one verb.
type joiner[Req, Ans any] struct {
	call   func(context.Context, []Req, []Ans) error
	orphan func(context.Context, []Req, []Ans)
	most   int

	lanes int // calls of this verb that may run at once

	mu      sync.Mutex // guards the fields below and the members of queued batches
	running int        // calls of this verb that run, and batches that were told to
	carried int        // requests in them
	queue   []*joint[Req, Ans]
}

// joint is a batch of requests of different callers.
type joint[Req, Ans any] struct {
	reqs    []Req
	answers []Ans
	gone    []bool // the caller of this request no longer waits
	waiting int
	cancel  context.CancelFunc // ends the call; set while it runs
	err     error
	lead    chan struct{} // gets one token: whoever takes it runs the batch
	done    chan struct{}
}

func (j *joiner[Req, Ans]) init(most, lanes int, call func(context.Context, []Req, []Ans) error) {
	j.most, j.lanes, j.call = most, lanes, call
}

func (j *joiner[Req, Ans]) do(ctx context.Context, reqs []Req, answers []Ans) error {
	if len(reqs) != len(answers) {
		return fmt.Errorf("semel: %d requests but room for %d answers: %w", len(reqs), len(answers), ErrInvalidRequest)
	}
	if len(reqs) != 1 {
		return j.call(ctx, reqs, answers)
	}
	j.mu.Lock()
	if j.running == 0 {
		j.running, j.carried = 1, 1
		j.mu.Unlock()
		defer j.next(1)
		return j.call(ctx, reqs, answers)
	}
	b, i := j.enlist(reqs[0])
	// A further call pays when it carries about as much as those under way.
	if j.running < j.lanes && b == j.queue[0] && (len(b.reqs) == j.most || 2*len(b.reqs) >= j.carried) {
		j.running++
		j.start()
	}
	j.mu.Unlock()

	select {
	case <-b.done:
	case <-b.lead:
		j.run(ctx, b)
	case <-ctx.Done():
		if err := j.leave(ctx, b, i); err != nil {
			return err
		}
	}
	answers[0] = b.answers[i]
	return b.err
}

// enlist adds a request to the last queued batch with room. Call with j.mu.
func (j *joiner[Req, Ans]) enlist(req Req) (*joint[Req, Ans], int) {
	var b *joint[Req, Ans]
	if n := len(j.queue); n > 0 && len(j.queue[n-1].reqs) < j.most {
		b = j.queue[n-1]
	} else {
		b = &joint[Req, Ans]{lead: make(chan struct{}, 1), done: make(chan struct{})}
		j.queue = append(j.queue, b)
	}
	b.reqs = append(b.reqs, req)
	b.gone = append(b.gone, false)
	b.waiting++
	return b, len(b.reqs) - 1
}

// leave is for a caller who gave up. It returns nil if the answer is there
// after all, and otherwise the caller's error; the answer, if one comes, is
// then an orphan. If the batch has its token but no leader yet, the caller
// leads it before it goes: somebody must.
func (j *joiner[Req, Ans]) leave(ctx context.Context, b *joint[Req, Ans], i int) error {
	j.mu.Lock()
	select {
	case <-b.done:
		j.mu.Unlock()
		return nil
	default:
	}
	b.gone[i] = true
	b.desert()
	if q := slices.Index(j.queue, b); q >= 0 && b.waiting == 0 {
		j.queue = slices.Delete(j.queue, q, q+1)
		j.mu.Unlock()
		return fmt.Errorf("semel: gave up before the store was asked: %w", context.Cause(ctx))
	}
	j.mu.Unlock()
	select {
	case <-b.lead:
		j.run(context.WithoutCancel(ctx), b)
	default:
	}
	return fmt.Errorf("semel: gave up while the store was asked: %w: %w", ErrOutcomeUnknown, context.Cause(ctx))
}

// desert notes that one caller less waits. When none is left the call, if it
// runs, is cancelled. Call with the joiner's mutex.
func (b *joint[Req, Ans]) desert() {
	b.waiting--
	if b.waiting == 0 && b.cancel != nil {
		b.cancel()
	}
}

// run makes the call of a batch and wakes its callers, also if the store
// panics. One caller's cancellation does not fail the others' requests: the
// call ends early only when all of them have given up. Its leader is one of
// them and gets the answer in any case.
func (j *joiner[Req, Ans]) run(ctx context.Context, b *joint[Req, Ans]) {
	shared, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	j.mu.Lock()
	b.cancel = cancel
	j.mu.Unlock()
	defer context.AfterFunc(ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		b.desert()
	})()
	defer j.next(len(b.reqs))
	b.answers = make([]Ans, len(b.reqs))
	b.err = fmt.Errorf("semel: the store did not return: %w", ErrOutcomeUnknown)
	var reqs []Req
	var answers []Ans
	defer func() {
		if len(reqs) > 0 {
			j.orphan(context.WithoutCancel(ctx), reqs, answers)
		}
	}()
	defer func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		close(b.done) // under the lock: who leaves later finds it closed
		for i, gone := range b.gone {
			if gone && j.orphan != nil {
				reqs, answers = append(reqs, b.reqs[i]), append(answers, b.answers[i])
			}
		}
	}()
	b.err = j.call(shared, b.reqs, b.answers)
}

// next ends a call that carried so many requests, and hands over to the batch
// that gathered meanwhile.
func (j *joiner[Req, Ans]) next(carried int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.carried -= carried
	if len(j.queue) == 0 {
		j.running--
		return
	}
	j.start()
}

// start tells one of the callers of the first batch to run it. Call with j.mu.
func (j *joiner[Req, Ans]) start() {
	b := j.queue[0]
	j.queue = j.queue[1:]
	j.carried += len(b.reqs)
	b.lead <- struct{}{}
}
