package pipeline

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

// TwoPhaseOptions are the options of NewTwoPhase. The zero value is valid.
type TwoPhaseOptions struct {
	// Guard is the policy of the claims: lease, window, what follows an ended
	// lease and a late message, observer. Its Wait and Park are not used: the
	// runner waits and parks.
	Guard semel.GuardOptions
	// FilterMap filters and changes the messages that are delivered. Defaults to none.
	FilterMap FilterMap
	// Pass delivers without a claim while the store does not answer: an effect
	// may repeat. By default nothing is delivered then.
	Pass bool
	// Observe decides and counts, and delivers every message whatever the
	// decision is, even while the store does not answer.
	Observe bool
	// Observer receives what Pass let through. Defaults to none.
	Observer Observer
}

// TwoPhase is the session of any store and any sink: claim, deliver, complete.
// Nothing is lost. An effect can repeat only if the process ends, or loses its
// lease, between the effect and its completion, unless the guard holds such keys.
// The repeat then has a higher token, and a higher number where the store still
// knows the claim: one that keeps claims in the process forgets them with it.
type TwoPhase struct {
	guard *semel.Guard
	sink  Sink
	opts  TwoPhaseOptions
	rooms rooms // for a Process each

	waiting *semel.Renewer // of claims that wait for their next try

	// claiming, delivering and completing count the calls of Process in each stage.
	claiming, delivering, completing atomic.Int32
	// completions is the store of the guard.
	completions *completions
}

// completions is a store that remembers why its last completion failed. The guard
// repeats completions for as long as a lease, and returns no error before.
type completions struct {
	semel.Store
	failed atomic.Pointer[error] // nil if the last one did not fail
}

// Unwrap returns the store itself; see semel.As.
func (c *completions) Unwrap() semel.Store { return c.Store }

// Complete implements semel.Store.
func (c *completions) Complete(ctx context.Context, reqs []semel.CompleteRequest, errs []error) error {
	err := c.Store.Complete(ctx, reqs, errs)
	failed := err
	for i := 0; i < len(errs) && failed == nil; i++ {
		failed = errs[i]
	}
	switch {
	case failed != nil:
		c.failed.Store(&failed)
	case c.failed.Load() != nil:
		c.failed.Store(nil)
	}
	return err
}

// taskOf returns the task that the session holds for an item between two calls, or nil. It
// is a claim, or a request whose answer was lost.
func taskOf(it *Item) *semel.Task {
	task, _ := it.Held.(*semel.Task)
	return task
}

// heldTask returns the task of an item that has a claim, or nil.
func heldTask(it *Item) *semel.Task {
	if task := taskOf(it); task != nil && task.Held() {
		return task
	}
	return nil
}

// NewTwoPhase returns a session. Errors are those of semel.NewGuard. The sink is
// closed by Close, the store is not.
func NewTwoPhase(store semel.Store, sink Sink, opts *TwoPhaseOptions) (*TwoPhase, error) {
	if err := missing("NewTwoPhase", argument{"store", store == nil}, argument{"sink", sink == nil}); err != nil {
		return nil, err
	}
	t := &TwoPhase{sink: sink}
	if opts != nil {
		t.opts = *opts
	}
	g := &t.opts.Guard
	g.Wait = 0
	if g.OnLate == semel.LatePark {
		g.OnLate, g.Park = semel.LateReject, nil
	}
	t.completions = &completions{Store: store}
	guard, err := semel.NewGuard(t.completions, g)
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	t.guard, t.waiting = guard, guard.NewRenewer()
	return t, nil
}

// Traits implements Session.
func (t *TwoPhase) Traits() SinkTraits { return t.sink.Traits() }

// Close implements Session.
func (t *TwoPhase) Close(ctx context.Context) error {
	t.waiting.Stop()
	return t.sink.Close(ctx)
}

// Ready implements doctor.Readier: it asks the sink where it can tell, and the store
// unless messages pass without it.
func (t *TwoPhase) Ready(ctx context.Context) error {
	if err := sinkReady(ctx, t.sink); err != nil {
		return err
	}
	if ready, ok := semel.As[doctor.Readier](t.guard.Store()); ok && !t.opts.Pass && !t.opts.Observe {
		if err := ready.Ready(ctx); err != nil {
			return &StoreError{fmt.Errorf("store: %w", err)}
		}
	}
	return nil
}

// BindScope implements Session. If messages pass without the store, it does not
// wait for the store either.
func (t *TwoPhase) BindScope(ctx context.Context, scope string, owner semel.ScopeOwner) error {
	err := semel.BindScope(ctx, t.guard.Store(), scope, owner)
	if (t.opts.Pass || t.opts.Observe) && semel.Classify(err) != semel.ClassPermanent {
		return nil
	}
	return err
}

var _ Waiter = (*TwoPhase)(nil)

// WaitsFor implements Waiter. It asks the store about claims and completions, and the
// sink about deliveries, if they are Waiters.
func (t *TwoPhase) WaitsFor(ctx context.Context) (what string, ends bool) {
	var list []string
	if t.claiming.Load() > 0 {
		list = append(list, "claims in the store")
	}
	if t.completing.Load() > 0 {
		list = append(list, "completions in the store")
	}
	if store, ok := semel.As[Waiter](t.guard.Store()); ok && len(list) > 0 {
		if lock, _ := store.WaitsFor(ctx); lock != "" {
			list = append(list, lock)
		}
	}
	if t.delivering.Load() > 0 {
		list = append(list, waitsFor(ctx, t.sink, "delivery to the sink"))
	}
	return strings.Join(list, ", "), false
}

// failing returns the error of the store for completions in progress, or nil.
func (t *TwoPhase) failing() error {
	if err := t.completions.failed.Load(); err != nil && t.completing.Load() > 0 {
		return &StoreError{*err}
	}
	return nil
}

// Process implements Session.
func (t *TwoPhase) Process(ctx context.Context, items []*Item) {
	r := t.rooms.take(t.guard)
	t.process(ctx, items, r)
	if slices.ContainsFunc(r.asked, func(it *Item) bool { return it.Held != nil }) {
		for i, it := range r.asked {
			if taskOf(it) != &r.memory[i] {
				r.memory[i] = semel.Task{} // or it would keep its message in memory
			}
		}
		r.memory = nil // an item has one of them
	}
	t.rooms.put(r)
}

// process claims, delivers and completes.
func (t *TwoPhase) process(ctx context.Context, items []*Item, r *room) {
	t.decide(ctx, items, r)
	if len(r.fresh) == 0 {
		return
	}
	for _, it := range r.fresh {
		task := taskOf(it)
		if task != nil {
			r.tasks = append(r.tasks, task)
		}
		if task == nil || !task.Delivered() {
			r.todo = append(r.todo, it)
		}
	}
	effect := r.batch.Keep(ctx, r.tasks)
	if len(r.todo) > 0 {
		left := in(&t.delivering)
		effect, end := t.guard.BeginStep(effect, semel.StepEffect, len(r.todo))
		deliver(effect, t.sink, t.opts.FilterMap, r.todo)
		end(semel.Undecided, firstErr(r.todo))
		left()
	}
	for _, it := range r.todo {
		if task := taskOf(it); task != nil {
			task.Result, task.Err = it.Result, it.Err
		}
	}
	r.batch.Stop()
	t.finish(ctx, r)
	for _, c := range r.copies {
		t.settleCopy(c)
	}
}

// firstErr returns the first error of items, or nil.
func firstErr(items []*Item) error {
	for _, it := range items {
		if it.Err != nil {
			return it.Err
		}
	}
	return nil
}

// settleCopy decides on a copy by the outcome of its first.
func (t *TwoPhase) settleCopy(c itemCopy) {
	it, first := c.item, c.first
	if first.Err != nil {
		it.Decision, it.Err = semel.Undecided, ErrBehind
		return
	}
	it.Decision, it.Result = semel.Duplicate, first.Result
	answer := semel.ClaimAnswer{Decision: semel.Duplicate, Result: first.Result}
	_, _ = t.guard.Settle(context.Background(), &it.Call, &answer, 0) // a failure that was recorded is an outcome too
}

// decide claims the keys. It finds the fresh items in their order: items to deliver, and
// delivered items without a completion. It also finds copies: items whose key is held for an item
// before them in their group. A copy has no effect of its own if that item has, so nothing has to
// wait behind it. All other items have their outcome.
func (t *TwoPhase) decide(ctx context.Context, items []*Item, r *room) {
	var ending []*Item
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.Delivered = semel.Undecided, semel.Result{}, nil, false
		switch task := taskOf(it); {
		case task == nil || task.Lost():
			r.asked = append(r.asked, it)
		case r.batch.Lasts(task):
			it.Decision, it.Attempt, it.Token = semel.Fresh, task.Claim.Attempt+it.Tries, task.Claim.Token
			task.Attempt, task.Err = it.Attempt, nil
		default:
			ending, r.asked = append(ending, it), append(r.asked, it)
		}
	}
	if len(ending) > 0 {
		t.Abandon(ctx, ending) // or they would be in flight until their leases end
	}
	t.claim(ctx, r)
	var firsts map[semel.Key]*Item
	known := 0                         // of the fresh ones, in firsts, or of groups before
	group, blocked := uint64(0), false // the items of a group stand together
	for _, it := range items {
		if it.Group != group {
			group, blocked = it.Group, false
			known, firsts = len(r.fresh), nil
		}
		switch {
		case it.Decision == semel.InFlight && it.Err != nil && blocked:
			it.Err = ErrBehind // its time to wait has not begun
		case it.Decision == semel.InFlight && it.Err != nil:
			for ; known < len(r.fresh); known++ {
				if firsts == nil {
					firsts = map[semel.Key]*Item{}
				}
				firsts[r.fresh[known].Call.Key] = r.fresh[known]
			}
			if first := firsts[it.Call.Key]; first != nil {
				it.Err = nil
				r.copies = append(r.copies, itemCopy{it, first})
			} else {
				blocked = true
			}
		case it.Err != nil:
			blocked = true
		case it.Decision != semel.Fresh: // settled
		case blocked:
			it.Err = ErrBehind
			if task := heldTask(it); task != nil {
				t.waiting.Keep(task) // its lease must not end before its turn comes
			}
		default:
			r.fresh = append(r.fresh, it)
		}
	}
}

// claim asks the store and sets what it answered.
func (t *TwoPhase) claim(ctx context.Context, r *room) {
	r.memory = slices.Grow(r.memory[:0], len(r.asked))[:len(r.asked)]
	for i, it := range r.asked {
		task := taskOf(it)
		if task == nil {
			task = &r.memory[i]
			task.Call = &it.Call
		}
		r.tasks = append(r.tasks, task)
	}
	left := in(&t.claiming)
	r.batch.Claim(ctx, r.tasks)
	left()
	passed, failure := 0, error(nil)
	for i, it := range r.asked {
		task := r.tasks[i]
		it.Decision, it.Result, it.Err, it.Held = task.Decision, task.Result, task.Err, nil
		if task.Held() || task.Lost() {
			it.Held = task
		}
		switch {
		case task.Decision == semel.Fresh:
			it.Attempt, it.Token = task.Claim.Attempt+it.Tries, task.Claim.Token
			task.Attempt = it.Attempt
		case task.Refused():
			it.Err = semel.Permanent(&StoreError{task.Err})
		case task.Decision == semel.Undecided:
			it.Err = &StoreError{task.Err}
			if (t.opts.Pass || t.opts.Observe) && ctx.Err() == nil {
				it.Err, it.Decision, it.Attempt = nil, semel.Fresh, it.Tries+1
				task.Err, task.Attempt, failure = nil, it.Attempt, task.Err
				passed++
			}
		default:
			if task.Decision == semel.Duplicate {
				it.Err = nil // a failure that was recorded is an outcome too
			}
			if t.opts.Observe {
				it.Err, it.Attempt = nil, it.Tries+1
				r.observe(it, task.Decision)
				it.Decision = semel.Fresh
			}
		}
	}
	clear(r.tasks)
	r.tasks = r.tasks[:0]
	if passed > 0 && t.opts.Observer != nil {
		t.opts.Observer.ObservePipeline(Event{Kind: EventFailedOpen, Count: passed, Err: failure})
	}
}

// finish completes what was delivered, and keeps or gives up the other claims. A
// message that passed without an answer from the store may have a claim after all.
// Its effect happened, so it is completed too.
func (t *TwoPhase) finish(ctx context.Context, r *room) {
	clear(r.tasks)
	r.tasks = r.tasks[:0]
	var unknown []*Item
	for _, it := range r.fresh {
		task := taskOf(it)
		switch {
		case it.Err == nil:
			if decision, observed := r.observed[it]; observed {
				it.Decision, it.Delivered = decision, true
			}
			if task != nil {
				r.done, r.tasks = append(r.done, it), append(r.tasks, task)
				if task.Lost() {
					it.Held = nil // it passed: a completion that fails must not hold it up
				}
			}
		case task == nil:
		case r.batch.Unknown(task) && task.Held():
			it.Err = task.Err
			unknown = append(unknown, it)
		default:
			it.Err = task.Err
			t.waiting.Keep(task)
		}
	}
	left := in(&t.completing)
	r.batch.Complete(ctx, r.tasks)
	left()
	for i, it := range r.done {
		t.completed(it, r.tasks[i])
	}
	if len(unknown) == 0 {
		return
	}
	t.Abandon(ctx, unknown)
	for _, it := range unknown {
		it.Decision = semel.OutcomeUnknown
		it.Err = fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, it.Err)
	}
}

// completed sets the outcome of an item after its completion.
func (t *TwoPhase) completed(it *Item, task *semel.Task) {
	it.Result, it.Err = task.Result, task.Err
	switch {
	case it.Held == nil:
		it.Err = nil
	case !task.Held():
		it.Held = nil
	case it.Err != nil: // the claim is kept, and the completion is tried again
		it.Err = &StoreError{it.Err}
		t.waiting.Keep(task)
	}
}

// Abandon implements Session.
func (t *TwoPhase) Abandon(ctx context.Context, items []*Item) {
	var tasks []*semel.Task
	for _, it := range items {
		if task := taskOf(it); task != nil {
			task.Attempt, task.Err = it.Attempt, it.Err
			tasks = append(tasks, task)
			it.Held = nil
		}
	}
	t.guard.NewBatch().GiveBack(ctx, tasks)
}

// room is the memory that one Process needs for its items. It is used again, so that a
// batch leaves less behind it.
type room struct {
	batch       *semel.Batch
	memory      []semel.Task // of asked
	tasks       []*semel.Task
	asked       []*Item // those whose keys are claimed
	fresh, todo []*Item
	copies      []itemCopy
	observed    map[*Item]semel.Decision // of items that are delivered all the same; nil if none exists
	done        []*Item                  // those that are completed
}

// itemCopy is an item of a batch whose key an item before it has.
type itemCopy struct{ item, first *Item }

// observe notes the decision on an item that is delivered all the same.
func (r *room) observe(it *Item, d semel.Decision) {
	if r.observed == nil {
		r.observed = map[*Item]semel.Decision{}
	}
	r.observed[it] = d
}

// rooms lends rooms. As many wait to be lent again as were in use together.
type rooms struct {
	mu   sync.Mutex
	idle []*room
}

func (l *rooms) take(guard *semel.Guard) *room {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return &room{batch: guard.NewBatch()}
	}
	r := l.idle[last]
	l.idle = l.idle[:last]
	return r
}

func (l *rooms) put(r *room) {
	r.clear()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, r)
}

// clear keeps nothing but the room: what waits must hold nothing.
func (r *room) clear() {
	clear(r.memory)
	clear(r.tasks)
	clear(r.asked)
	clear(r.fresh)
	clear(r.todo)
	clear(r.copies)
	clear(r.observed)
	clear(r.done)
	*r = room{
		batch: r.batch, memory: r.memory[:0], tasks: r.tasks[:0], asked: r.asked[:0], fresh: r.fresh[:0], todo: r.todo[:0],
		copies: r.copies[:0], observed: r.observed, done: r.done[:0],
	}
}
