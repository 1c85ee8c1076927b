package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/filter"
	"github.com/semel-dev/semel/internal/eventreason"
)

// LossyOptions are the options of NewLossy. The zero value is valid.
type LossyOptions struct {
	// FilterMap filters and changes the messages that are delivered. Defaults to none.
	FilterMap FilterMap
	// Pass delivers messages without a decision while the filter does not answer. An
	// effect may then repeat. By default no message is delivered.
	Pass bool
	// Observe decides and counts, but delivers every message, even if it is a
	// duplicate or the filter does not answer.
	Observe bool
	// Observer receives decisions, and errors of the filter. Defaults to none.
	Observer Observer
}

// lossy is the session of NewLossy.
type lossy struct {
	filter filter.KeyFilter
	sink   Sink
	opts   LossyOptions

	mu   sync.Mutex          // guards busy
	busy map[semel.Key]*Item // the keys that are being processed
}

// NewLossy returns a session. Close closes the sink and not the filter. NewLossy panics
// if one of them is nil.
func NewLossy(filter filter.KeyFilter, sink Sink, opts *LossyOptions) *lossy {
	if err := missing("NewLossy", argument{"filter", filter == nil}, argument{"sink", sink == nil}); err != nil {
		panic(err)
	}
	l := &lossy{filter: filter, sink: sink, busy: map[semel.Key]*Item{}}
	if opts != nil {
		l.opts = *opts
	}
	return l
}

// Traits implements Session.
func (l *lossy) Traits() SinkTraits { return l.sink.Traits() }

// Close implements Session.
func (l *lossy) Close(ctx context.Context) error { return l.sink.Close(ctx) }

// Abandon implements Session: nothing is held between two calls of Process.
func (l *lossy) Abandon(context.Context, []*Item) {}

// BindScope implements Session: a filter binds no scopes.
func (l *lossy) BindScope(context.Context, string, semel.ScopeOwner) error { return nil }

// Ready implements doctor.Readier. It asks sink and filter.
func (l *lossy) Ready(ctx context.Context) error {
	if err := sinkReady(ctx, l.sink); err != nil {
		return err
	}
	if err := l.filter.MayContain(ctx, []semel.Key{{Scope: "semel", ID: "ready"}}, make([]bool, 1)); err != nil {
		return &StoreError{fmt.Errorf("store: %w", err)}
	}
	return nil
}

// Process implements Session.
func (l *lossy) Process(ctx context.Context, items []*Item) {
	first, behind := l.take(items)
	defer l.release(first)
	observed := l.decide(ctx, first)
	todo := make([]*Item, 0, len(first))
	group, blocked := uint64(0), false // the items of a group stand together
	for _, it := range items {
		if it.Group != group {
			group, blocked = it.Group, false
		}
		switch {
		case behind[it] != nil:
			// The first item with this key may fail. If it is of another group, the
			// items behind this one must wait for its outcome.
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
		began := time.Now()
		deliver(ctx, l.sink, l.opts.FilterMap, todo)
		l.remember(ctx, todo, observed, time.Since(began))
	}
	for it, first := range behind {
		l.settleCopy(it, first)
	}
}

// take takes the keys of items. It returns the first item of each key, and maps the
// other items with that key to it. A key that another call has is in flight.
func (l *lossy) take(items []*Item) (first []*Item, behind map[*Item]*Item) {
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

func (l *lossy) release(items []*Item) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, it := range items {
		delete(l.busy, it.Call.Key)
	}
}

// decide asks the filter. It returns the duplicates that are delivered nevertheless,
// because the session only observes.
func (l *lossy) decide(ctx context.Context, items []*Item) (observed map[*Item]bool) {
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
			it.Decision, reason = semel.Duplicate, eventreason.Maybe
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

// addTimeout limits the adding of keys, even after the pipeline's context has ended.
const addTimeout = 10 * time.Second

// remember adds the keys of delivered messages to the filter. A message whose key cannot
// be added is settled too. If it comes again, its effect repeats. The delivery took so long.
func (l *lossy) remember(ctx context.Context, items []*Item, observed map[*Item]bool, took time.Duration) {
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
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), addTimeout)
	defer cancel()
	if err := l.filter.Add(ctx, keys); err != nil {
		l.observe(semel.Event{Kind: semel.EventStoreError, Key: keys[0], Err: err})
		l.failedOpen(len(keys), fmt.Errorf("the messages were delivered, but the filter did not add their keys: %w", err))
	}
	for _, key := range keys {
		l.observe(semel.Event{Kind: semel.EventCompleted, Key: key, Elapsed: took})
	}
}

// settleCopy settles an item by the outcome of the first item with its key.
func (l *lossy) settleCopy(it, first *Item) {
	if first.Err != nil {
		it.Err = ErrBehind
		return
	}
	it.Decision = semel.Duplicate
	if l.opts.Observe {
		it.Decision, it.Err = semel.Undecided, ErrBehind // it is delivered in the next batch
		return
	}
	l.observe(semel.Event{Kind: semel.EventDecided, Key: it.Call.Key, Decision: it.Decision})
}

func (l *lossy) observe(e semel.Event) {
	if l.opts.Observer != nil {
		l.opts.Observer.Observe(e)
	}
}

func (l *lossy) failedOpen(n int, err error) {
	if l.opts.Observer != nil {
		l.opts.Observer.ObservePipeline(Event{Kind: EventFailedOpen, Count: n, Err: err})
	}
}
