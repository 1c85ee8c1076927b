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
	// Observer is told of what Pass let through. Defaults to none.
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
	keeper
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
	t.keeper.init(guard, t.store, g.Lease, g.Heartbeat)
	return t, nil
}

// Traits implements Session.
func (t *TwoPhase) Traits() SinkTraits { return t.sink.Traits() }

// Close implements Session.
func (t *TwoPhase) Close(ctx context.Context) error {
	t.keeper.stop()
	return t.sink.Close(ctx)
}

// Ready implements Readier: it asks the sink where it can tell, and the store
// unless messages pass without it.
func (t *TwoPhase) Ready(ctx context.Context) error {
	if ready, ok := t.sink.(Readier); ok {
		if err := ready.Ready(ctx); err != nil {
			return fmt.Errorf("sink: %w", err)
		}
	}
	if ready, ok := semel.Ability[Readier](t.store); ok && !t.opts.Pass && !t.opts.Observe {
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
	if slices.ContainsFunc(r.asked, func(it *Item) bool { return it.hold != nil }) || t.asking() {
		r.holds = nil // somebody may look at one
	}
	t.rooms.put(r)
}

func (t *TwoPhase) process(ctx context.Context, items []*Item, r *room, began time.Time) {
	t.decide(ctx, items, r)
	if len(r.fresh) == 0 {
		return
	}
	batch := t.keep(ctx, r.fresh, began)
	for _, it := range r.fresh {
		if it.hold == nil || !it.hold.delivered {
			r.todo = append(r.todo, it)
		}
	}
	if len(r.todo) > 0 {
		deliver(batch.effect, t.sink, r.todo)
	}
	t.finish(ctx, r, batch)
	for _, it := range r.twins {
		t.follow(it)
	}
}

// follow decides on an item by the one before it that has its key.
func (t *TwoPhase) follow(it *Item) {
	first := it.twin
	it.twin = nil
	if first.Err != nil {
		it.Decision, it.Err = semel.Undecided, ErrBehind
		return
	}
	it.Decision, it.Result = semel.Duplicate, first.Result
	t.guard.ObserveDecision(it.Call.Key, &semel.ClaimAnswer{Decision: semel.Duplicate, Result: first.Result}, 0)
}

// decide claims the keys and finds the fresh items, which are to be delivered, or
// were and are to be completed, in their order; and twins, whose keys are held for
// one of those before them in their group: they have no effect of their own if
// that one has, so nothing has to wait behind them. What is among neither has its
// outcome.
func (t *TwoPhase) decide(ctx context.Context, items []*Item, r *room) {
	var ending []*Item
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.observed = semel.Undecided, semel.Result{}, nil, semel.Undecided
		if it.hold != nil && t.held(it) {
			it.Decision = semel.Fresh
			continue
		}
		if it.hold != nil {
			ending = append(ending, it)
		}
		if it.asked != nil {
			r.claims = append(r.claims, *it.asked)
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
		if it.group != group {
			group, blocked = it.group, false
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
				it.twin, it.Err = first, nil
				r.twins = append(r.twins, it)
			} else {
				blocked = true
			}
		case it.Err != nil:
			blocked = true
		case it.Decision != semel.Fresh: // settled
		case blocked:
			it.Err = ErrBehind
			if it.hold != nil && it.hold.of == nil {
				t.retain(it) // its lease must not end before its turn comes
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
	sure := start.Add(t.opts.Guard.Lease)
	passed := 0
	t.guard.ObserveDecisions(reqs, answers, elapsed)
	for i, it := range items {
		a := &answers[i]
		before := lost || it.asked != nil
		it.Decision, it.asked = a.Decision, nil
		switch {
		case a.Decision == semel.Fresh:
			it.hold = r.hold(len(items))
			*it.hold = hold{key: it.Call.Key, token: a.Claim.Token, attempt: a.Claim.Attempt, sure: sure}
			it.Token = a.Claim.Token
			it.Attempt = a.Claim.Attempt + it.tries
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
			t.guard.Observe(semel.Event{Kind: semel.StoreError, Key: it.Call.Key, Err: a.Err})
			it.Err = &StoreError{fmt.Errorf("claim %s: %w", it.Call.Key, a.Err)}
			if refused {
				it.Err = semel.Permanent(it.Err)
				continue
			}
			if semel.Classify(a.Err) == semel.ClassUnknown {
				again := reqs[i]
				it.asked = &again // the store may have granted it, and will know it again
			}
			if (t.opts.Pass || t.opts.Observe) && ctx.Err() == nil {
				it.Err, it.Decision, it.Attempt = nil, semel.Fresh, it.tries+1
				passed++
			}
		default:
			out, err := t.guard.Settle(ctx, &it.Call, a)
			it.Result, it.Err = out.Result, err
			if a.Decision == semel.Duplicate {
				it.Err = nil // a failure that was recorded is an outcome too
			}
			if t.opts.Observe {
				it.Err, it.Attempt = nil, it.tries+1
				it.observed, it.Decision = a.Decision, semel.Fresh
			}
		}
	}
	if passed > 0 && t.opts.Observer != nil {
		t.opts.Observer.ObservePipeline(Event{Kind: EventFailedOpen, Count: passed, Err: err})
	}
}

func unanswered(a semel.ClaimAnswer) bool { return a.Decision == semel.Undecided && a.Err == nil }

// finish completes what was delivered, and keeps or gives up the other claims.
func (t *TwoPhase) finish(ctx context.Context, r *room, batch *held) {
	lost := errors.Is(context.Cause(batch.effect), semel.ErrLeaseLost)
	t.unkeep(batch)
	for _, it := range r.fresh {
		if it.hold == nil { // delivered without a claim
			if it.observed != semel.Undecided && it.Err == nil {
				it.Decision = it.observed
			}
			continue
		}
		if it.Err == nil {
			if !it.hold.delivered {
				it.hold.deliver(it.Result)
			}
			r.completions = append(r.completions, semel.CompleteRequest{Key: it.Call.Key, Token: it.Token, Result: it.hold.outcome(), Window: t.window(it)})
			r.done = append(r.done, it)
			continue
		}
		it.hold.doubt = it.hold.doubt || inDoubt(it.Err)
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
// as long as a lease: the caller's context may have ended meanwhile.
func (t *TwoPhase) complete(ctx context.Context, r *room, began time.Time) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), t.opts.Guard.Lease)
	defer cancel()
	items, reqs := r.done, r.completions
	r.errs = zeroed(r.errs, len(reqs))
	answers := r.errs
	err := t.store.Complete(ctx, reqs, answers)
	for pause := time.Millisecond; err != nil && again(err); pause = min(2*pause, time.Second) {
		t.guard.Observe(semel.Event{Kind: semel.StoreError, Key: reqs[0].Key, Err: err})
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
			it.Result = it.hold.outcome()
			it.hold = nil
		case errors.Is(e, semel.ErrStaleToken):
			t.guard.Observe(semel.Event{Kind: semel.CompletionRefused, Key: it.Call.Key, Err: e})
			it.Err = fmt.Errorf("%s: the effect ran, but %w: %w", it.Call.Key, semel.ErrLeaseLost, e)
			it.hold = nil
		default:
			t.guard.Observe(semel.Event{Kind: semel.StoreError, Key: it.Call.Key, Err: e})
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
		switch {
		case it.hold == nil:
		case it.hold.doubt && !it.hold.delivered && t.opts.Guard.OnLeaseExpired == semel.Hold:
			unknown = append(unknown, it)
		default:
			t.retain(it)
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
		h := it.hold
		if h == nil {
			continue
		}
		t.let(it)
		unknown := (h.doubt || h.delivered) && t.opts.Guard.OnLeaseExpired == semel.Hold
		if (h.doubt || h.delivered || h.attempt > 1) && !unknown {
			ends = append(ends, semel.ExtendRequest{Key: h.key, Token: h.token, Lease: time.Millisecond})
		} else {
			releases = append(releases, semel.ReleaseRequest{Key: h.key, Token: h.token, Unknown: unknown})
		}
		t.guard.Observe(semel.Event{Kind: semel.Released, Key: h.key, Attempt: it.Attempt, Err: it.Err})
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

// findLost asks once more for claims whose answers were lost, and that nobody
// will ask for again.
func (t *TwoPhase) findLost(ctx context.Context, items []*Item) {
	var reqs []semel.ClaimRequest
	var of []*Item
	for _, it := range items {
		if it.asked != nil {
			reqs, of = append(reqs, *it.asked), append(of, it)
			it.asked = nil
		}
	}
	if len(reqs) == 0 {
		return
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	t.observeError(reqs[0].Key, t.store.Claim(ctx, reqs, answers))
	for i, it := range of {
		if answers[i].Decision == semel.Fresh {
			it.hold = &hold{key: it.Call.Key, token: answers[i].Claim.Token, attempt: answers[i].Claim.Attempt}
		}
	}
}

func (t *TwoPhase) observeError(key semel.Key, err error) {
	if err != nil {
		t.guard.Observe(semel.Event{Kind: semel.StoreError, Key: key, Err: err})
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

// room is what one Process needs beside its items. It is used again, so that a
// batch leaves less behind it.
type room struct {
	holds              []hold  // of the claims that are granted
	asked              []*Item // those in claims
	claims             []semel.ClaimRequest
	answers            []semel.ClaimAnswer
	fresh, twins, todo []*Item
	done               []*Item // those in completions
	completions        []semel.CompleteRequest
	errs               []error
}

// rooms lends rooms. Those that wait to be lent again are as many as were in use
// at once.
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

// hold returns room for one more hold, of at most most. Its address lasts: items
// have it.
func (r *room) hold(most int) *hold {
	if cap(r.holds) < most {
		r.holds = make([]hold, 0, most)
	}
	r.holds = r.holds[:len(r.holds)+1]
	return &r.holds[len(r.holds)-1]
}

// clear forgets all but the room: who waits must hold nothing.
func (r *room) clear() {
	clear(r.holds)
	clear(r.asked)
	clear(r.claims)
	clear(r.answers)
	clear(r.fresh)
	clear(r.twins)
	clear(r.todo)
	clear(r.done)
	clear(r.completions)
	clear(r.errs)
	*r = room{
		r.holds[:0], r.asked[:0], r.claims[:0], r.answers[:0], r.fresh[:0], r.twins[:0], r.todo[:0], r.done[:0], r.completions[:0], r.errs[:0],
	}
}

// zeroed returns a slice of n zero values, in the room of one that is clear.
func zeroed[T any](room []T, n int) []T { return slices.Grow(room[:0], n)[:n] }
