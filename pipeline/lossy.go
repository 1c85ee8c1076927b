package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// LossyOptions are the options of NewLossy. The zero value is valid.
type LossyOptions struct {
	// Pass delivers undecided what comes while the filter does not answer: an
	// effect may repeat. By default nothing is delivered then.
	Pass bool
	// Observe decides and counts, and delivers every message whatever the
	// decision is, also while the filter does not answer.
	Observe bool
	// Observer receives decisions, and failures to remember a key.
	// Defaults to none.
	Observer Observer
}

// MaybeReason is the reason of a decision that rests on a filter alone.
const MaybeReason = "maybe completed before"

// Lossy is the session of a filter that decides alone, and any sink. It drops
// new messages at the filter's rate: they are lost. What the filter calls new is
// delivered and then added, so that a crash between the two repeats an effect and
// loses nothing. The filter knows no claims: of two processes that are given the
// same key concurrently, both deliver it.
type Lossy struct {
	filter semel.KeyFilter
	sink   Sink
	opts   LossyOptions

	mu   sync.Mutex // guards busy
	busy map[semel.Key]*Item
}

// NewLossy returns a session. The sink is closed by Close, the filter is not. It
// panics if one of them is nil.
func NewLossy(filter semel.KeyFilter, sink Sink, opts *LossyOptions) *Lossy {
	if err := missing("NewLossy", argument{"filter", filter == nil}, argument{"sink", sink == nil}); err != nil {
		panic(err)
	}
	l := &Lossy{filter: filter, sink: sink, busy: map[semel.Key]*Item{}}
	if opts != nil {
		l.opts = *opts
	}
	return l
}

// Traits implements Session.
func (l *Lossy) Traits() SinkTraits { return l.sink.Traits() }

// Close implements Session.
func (l *Lossy) Close(ctx context.Context) error { return l.sink.Close(ctx) }

// Abandon implements Session: nothing is held between two calls of Process.
func (l *Lossy) Abandon(context.Context, []*Item) {}

// Ready implements semel.Readier: it asks sink and filter.
func (l *Lossy) Ready(ctx context.Context) error {
	if ready, ok := l.sink.(semel.Readier); ok {
		if err := ready.Ready(ctx); err != nil {
			return fmt.Errorf("sink: %w", err)
		}
	}
	if err := l.filter.MayContain(ctx, []semel.Key{{Scope: "semel", ID: "ready"}}, make([]bool, 1)); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// Process implements Session.
func (l *Lossy) Process(ctx context.Context, items []*Item) {
	began := time.Now()
	first, behind := l.take(items)
	defer l.let(first)
	observed := l.decide(ctx, first)
	todo := make([]*Item, 0, len(first))
	group, blocked := uint64(0), false // the items of a group stand together
	for _, it := range items {
		if it.Group != group {
			group, blocked = it.Group, false
		}
		switch {
		case behind[it] != nil:
			// Of another group it may still have to be delivered.
			blocked = blocked || behind[it].Group != it.Group
		case it.Err != nil:
			blocked = true
		case it.Decision != semel.Fresh: // settled
		case blocked:
			it.Err = ErrBehind
		default:
			todo = append(todo, it)
		}
	}
	if len(todo) > 0 {
		deliver(ctx, l.sink, todo)
		l.remember(ctx, todo, observed, began)
	}
	for it, of := range behind {
		l.follow(it, of)
	}
}

// take takes the keys of items and returns those whose key it got, and which of
// the others stand behind one of them. What another call has is in flight.
func (l *Lossy) take(items []*Item) (first []*Item, behind map[*Item]*Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := map[*Item]bool{}
	for _, it := range items {
		it.Decision, it.Result, it.Err, it.Delivered = semel.Undecided, semel.Result{}, nil, false
		switch holder := l.busy[it.Call.Key]; {
		case holder == nil:
			l.busy[it.Call.Key], mine[it] = it, true
			first = append(first, it)
		case mine[holder]:
			if behind == nil {
				behind = map[*Item]*Item{}
			}
			behind[it] = holder
		default:
			it.Decision, it.Err = semel.InFlight, &semel.InFlightError{Key: it.Call.Key, Holder: "another message of this process", LeaseEnd: time.Now().Add(time.Second)}
		}
	}
	return first, behind
}

func (l *Lossy) let(items []*Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		delete(l.busy, it.Call.Key)
	}
}

// decide asks the filter. It returns the duplicates that are delivered all the same.
func (l *Lossy) decide(ctx context.Context, items []*Item) (observed map[*Item]bool) {
	keys := make([]semel.Key, len(items))
	for i, it := range items {
		keys[i] = it.Call.Key
	}
	maybe := make([]bool, len(keys))
	start := time.Now()
	err := l.filter.MayContain(ctx, keys, maybe)
	elapsed := time.Since(start)
	pass := err != nil && (l.opts.Pass || l.opts.Observe) && ctx.Err() == nil
	for i, it := range items {
		reason := ""
		switch {
		case err != nil:
			l.observe(semel.Event{Kind: semel.EventStoreError, Key: it.Call.Key, Err: err})
			it.Err = &StoreError{fmt.Errorf("ask for %s: %w", it.Call.Key, err)}
			l.observe(semel.Event{Kind: semel.EventDecided, Key: it.Call.Key, Decision: it.Decision, Elapsed: elapsed})
			if pass {
				it.Err, it.Decision, it.Attempt = nil, semel.Fresh, it.Tries+1
			}
			continue
		case maybe[i]:
			it.Decision, reason = semel.Duplicate, MaybeReason
		default:
			it.Decision, it.Attempt = semel.Fresh, it.Tries+1
		}
		l.observe(semel.Event{Kind: semel.EventDecided, Key: it.Call.Key, Decision: it.Decision, Reason: reason, Attempt: it.Attempt, Elapsed: elapsed})
		if l.opts.Observe && it.Decision == semel.Duplicate {
			if observed == nil {
				observed = map[*Item]bool{}
			}
			observed[it] = true
			it.Decision, it.Attempt = semel.Fresh, it.Tries+1
		}
	}
	if pass {
		l.failedOpen(len(items), err)
	}
	return observed
}

// addWithin bounds the adding of what was delivered, also when the pipeline ends.
const addWithin = 10 * time.Second

// remember adds the keys of what was delivered. A message whose key cannot be added
// is settled all the same: if it comes again, it has its effect again.
func (l *Lossy) remember(ctx context.Context, items []*Item, observed map[*Item]bool, began time.Time) {
	var keys []semel.Key
	for _, it := range items {
		if it.Err != nil {
			continue
		}
		if observed[it] {
			it.Decision, it.Delivered = semel.Duplicate, true
			continue
		}
		keys = append(keys, it.Call.Key)
	}
	if len(keys) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addWithin)
	defer cancel()
	if err := l.filter.Add(ctx, keys); err != nil {
		l.observe(semel.Event{Kind: semel.EventStoreError, Key: keys[0], Err: err})
		l.failedOpen(len(keys), fmt.Errorf("delivered, and not remembered: %w", err))
	}
	elapsed := time.Since(began)
	for _, key := range keys {
		l.observe(semel.Event{Kind: semel.EventCompleted, Key: key, Elapsed: elapsed})
	}
}

// follow settles an item whose key another one of the same batch had.
func (l *Lossy) follow(it, of *Item) {
	if of.Err != nil {
		it.Err = ErrBehind
		return
	}
	it.Decision = semel.Duplicate
	if l.opts.Observe {
		it.Decision, it.Err = semel.Undecided, ErrBehind // it is delivered in its turn
		return
	}
	l.observe(semel.Event{Kind: semel.EventDecided, Key: it.Call.Key, Decision: it.Decision})
}

func (l *Lossy) observe(e semel.Event) {
	if l.opts.Observer != nil {
		l.opts.Observer.Observe(e)
	}
}

func (l *Lossy) failedOpen(n int, err error) {
	if l.opts.Observer != nil {
		l.opts.Observer.ObservePipeline(Event{Kind: EventFailedOpen, Count: n, Err: err})
	}
}
