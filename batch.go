package semel

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel/internal/retry"
)

// Batch takes tasks from their claim to their completion. [Guard.Do] is a batch of
// one task, and [Guard.DoBatch] a batch of many. Use a Batch yourself only if you
// hold claims between two attempts, as a pipeline does. The steps are:
//
//   - Claim claims the keys. Only tasks with the Decision Fresh continue.
//   - Keep renews the leases until Stop. The effects run in between, under the
//     context that Keep returns, and set Result and Err of their tasks.
//   - Complete records the effects that happened. GiveBack gives up the claims of
//     those that did not. A [Renewer] keeps claims for another attempt.
//
// If an answer is lost, it is not known whether the store made the change. Each
// step resolves this doubt where it can: it sends the same request again, and the
// store recognises it. What remains in doubt is an error that wraps
// ErrOutcomeUnknown.
//
// A Batch is not safe for concurrent use. It may be used again after Complete or
// GiveBack.
type Batch struct {
	guard   *Guard
	claimed time.Time // when the store had answered the claim
	renewer Renewer   // in use between Keep and Stop
	tasks   []*Task   // those of the renewer

	// The memory of requests and answers, to be used again.
	claims      []ClaimRequest
	answers     []ClaimAnswer
	completions []CompleteRequest
	errs        []error
}

// Task is one call on its way through a Batch. Call is required. A Task is used for
// one call only, and its address must not change.
type Task struct {
	Call *Call
	// Claim is the granted claim if the Decision is Fresh.
	Claim Claim
	// Outcome has the decision on the claim, and the effect's result. Set Result
	// after the effect, and Attempt if you count attempts yourself.
	Outcome
	// Err is the error of the last step. Set it after an effect that failed.
	Err error

	owner     Owner // of the request; zero before it
	lost      bool  // the store may have granted the claim
	left      bool  // lost because ctx ended, or in its release: the store may release it later
	stray     bool  // a request for the claim got no answer, and may reach the store later
	granted   bool  // the store granted the claim, and it has not ended
	refused   bool
	doubt     bool // the effect may have happened
	delivered bool // the effect happened, and only its completion is missing

	// A Renewer that has the task guards the fields below.
	renewer    atomic.Pointer[Renewer]
	at         int       // the place of the task in the renewer
	validUntil time.Time // until then the lease certainly lasts
	leaseLost  error     // how the lease was lost, if it was
}

// NewBatch returns an empty batch.
func (g *Guard) NewBatch() *Batch { return &Batch{guard: g} }

// Held reports whether the task has a claim.
func (t *Task) Held() bool { return t.granted }

// Lost reports whether the answer to the task's claim was lost. Claim asks for the
// same claim again. So do GiveBack, before it gives tasks back, and Complete, for
// a short time, after it has completed the tasks that are not lost.
func (t *Task) Lost() bool { return t.lost }

// Refused reports whether the store refused this key permanently.
func (t *Task) Refused() bool { return t.refused }

// Delivered reports whether the effect happened and its completion is not yet
// recorded. Such a task must be completed, and its effect must not run again.
func (t *Task) Delivered() bool { return t.delivered }

// Lasts reports whether the task has a claim whose lease lasts for long enough to
// begin an attempt. A delivered task needs no lease to be completed. If Lasts
// returns false, give the claim back.
func (b *Batch) Lasts(t *Task) bool {
	if r := t.renewer.Load(); r != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
	}
	return t.granted && (t.delivered || t.leaseLost == nil && time.Until(t.validUntil) >= b.guard.opts.Heartbeat/2)
}

// Claim claims the keys of tasks in one call. It sets Decision, Claim and Err. If
// the Decision is Fresh, Err is nil. If it is Undecided, the store did not answer.
// Otherwise Result and Err are those that [Guard.Do] returns.
//
// Claim blocks for a round trip, or for two if an answer is lost. The repetition is
// safe because the store recognises its own claims by their owners. A refusal of
// the repetition settles nothing, because the first request may have been granted.
// The task is then Lost.
func (b *Batch) Claim(ctx context.Context, tasks []*Task) {
	g := b.guard
	began := time.Now()
	b.claimed = began
	if len(tasks) == 0 {
		return
	}
	defer b.clear()
	ctx, end := g.follow(ctx, StepClaim, tasks)
	defer end(nil)
	for _, t := range tasks {
		if t.left {
			g.unused.abandon([]*Task{t})
			t.owner, t.left = Owner{}, false
		}
	}
	reqs, answers := b.claimRequests(tasks)
	err := impersonal(ctx, g.store.Claim(ctx, reqs, answers))
	repeated := Classify(err) == ClassUnknown && ctx.Err() == nil && slices.ContainsFunc(answers, noAnswer)
	if repeated {
		first := slices.Clone(answers)
		clear(answers)
		err = impersonal(ctx, g.store.Claim(ctx, reqs, answers))
		for i := range answers {
			if noAnswer(answers[i]) || first[i].Decision != Undecided {
				answers[i] = first[i]
			}
		}
	}
	b.claimed = time.Now()
	g.observeDecisions(reqs, answers, b.claimed.Sub(began))
	for i, t := range tasks {
		a := &answers[i]
		inDoubt := repeated || t.lost
		t.stray, t.lost = t.stray || inDoubt, false
		switch a.Decision {
		case Fresh:
			t.grant(a.Claim, began.Add(g.opts.Lease))
		case Undecided:
			t.Outcome = Outcome{}
			t.undecided(ctx, a.Err, err, inDoubt)
			g.Observe(Event{Kind: EventStoreError, Key: t.Call.Key, Err: t.Err})
			t.Err = fmt.Errorf("semel: claim %s: %w", t.Call.Key, t.Err)
		default:
			t.Outcome, t.Err = g.settle(ctx, t.Call, a)
		}
	}
}

func noAnswer(a ClaimAnswer) bool { return a.Decision == Undecided && a.Err == nil }

// claimRequests returns the requests of tasks. A task that asks again has the owner
// that it had before.
func (b *Batch) claimRequests(tasks []*Task) ([]ClaimRequest, []ClaimAnswer) {
	b.claims, b.answers = slices.Grow(b.claims[:0], len(tasks)), zeroed(b.answers, len(tasks))
	for _, t := range tasks {
		if t.owner.Nonce == 0 {
			t.owner = b.guard.unused.take(t.Call)
			t.lost = t.owner.Nonce != 0 // as it was for the task that asked first
		}
		if t.owner.Nonce == 0 {
			t.owner = b.guard.newOwner()
		}
		b.claims = append(b.claims, b.guard.request(t.Call, t.owner))
	}
	return b.claims, b.answers
}

// grant notes that the task has a claim.
func (t *Task) grant(claim Claim, validUntil time.Time) {
	t.lost, t.granted, t.leaseLost = false, true, nil
	t.Claim, t.validUntil = claim, validUntil
	t.Outcome, t.Err = Outcome{Decision: Fresh, Attempt: claim.Attempt}, nil
}

// undecided sets the error of a claim that was not decided. key is the answer for
// the task's key, call the error of the whole call. Only key can refuse permanently.
// inDoubt: the same claim was asked for before, and may have been granted then.
func (t *Task) undecided(ctx context.Context, key, call error, inDoubt bool) {
	key = impersonal(ctx, key)
	t.refused = key != nil && Classify(key) == ClassPermanent
	t.Err = key
	if key == nil {
		t.Err = call
	}
	if t.Err == nil {
		t.Err = fmt.Errorf("the store did not decide: %w", ErrOutcomeUnknown)
	}
	if inDoubt && !t.refused {
		t.Err = again(ErrOutcomeUnknown, t.Err)
	}
	t.lost = !t.refused && Classify(t.Err) == ClassUnknown
	t.left = t.lost && ctx.Err() != nil
}

// again returns the error of a repeated call; first is the error of the first
// call. If first left the outcome open, a refusal now does not settle it: the
// first call may have made the change.
func again(first, err error) error {
	if err == nil || Classify(first) != ClassUnknown {
		return err
	}
	return fmt.Errorf("asked again after a lost answer: %w: %w", ErrOutcomeUnknown, err)
}

// Keep renews the leases of tasks until Stop. It returns the context for their
// effects. The context ends with the cause ErrLeaseLost if one of the leases is
// lost. Keep takes over tasks that a Renewer has. It ignores tasks without a claim.
func (b *Batch) Keep(ctx context.Context, tasks []*Task) context.Context {
	b.renewer.begin(b.guard, ctx)
	b.tasks = tasks
	b.renewer.Keep(tasks...)
	return b.renewer.effect
}

// Stop ends what Keep began. Call it when the effects have returned. It adds
// ErrLeaseLost to the error of an effect whose own lease was lost. When Stop
// returns, no renewal runs or will run.
func (b *Batch) Stop() {
	b.renewer.Stop()
	for _, t := range b.tasks {
		if t.leaseLost != nil && t.Err != nil && !isPermanent(t.Err) && !errors.Is(t.Err, ErrLeaseLost) {
			t.Err = fmt.Errorf("%w: %w", t.leaseLost, t.Err)
		}
		t.doubt = t.doubt || inDoubt(t.Err)
	}
	b.tasks = nil
}

// isPermanent reports whether an effect reported by its error how it ended.
func isPermanent(err error) bool {
	_, permanent := errors.AsType[*PermanentError](err)
	return permanent
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

// Complete records that the effects of tasks happened, with their Results. It sets Err of each
// failed request, and leaves the others as they are. A result that is too large for the store is
// not kept.
//
// Complete sends the requests again, which is safe, for as long as a lease. It does
// so even if ctx has ended: an effect without a record would repeat. Afterwards, a
// task that is still Delivered may be completed later. Tasks that are Lost come
// last, and for a short time only, so that the others do not wait for them.
func (b *Batch) Complete(ctx context.Context, tasks []*Task) {
	defer b.clear()
	for _, t := range tasks {
		t.delivered = true
	}
	held, lost := divide(tasks)
	ctx = detached(ctx)
	effect := time.Since(b.claimed)
	b.completeWithin(ctx, b.guard.opts.Lease, held, effect)
	if len(lost) > 0 {
		limit := b.patience()
		b.completeWithin(ctx, limit, b.recover(ctx, limit, lost), effect)
		for _, t := range lost {
			t.lost = false // the store is not asked again: the effect happened
		}
	}
}

// completeWithin completes tasks that have a claim. Their effects took so long.
func (b *Batch) completeWithin(ctx context.Context, limit time.Duration, tasks []*Task, effect time.Duration) {
	if len(tasks) == 0 {
		return
	}
	g := b.guard
	ctx, end := g.BeginStep(ctx, StepComplete, len(tasks))
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	b.completions, b.errs = slices.Grow(b.completions[:0], len(tasks)), zeroed(b.errs, len(tasks))
	for _, t := range tasks {
		t.leaveRenewer()
		b.completions = append(b.completions, CompleteRequest{Key: t.Call.Key, Token: t.Claim.Token, Result: t.Result, Window: g.window(t.Call)})
	}
	g.complete(ctx, b.completions, b.errs)
	end(Undecided, firstError(b.errs))
	for i, t := range tasks {
		switch err := b.errs[i]; {
		case err == nil:
			t.granted, t.delivered = false, false
		case errors.Is(err, ErrStaleToken):
			g.Observe(Event{Kind: EventCompletionRefused, Key: t.Call.Key, Err: err})
			t.granted, t.delivered = false, false
			t.Err = fmt.Errorf("semel: %s: the effect ran, but %w: %w", t.Call.Key, ErrLeaseLost, err)
		default:
			g.Observe(Event{Kind: EventStoreError, Key: t.Call.Key, Err: err})
			t.Err = fmt.Errorf("semel: %s: the effect ran, but its completion is not recorded: %w: %w", t.Call.Key, ErrOutcomeUnknown, err)
		}
	}
	g.observeCompletions(b.completions, b.errs, effect)
}

func firstError(errs []error) error {
	if at := slices.IndexFunc(errs, func(err error) bool { return err != nil }); at >= 0 {
		return errs[at]
	}
	return nil
}

// complete sends completions until they are answered or ctx ends. A nil answer
// counts only if the call succeeded.
func (g *Guard) complete(ctx context.Context, reqs []CompleteRequest, errs []error) {
	for n := 0; ; n++ {
		clear(errs)
		err := impersonal(ctx, g.store.Complete(ctx, reqs, errs))
		for i := range reqs {
			if errs[i] = impersonal(ctx, errs[i]); errs[i] == nil {
				errs[i] = err
			}
		}
		if err == nil || !retryable(err) {
			break
		}
		g.Observe(Event{Kind: EventStoreError, Key: reqs[0].Key, Err: err})
		if retry.Sleep(ctx, retry.Backoff(n, time.Millisecond, time.Second)) != nil {
			return
		}
	}
	for i := range reqs {
		if errors.Is(errs[i], ErrResultTooLarge) && reqs[i].Result.Kind != NotKept {
			reqs[i].Result = Result{Kind: NotKept} // the effect happened, whatever its result
			g.complete(ctx, reqs[i:i+1], errs[i:i+1])
		}
	}
}

// retryable reports whether the same store call may succeed now.
func retryable(err error) bool {
	c := Classify(err)
	return (c == ClassRetryable || c == ClassUnknown) && !errors.Is(err, ErrStoreFailed)
}

// GiveBack gives up the claims of tasks, so that others can claim the keys. If the
// store does not answer, that is reported, and the guard asks again later, unless the
// effect may have happened. Then the lease ends by itself. A guard remembers 16,384 such
// claims, and reports each further one as an EventStoreError.
//
// If the effect may have happened and the guard's policy is ExpiryHold, the key becomes
// Unknown. Otherwise, if it may have happened now or in an earlier attempt, the
// record stays and only its lease ends: the next attempt must know.
//
// GiveBack blocks for at most a lease. It works even if ctx has ended, but ends at
// a deadline of ctx that is still to come.
func (b *Batch) GiveBack(ctx context.Context, tasks []*Task) {
	if len(tasks) == 0 {
		return
	}
	g := b.guard
	defer b.clear()
	wait := g.opts.Lease
	if end, limited := ctx.Deadline(); limited && ctx.Err() == nil {
		wait = min(wait, time.Until(end))
	}
	ctx, cancel := context.WithTimeout(detached(ctx), wait)
	defer cancel()
	held, lost := divide(tasks)
	if len(lost) > 0 {
		held = append(slices.Clone(held), b.recover(ctx, b.patience(), lost)...)
		g.unused.abandon(lost)
	}
	for _, t := range held {
		g.Observe(Event{Kind: EventReleased, Key: t.Call.Key, Attempt: t.Attempt, Err: t.Err})
	}
	open := b.release(ctx, held)
	for _, t := range held {
		if t.stray {
			open = append(open, t) // what is under way could claim the key again
		}
	}
	for _, t := range open {
		t.lost, t.left = true, true // the store may get to the release later
	}
	g.unused.abandon(open)
}

// Unknown reports whether GiveBack makes the key of a task Unknown.
func (b *Batch) Unknown(t *Task) bool {
	return (t.doubt || t.delivered) && b.guard.opts.OnLeaseExpired == ExpiryHold
}

// release ends claims. It reports errors to the observer, and returns the tasks whose
// claims may be open still, because the store did not answer.
func (b *Batch) release(ctx context.Context, tasks []*Task) (open []*Task) {
	ended := func(t *Task, err error) {
		b.guard.observeError(t.Call.Key, err)
		if err != nil && Classify(err) != ClassPermanent {
			open = append(open, t)
		}
	}
	var released, shortened []*Task
	var releases []ReleaseRequest
	var ends []ExtendRequest
	for _, t := range tasks {
		t.leaveRenewer()
		t.granted = false
		unknown := b.Unknown(t)
		if (t.doubt || t.delivered || t.Claim.Attempt > 1) && !unknown {
			shortened = append(shortened, t)
			ends = append(ends, ExtendRequest{Key: t.Call.Key, Token: t.Claim.Token, Lease: time.Millisecond})
		} else {
			released = append(released, t)
			releases = append(releases, ReleaseRequest{Key: t.Call.Key, Token: t.Claim.Token, Unknown: unknown})
		}
	}
	if len(releases) > 0 {
		answers := make([]error, len(releases))
		err := b.guard.store.Release(ctx, releases, answers)
		for i, t := range released {
			ended(t, errors.Join(err, answers[i]))
		}
	}
	if len(ends) > 0 {
		answers := make([]ExtendAnswer, len(ends))
		err := b.guard.store.Extend(ctx, ends, answers)
		for i, t := range shortened {
			ended(t, errors.Join(err, answers[i].Err))
		}
	}
	return open
}

// abort gives up the claims of effects that did not return. They may have happened.
func (b *Batch) abort(ctx context.Context, tasks []*Task) {
	ctx, cancel := context.WithTimeout(detached(ctx), b.guard.opts.Lease)
	defer cancel()
	for _, t := range tasks {
		t.doubt = true
		b.guard.Observe(Event{Kind: EventReleased, Key: t.Call.Key, Attempt: t.Attempt, Err: ErrPanic})
	}
	_ = b.release(ctx, tasks) // the observer has the errors
}

// divide returns the tasks with a claim, and those that may have a claim.
func divide(tasks []*Task) (held, lost []*Task) {
	if !slices.ContainsFunc(tasks, func(t *Task) bool { return !t.granted }) {
		return tasks, nil
	}
	for _, t := range tasks {
		switch {
		case t.granted:
			held = append(held, t)
		case t.lost:
			lost = append(lost, t)
		}
	}
	return held, lost
}

// patience is how long others wait for what a store does with tasks that are Lost.
func (b *Batch) patience() time.Duration { return min(b.guard.opts.Heartbeat/4, time.Second/2) }

// recover asks once more for claims whose answers were lost. It returns the tasks
// that have a claim. Those that are still Lost got no answer.
func (b *Batch) recover(ctx context.Context, limit time.Duration, lost []*Task) []*Task {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	asked := time.Now()
	reqs, answers := b.claimRequests(lost)
	b.guard.observeError(reqs[0].Key, b.guard.store.Claim(ctx, reqs, answers))
	var found []*Task
	for i, t := range lost {
		a := &answers[i]
		t.stray, t.lost = true, a.Decision == Undecided && (a.Err == nil || Classify(a.Err) != ClassPermanent)
		if a.Decision == Fresh {
			t.granted, t.leaseLost, t.Claim, t.validUntil = true, nil, a.Claim, asked.Add(b.guard.opts.Lease)
			found = append(found, t)
		}
	}
	return found
}

// clear keeps nothing but the memory.
func (b *Batch) clear() {
	clear(b.claims)
	clear(b.answers)
	clear(b.completions)
	clear(b.errs)
}

// zeroed returns a slice of n zero values, in the memory of one that is clear.
func zeroed[T any](memory []T, n int) []T { return slices.Grow(memory[:0], n)[:n] }

// observeError reports the store's answer if it is an error.
func (g *Guard) observeError(key Key, err error) {
	if err != nil {
		g.Observe(Event{Kind: EventStoreError, Key: key, Err: err})
	}
}

// detached returns a context that does not end with ctx.
func detached(ctx context.Context) context.Context {
	if ctx.Done() == nil {
		return ctx // it never ends
	}
	return context.WithoutCancel(ctx)
}

// impersonal returns an error of the store or of a context without any
// PermanentError in it. Such a PermanentError belongs to another message:
// errgroup, for example, ends a context with it as the cause. A caller would
// acknowledge its own message because of it.
func impersonal(ctx context.Context, err error) error {
	if !isPermanent(err) {
		return err
	}
	return fmt.Errorf("%w: %v", cmp.Or(ctx.Err(), ErrOutcomeUnknown), err)
}
