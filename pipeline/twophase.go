package pipeline

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// TwoPhaseOptions are the options of NewTwoPhase. The zero value is valid.
type TwoPhaseOptions struct {
	// Guard is the policy of the claims: lease, window, what follows an ended
	// lease and a late message, observer. Its Wait and Park are not used: the
	// runner waits and parks.
	Guard semel.GuardOptions
	// Pass delivers without a claim while the store does not answer: an effect
	// may repeat. By default nothing is delivered then.
	Pass bool
	// Observe decides and counts, and delivers every message whatever the
	// decision is, also while the store does not answer.
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
	store semel.Store
	sink  Sink
	opts  TwoPhaseOptions
	rooms rooms // for a Process each

	leases leaseRenewer
}

// What TwoPhase holds for an item is one of two: the claim that was granted, or the
// request whose answer was lost, which the store may have granted and knows again.

// claimOf returns the claim that the session holds for an item, or nil.
func claimOf(it *Item) *heldClaim {
	c, _ := it.Held.(*heldClaim)
	return c
}

// lostRequest returns the request for an item whose answer was lost, or nil.
func lostRequest(it *Item) *semel.ClaimRequest {
	req, _ := it.Held.(*semel.ClaimRequest)
	return req
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
	if g.Lease == 0 {
		g.Lease = semel.DefaultLease
	}
	if g.Window == 0 {
		g.Window = semel.DefaultWindow
	}
	if g.Heartbeat == 0 {
		g.Heartbeat = g.Lease / 3
	}
	if most := sink.Traits().MaxResult; g.MaxResult == 0 && most > 0 && store.Traits().Results {
		g.MaxResult = most
	}
	guard, err := semel.NewGuard(store, g)
	if err != nil {
		return nil, fmt.Errorf("pipeline: %w", err)
	}
	t.guard, t.store = guard, guard.Store()
	t.leases.init(guard, t.store, g.Lease, g.Heartbeat)
	return t, nil
}

// Traits implements Session.
func (t *TwoPhase) Traits() SinkTraits { return t.sink.Traits() }

// Close implements Session.
func (t *TwoPhase) Close(ctx context.Context) error {
	t.leases.stop()
	return t.sink.Close(ctx)
}

// Ready implements semel.Readier: it asks the sink where it can tell, and the store
// unless messages pass without it.
func (t *TwoPhase) Ready(ctx context.Context) error {
	if ready, ok := t.sink.(semel.Readier); ok {
		if err := ready.Ready(ctx); err != nil {
			return fmt.Errorf("sink: %w", err)
		}
	}
	if ready, ok := semel.Ability[semel.Readier](t.store); ok && !t.opts.Pass && !t.opts.Observe {
		if err := ready.Ready(ctx); err != nil {
			return fmt.Errorf("store: %w", err)
		}
	}
	return nil
}

// Process implements Session.
func (t *TwoPhase) Process(ctx context.Context, items []*Item) {
	began := time.Now()
	r := t.rooms.take()
	t.process(ctx, items, r, began)
	if slices.ContainsFunc(r.asked, func(it *Item) bool { return claimOf(it) != nil }) || t.leases.mayLook() {
		r.held = nil // an item has one of them, or a renewal looks at one
	}
	t.rooms.put(r)
}

func (t *TwoPhase) process(ctx context.Context, items []*Item, r *room, began time.Time) {
	t.decide(ctx, items, r)
	if len(r.fresh) == 0 {
		return
	}
	batch := t.leases.start(ctx, r.fresh, began)
	for _, it := range r.fresh {
		if c := claimOf(it); c == nil || !c.delivered {
			r.todo = append(r.todo, it)
		}
	}
	if len(r.todo) > 0 {
		deliver(batch.effect, t.sink, r.todo)
	}
	t.finish(ctx, r, batch)
	for _, c := range r.copies {
		t.settleCopy(c)
	}
}

// settleCopy decides on a copy by the outcome of its first.
func (t *TwoPhase) settleCopy(c itemCopy) {
	it, first := c.item, c.first
	if first.Err != nil {
		it.Decision, it.Err = semel.Undecided, ErrBehind
		return
	}
	it.Decision, it.Result = semel.Duplicate, first.Result
	t.guard.ObserveDecision(it.Call.Key, &semel.ClaimAnswer{Decision: semel.Duplicate, Result: first.Result}, 0)
}

// decide claims the keys. It finds the fresh items in their order: those that are to
// be delivered, and those that were delivered and are to be completed. It also finds
// copies: items whose key is held for an item before them in their group. A copy has
// no effect of its own if that item has, so nothing has to wait behind it. All other
// items have their outcome.
func (t *TwoPhase) decide(ctx context.Context, items []*Item, r *room) {
	var ending []*Item
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.Delivered = semel.Undecided, semel.Result{}, nil, false
		if c := claimOf(it); c != nil && t.leases.usable(c) {
			it.Decision, it.Attempt, it.Token = semel.Fresh, c.attempt+it.Tries, c.token
			continue
		} else if c != nil {
			ending = append(ending, it)
		}
		if lost := lostRequest(it); lost != nil {
			r.claims = append(r.claims, *lost)
		} else {
			r.claims = append(r.claims, t.guard.Request(&it.Call))
		}
		r.asked = append(r.asked, it)
	}
	if len(ending) > 0 {
		t.Abandon(ctx, ending) // or they would be in flight until their leases end
	}
	if len(r.asked) > 0 {
		t.claim(ctx, r)
	}
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
			if c := claimOf(it); c != nil {
				t.leases.retain(c) // its lease must not end before its turn comes
			}
		default:
			r.fresh = append(r.fresh, it)
		}
	}
}

// claim asks the store and sets what it answered.
func (t *TwoPhase) claim(ctx context.Context, r *room) {
	items, reqs := r.asked, r.claims
	r.answers = zeroed(r.answers, len(reqs))
	answers := r.answers
	start := time.Now()
	err := t.store.Claim(ctx, reqs, answers)
	lost := semel.Classify(err) == semel.ClassUnknown && ctx.Err() == nil && slices.ContainsFunc(answers, unanswered)
	if lost {
		clear(answers)
		err = t.store.Claim(ctx, reqs, answers) // the store knows its own claims by their owner
	}
	elapsed := time.Since(start)
	validUntil := start.Add(t.opts.Guard.Lease)
	passed := 0
	t.guard.ObserveDecisions(reqs, answers, elapsed)
	for i, it := range items {
		a := &answers[i]
		before := lost || lostRequest(it) != nil
		it.Decision, it.Held = a.Decision, nil
		switch {
		case a.Decision == semel.Fresh:
			c := r.hold(len(items))
			*c = heldClaim{key: it.Call.Key, token: a.Claim.Token, attempt: a.Claim.Attempt, validUntil: validUntil}
			it.Held = c
			it.Token = a.Claim.Token
			it.Attempt = a.Claim.Attempt + it.Tries
		case a.Decision == semel.Undecided:
			// Only what is said of this key alone can be the message's fault.
			refused := a.Err != nil && semel.Classify(a.Err) == semel.ClassPermanent
			if a.Err == nil {
				a.Err = err
			}
			if a.Err == nil {
				a.Err = fmt.Errorf("the store did not decide: %w", semel.ErrOutcomeUnknown)
			}
			if before && !refused {
				// A refusal does not undo what was granted when an answer was lost.
				a.Err = fmt.Errorf("asked again after a lost answer: %w: %w", semel.ErrOutcomeUnknown, a.Err)
			}
			t.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: it.Call.Key, Err: a.Err})
			it.Err = &StoreError{fmt.Errorf("claim %s: %w", it.Call.Key, a.Err)}
			if refused {
				it.Err = semel.Permanent(it.Err)
				continue
			}
			if semel.Classify(a.Err) == semel.ClassUnknown {
				again := reqs[i]
				it.Held = &again // the store may have granted it, and will know it again
			}
			if (t.opts.Pass || t.opts.Observe) && ctx.Err() == nil {
				it.Err, it.Decision, it.Attempt = nil, semel.Fresh, it.Tries+1
				passed++
			}
		default:
			out, err := t.guard.Settle(ctx, &it.Call, a)
			it.Result, it.Err = out.Result, err
			if a.Decision == semel.Duplicate {
				it.Err = nil // a failure that was recorded is an outcome too
			}
			if t.opts.Observe {
				it.Err, it.Attempt = nil, it.Tries+1
				r.observe(it, a.Decision)
				it.Decision = semel.Fresh
			}
		}
	}
	if passed > 0 && t.opts.Observer != nil {
		t.opts.Observer.ObservePipeline(Event{Kind: EventFailedOpen, Count: passed, Err: err})
	}
}

func unanswered(a semel.ClaimAnswer) bool { return a.Decision == semel.Undecided && a.Err == nil }

// finish completes what was delivered, and keeps or gives up the other claims.
func (t *TwoPhase) finish(ctx context.Context, r *room, batch *leaseBatch) {
	lost := errors.Is(context.Cause(batch.effect), semel.ErrLeaseLost)
	t.leases.end(batch)
	for _, it := range r.fresh {
		c := claimOf(it)
		if c == nil { // delivered without a claim
			if decision, observed := r.observed[it]; observed && it.Err == nil {
				it.Decision, it.Delivered = decision, true
			}
			if it.Err == nil {
				it.Held = nil // a request whose answer was lost is not asked again
			}
			continue
		}
		if it.Err == nil {
			if !c.delivered {
				c.deliver(it.Result)
			}
			r.completions = append(r.completions, semel.CompleteRequest{Key: it.Call.Key, Token: it.Token, Result: c.outcome(), Window: t.window(it)})
			r.done = append(r.done, it)
			continue
		}
		c.doubt = c.doubt || inDoubt(it.Err)
		if lost {
			it.Err = fmt.Errorf("%w: %w", semel.ErrLeaseLost, it.Err)
		}
	}
	if len(r.done) > 0 {
		t.complete(ctx, r, batch.began)
	}
	t.holdBack(ctx, r.fresh)
}

func (t *TwoPhase) window(it *Item) time.Duration {
	if it.Call.Window > 0 {
		return it.Call.Window
	}
	return t.opts.Guard.Window
}

// complete records that effects are done. It is tried again, which is safe, for
// as long as a lease: the caller's context may have ended by then.
func (t *TwoPhase) complete(ctx context.Context, r *room, began time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.Guard.Lease)
	defer cancel()
	items, reqs := r.done, r.completions
	r.errs = zeroed(r.errs, len(reqs))
	answers := r.errs
	err := t.store.Complete(ctx, reqs, answers)
	for pause := time.Millisecond; err != nil && again(err); pause = min(2*pause, time.Second) {
		t.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: reqs[0].Key, Err: err})
		if sleep(ctx, pause) != nil {
			break
		}
		clear(answers)
		err = t.store.Complete(ctx, reqs, answers)
	}
	elapsed := time.Since(began)
	for i, it := range items {
		e := answers[i]
		if e == nil {
			e = err
		}
		if errors.Is(e, semel.ErrResultTooLarge) {
			reqs[i].Result = semel.Result{Kind: semel.NotKept}
			var answer [1]error
			if e = t.store.Complete(ctx, reqs[i:i+1], answer[:]); e == nil {
				e = answer[0]
			}
		}
		answers[i] = e
		switch {
		case e == nil:
			it.Result = claimOf(it).outcome()
			it.Held = nil
		case errors.Is(e, semel.ErrStaleToken):
			t.guard.Observe(semel.Event{Kind: semel.EventCompletionRefused, Key: it.Call.Key, Err: e})
			it.Err = fmt.Errorf("%s: the effect ran, but %w: %w", it.Call.Key, semel.ErrLeaseLost, e)
			it.Held = nil
		default:
			t.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: it.Call.Key, Err: e})
			it.Err = &StoreError{fmt.Errorf("%s: the effect ran, but its completion is not recorded: %w: %w", it.Call.Key, semel.ErrOutcomeUnknown, e)}
		}
	}
	t.guard.ObserveCompletions(reqs, answers, elapsed)
}

// holdBack keeps the claims of what failed for the next try. Where the effect
// may have happened and such keys are held, the key becomes unknown.
func (t *TwoPhase) holdBack(ctx context.Context, items []*Item) {
	var unknown []*Item
	for _, it := range items {
		switch c := claimOf(it); {
		case c == nil:
		case c.doubt && !c.delivered && t.opts.Guard.OnLeaseExpired == semel.Hold:
			unknown = append(unknown, it)
		default:
			t.leases.retain(c)
		}
	}
	if len(unknown) == 0 {
		return
	}
	t.Abandon(ctx, unknown)
	for _, it := range unknown {
		it.Decision = semel.InDoubt
		it.Err = fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, it.Err)
	}
}

// Abandon implements Session. Where earlier attempts may have had their effect
// the record stays and only its lease ends, so that the next attempt has a
// higher number as long as the store knows the record.
func (t *TwoPhase) Abandon(ctx context.Context, items []*Item) {
	wait := t.opts.Guard.Lease // then they end by themselves
	if end, limited := ctx.Deadline(); limited {
		wait = min(wait, time.Until(end))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), wait)
	defer cancel()
	t.findLost(ctx, items)
	var releases []semel.ReleaseRequest
	var ends []semel.ExtendRequest
	for _, it := range items {
		c := claimOf(it)
		if c == nil {
			continue
		}
		t.leases.forget(c)
		it.Held = nil
		unknown := (c.doubt || c.delivered) && t.opts.Guard.OnLeaseExpired == semel.Hold
		if (c.doubt || c.delivered || c.attempt > 1) && !unknown {
			ends = append(ends, semel.ExtendRequest{Key: c.key, Token: c.token, Lease: time.Millisecond})
		} else {
			releases = append(releases, semel.ReleaseRequest{Key: c.key, Token: c.token, Unknown: unknown})
		}
		t.guard.Observe(semel.Event{Kind: semel.EventReleased, Key: c.key, Attempt: it.Attempt, Err: it.Err})
	}
	if len(releases) > 0 {
		answers := make([]error, len(releases))
		err := t.store.Release(ctx, releases, answers)
		for i, r := range releases {
			t.observeError(r.Key, errors.Join(err, answers[i]))
		}
	}
	if len(ends) > 0 {
		answers := make([]semel.ExtendAnswer, len(ends))
		err := t.store.Extend(ctx, ends, answers)
		for i, r := range ends {
			t.observeError(r.Key, errors.Join(err, answers[i].Err))
		}
	}
}

// findLost asks once more for claims whose answers were lost, and that no caller
// will ask for again.
func (t *TwoPhase) findLost(ctx context.Context, items []*Item) {
	var reqs []semel.ClaimRequest
	var of []*Item
	for _, it := range items {
		if lost := lostRequest(it); lost != nil {
			reqs, of = append(reqs, *lost), append(of, it)
			it.Held = nil
		}
	}
	if len(reqs) == 0 {
		return
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	t.observeError(reqs[0].Key, t.store.Claim(ctx, reqs, answers))
	for i, it := range of {
		if answers[i].Decision == semel.Fresh {
			it.Held = &heldClaim{key: it.Call.Key, token: answers[i].Claim.Token, attempt: answers[i].Claim.Attempt}
		}
	}
}

func (t *TwoPhase) observeError(key semel.Key, err error) {
	if err != nil {
		t.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: key, Err: err})
	}
}

// inDoubt says of a delivery's error whether the effect may have happened.
func inDoubt(err error) bool {
	for _, doubt := range []error{semel.ErrOutcomeUnknown, semel.ErrLeaseLost, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, doubt) {
			return true
		}
	}
	return false
}

// again says whether the same call of the store may succeed now.
func again(err error) bool {
	c := semel.Classify(err)
	return (c == semel.ClassRetryable || c == semel.ClassUnknown) && !errors.Is(err, semel.ErrStoreFailed)
}

// sleep waits for d or the end of ctx, whose cause it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// room is the memory that one Process needs for its items. It is used again, so that a
// batch leaves less behind it.
type room struct {
	held        []heldClaim // of the claims that are granted
	asked       []*Item     // those in claims
	claims      []semel.ClaimRequest
	answers     []semel.ClaimAnswer
	fresh, todo []*Item
	copies      []itemCopy
	observed    map[*Item]semel.Decision // of items that are delivered all the same; nil if there is none
	done        []*Item                  // those in completions
	completions []semel.CompleteRequest
	errs        []error
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

func (l *rooms) take() *room {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return &room{}
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

// hold returns room for one more claim, out of at most limit. Its address lasts,
// because items have it.
func (r *room) hold(limit int) *heldClaim {
	if cap(r.held) < limit {
		r.held = make([]heldClaim, 0, limit)
	}
	r.held = r.held[:len(r.held)+1]
	return &r.held[len(r.held)-1]
}

// clear keeps nothing but the room: what waits must hold nothing.
func (r *room) clear() {
	clear(r.held)
	clear(r.asked)
	clear(r.claims)
	clear(r.answers)
	clear(r.fresh)
	clear(r.todo)
	clear(r.copies)
	clear(r.observed)
	clear(r.done)
	clear(r.completions)
	clear(r.errs)
	*r = room{
		held: r.held[:0], asked: r.asked[:0], claims: r.claims[:0], answers: r.answers[:0], fresh: r.fresh[:0], todo: r.todo[:0],
		copies: r.copies[:0], observed: r.observed, done: r.done[:0], completions: r.completions[:0], errs: r.errs[:0],
	}
}

// zeroed returns a slice of n zero values, in the room of one that is clear.
func zeroed[T any](room []T, n int) []T { return slices.Grow(room[:0], n)[:n] }
