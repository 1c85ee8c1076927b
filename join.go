package semel

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
)

// joined is the store that Join returns.
type joined struct {
	store    Store
	through  bool // the store joins calls itself
	claim    joiner[ClaimRequest, ClaimAnswer]
	complete joiner[CompleteRequest, error]
	release  joiner[ReleaseRequest, error]
	extend   joiner[ExtendRequest, ExtendAnswer]
}

var _ Store = (*joined)(nil)

// Join returns a store that joins concurrent single requests into batches. While one
// call of a method runs, single requests that arrive are queued. They go together
// when the call ends. If the store accepts several concurrent calls, they also go
// when the queue holds half as many requests as are under way. At most most requests go
// in one call; 0 means 1024. [Batching] says how many calls run concurrently and how
// large they are.
//
// There is no timer, so a lone caller never waits. If other callers were active
// recently, the leader of a batch first yields to goroutines that can run. Calls
// with several requests pass through unchanged. A caller whose request was
// answered does not get the error of other requests.
//
// The store has a method Unwrap, so [As] finds what it wraps. It starts no goroutines. A
// store that is already joined is returned unchanged.
func Join(store Store, most int) Store {
	if j, ok := store.(*joined); ok {
		return j
	}
	if most <= 0 {
		most = 1024
	}
	batching := store.Traits().Batching
	j := &joined{store: store, through: batching.Off}
	plan := joinPlan{lanes: max(batching.Calls, 1), least: batching.Least, most: most}
	if batching.Most > 0 {
		plan.most = min(most, batching.Most)
	}
	refused := func(a *error) bool { return *a != nil } // nil may mean that there is no answer
	j.claim.init(plan, store.Claim, func(a *ClaimAnswer) bool { return !noAnswer(*a) })
	j.complete.init(plan, store.Complete, refused)
	j.release.init(plan, store.Release, refused)
	j.extend.init(plan, store.Extend, func(a *ExtendAnswer) bool { return a.Err != nil || !a.LeaseEnd.IsZero() })
	j.claim.orphan = j.giveBack
	j.complete.silent = true
	return j
}

// Claim implements Store.
func (j *joined) Claim(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) error {
	if j.through {
		return j.store.Claim(ctx, reqs, answers)
	}
	return j.claim.do(ctx, reqs, answers)
}

// Complete implements Store.
func (j *joined) Complete(ctx context.Context, reqs []CompleteRequest, answers []error) error {
	if j.through {
		return j.store.Complete(ctx, reqs, answers)
	}
	return j.complete.do(ctx, reqs, answers)
}

// Release implements Store.
func (j *joined) Release(ctx context.Context, reqs []ReleaseRequest, answers []error) error {
	if j.through {
		return j.store.Release(ctx, reqs, answers)
	}
	return j.release.do(ctx, reqs, answers)
}

// Extend implements Store.
func (j *joined) Extend(ctx context.Context, reqs []ExtendRequest, answers []ExtendAnswer) error {
	if j.through {
		return j.store.Extend(ctx, reqs, answers)
	}
	return j.extend.do(ctx, reqs, answers)
}

// Traits implements Store.
func (j *joined) Traits() Traits { return j.store.Traits() }

// Unwrap returns the store below.
func (j *joined) Unwrap() Store { return j.store }

// giveBack releases claims that were granted to callers who had gone. Otherwise
// the keys would stay blocked until the leases end.
func (j *joined) giveBack(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) {
	var back []ReleaseRequest
	for i, a := range answers {
		if a.Decision == Fresh && !reqs[i].Done {
			back = append(back, ReleaseRequest{Key: reqs[i].Key, Token: a.Claim.Token})
		}
	}
	if len(back) > 0 {
		// If this fails, the lease ends by itself.
		_ = j.store.Release(ctx, back, make([]error, len(back)))
	}
}

// joiner joins the single calls of one store method.
type joiner[Req, Ans any] struct {
	call   func(context.Context, []Req, []Ans) error
	orphan func(context.Context, []Req, []Ans)
	// filled reports whether an answer was given.
	filled func(*Ans) bool
	// silent: success leaves the answer empty as well. So a caller whose call
	// failed, maybe because of other requests, repeats its own request alone.
	silent bool
	joinPlan

	idle sync.Pool // holds *caller[Ans]

	mu      sync.Mutex // guards the fields below, and the batch fields that do not belong to a leader
	running int        // running calls of this method, and batches that have a leader
	carried int        // requests in the running calls
	crowded bool       // the last call had several requests, or others waited for its end
	queue   []*joint[Req, Ans]
	spare   []*joint[Req, Ans]
}

// joinPlan limits the size and number of calls.
type joinPlan struct {
	lanes int // maximum concurrent calls of a method
	least int // minimum requests for a further concurrent call
	most  int // maximum requests in one call
}

// joint is a batch of requests from different callers. While it is queued, more
// requests may join it. Once its leader takes it out, it belongs to the leader, except for the
// fields for callers that give up.
type joint[Req, Ans any] struct {
	reqs    []Req
	answers []Ans
	callers []*caller[Ans] // nil if the caller of this request no longer waits
	waiting int
	led     bool               // one of its callers leads it, or was appointed to
	over    bool               // the answers are being handed out
	cancel  context.CancelFunc // cancels the call; set while it runs
}

// caller waits for the answer to one request. A reused channel for each caller is
// cheaper than one channel for which all callers of a batch contend.
type caller[Ans any] struct {
	answer *Ans // where the answer is written
	err    error
	shared bool      // the call had requests of other callers
	wake   chan bool // has capacity 1: true to lead the batch, false when the answer is there
}

func (j *joiner[Req, Ans]) init(plan joinPlan, call func(context.Context, []Req, []Ans) error, filled func(*Ans) bool) {
	j.joinPlan, j.call, j.filled = plan, call, filled
	j.idle.New = func() any { return &caller[Ans]{wake: make(chan bool, 1)} }
}

func (j *joiner[Req, Ans]) do(ctx context.Context, reqs []Req, answers []Ans) error {
	if len(reqs) != len(answers) {
		return fmt.Errorf("semel: %d requests but room for %d answers: %w", len(reqs), len(answers), ErrInvalidRequest)
	}
	if len(reqs) != 1 {
		return j.call(ctx, reqs, answers)
	}
	j.mu.Lock()
	if j.running == 0 && !j.crowded {
		j.running, j.carried = 1, 1
		j.mu.Unlock()
		defer j.end(1)
		return j.call(ctx, reqs, answers)
	}
	c := j.idle.Get().(*caller[Ans])
	defer j.idle.Put(c)
	c.answer = &answers[0]
	b, i := j.enlist(&reqs[0], c)
	lead := j.running == 0
	if lead {
		j.running, b.led = 1, true
	} else {
		j.more()
	}
	j.mu.Unlock()

	var err error
	if !lead {
		select {
		case lead = <-c.wake:
		case <-ctx.Done():
			err = j.leave(ctx, b, i, c)
		}
	}
	if lead {
		j.run(ctx, b, c)
	}
	if err == nil {
		err = c.err
	}
	repeat := j.silent && c.shared && err != nil && retryable(err) && ctx.Err() == nil
	c.answer, c.err, c.shared = nil, nil, false
	if repeat {
		return again(err, j.call(ctx, reqs, answers))
	}
	return err
}

// enlist adds a request to the last queued batch with room. The caller holds
// j.mu.
func (j *joiner[Req, Ans]) enlist(req *Req, c *caller[Ans]) (*joint[Req, Ans], int) {
	var b *joint[Req, Ans]
	if n := len(j.queue); n > 0 && len(j.queue[n-1].reqs) < j.most {
		b = j.queue[n-1]
	} else {
		if n := len(j.spare); n > 0 {
			b, j.spare = j.spare[n-1], j.spare[:n-1]
			b.led, b.over = false, false
		} else {
			b = &joint[Req, Ans]{}
		}
		j.queue = append(j.queue, b)
	}
	b.reqs, b.callers = append(b.reqs, *req), append(b.callers, c)
	b.waiting++
	return b, len(b.reqs) - 1
}

// next returns the first queued batch that has no leader. The caller holds j.mu.
func (j *joiner[Req, Ans]) next() *joint[Req, Ans] {
	for _, b := range j.queue {
		if !b.led {
			return b
		}
	}
	return nil
}

// more starts further calls where they pay: full calls, or calls about as large
// as those under way. The caller holds j.mu.
func (j *joiner[Req, Ans]) more() {
	for j.running < j.lanes {
		b := j.next()
		if b == nil || len(b.reqs) < j.most && (len(b.reqs) < j.least || 2*len(b.reqs) < j.carried) {
			return
		}
		j.running++
		b.appoint()
	}
}

// appoint chooses one of the waiting callers of a batch as its leader. The caller
// holds the joiner's mutex.
func (b *joint[Req, Ans]) appoint() {
	b.led = true
	i := slices.IndexFunc(b.callers, func(c *caller[Ans]) bool { return c != nil })
	b.callers[i].wake <- true
}

// leave handles a caller that gave up. It returns nil if the answer has arrived
// after all, and otherwise the caller's error. An answer that arrives later is an
// orphan. If the caller was appointed leader, leave passes the role on.
func (j *joiner[Req, Ans]) leave(ctx context.Context, b *joint[Req, Ans], i int, c *caller[Ans]) error {
	j.mu.Lock()
	leads := false
	select {
	case leads = <-c.wake:
		if !leads {
			j.mu.Unlock()
			return nil
		}
	default: // nothing was sent, so the batch is still this one
		if b.over {
			j.mu.Unlock()
			<-c.wake // about to be sent
			return nil
		}
	}
	defer j.mu.Unlock()
	b.callers[i] = nil
	b.desert()
	switch {
	case b.waiting == 0 && b.cancel == nil:
		j.queue = slices.DeleteFunc(j.queue, func(q *joint[Req, Ans]) bool { return q == b })
		if leads {
			j.finish(0)
		}
		return fmt.Errorf("semel: gave up before the store was asked: %w", context.Cause(ctx))
	case leads:
		b.appoint()
	}
	return fmt.Errorf("semel: gave up while the store was asked: %w: %w", ErrOutcomeUnknown, context.Cause(ctx))
}

// desert records that one caller no longer waits. When none is left, it cancels
// the call if it is running. The caller holds the joiner's mutex.
func (b *joint[Req, Ans]) desert() {
	b.waiting--
	if b.waiting == 0 && b.cancel != nil {
		b.cancel()
	}
}

// run makes the call of a batch led by c and wakes its callers, even if the store
// panics. One caller's cancellation does not fail the requests of others: the
// call ends early only when all callers have given up. The leader is one of them
// and gets the answer in any case.
func (j *joiner[Req, Ans]) run(ctx context.Context, b *joint[Req, Ans], c *caller[Ans]) {
	// Callers that were answered together come back together. Let runnable
	// goroutines run first, because they may be about to join.
	runtime.Gosched()
	shared, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	j.mu.Lock()
	j.queue = slices.DeleteFunc(j.queue, func(q *joint[Req, Ans]) bool { return q == b })
	b.cancel = cancel
	j.carried += len(b.reqs)
	j.mu.Unlock()
	ended := false // guarded by j.mu; b may be another batch by then
	defer context.AfterFunc(ctx, func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if !ended {
			b.desert()
		}
	})()
	b.answers = slices.Grow(b.answers, len(b.reqs))[:len(b.reqs)]
	err := fmt.Errorf("semel: the store did not return: %w", ErrOutcomeUnknown)
	defer func() {
		j.mu.Lock()
		ended, b.over, b.cancel = true, true, nil // a caller that leaves from here on waits for the answer
		j.finish(len(b.reqs))
		j.mu.Unlock()
		j.deliver(ctx, b, c, err)
	}()
	err = j.call(shared, b.reqs, b.answers)
}

// deliver hands out the answers of a batch led by leader. It keeps the memory of
// the batch for reuse.
func (j *joiner[Req, Ans]) deliver(ctx context.Context, b *joint[Req, Ans], leader *caller[Ans], err error) {
	var reqs []Req
	var answers []Ans
	for i, c := range b.callers {
		switch {
		case c != nil:
			*c.answer, c.err, c.shared = b.answers[i], err, len(b.reqs) > 1
			if j.filled(&b.answers[i]) {
				c.err = nil // the error belongs to other requests
			}
			if c != leader {
				c.wake <- false
			}
		case j.orphan != nil:
			reqs, answers = append(reqs, b.reqs[i]), append(answers, b.answers[i])
		}
	}
	clear(b.reqs)
	clear(b.answers)
	b.reqs, b.answers, b.callers = b.reqs[:0], b.answers[:0], b.callers[:0]
	j.mu.Lock()
	if b.waiting = 0; len(j.spare) <= j.lanes {
		j.spare = append(j.spare, b)
	}
	j.mu.Unlock()
	if len(reqs) > 0 {
		j.orphan(context.WithoutCancel(ctx), reqs, answers)
	}
}

// end ends a call that carried this many requests.
func (j *joiner[Req, Ans]) end(carried int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.finish(carried)
}

// finish counts a call with this many requests as ended and hands over to the
// next queued batch. The caller holds j.mu.
func (j *joiner[Req, Ans]) finish(carried int) {
	j.running--
	j.carried -= carried
	j.crowded = carried > 1 || len(j.queue) > 0
	if b := j.next(); b != nil {
		j.running++
		b.appoint()
	}
	j.more()
}
