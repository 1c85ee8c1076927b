package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/tiered"
)

// fault is the fault of a call.
type fault int

const (
	healthy fault = iota
	refuses       // nothing is changed
	mute          // the change is made, but the answer is lost
	hangs         // nothing is changed, and the call ends with its context
)

var errFault = errors.New("a fault of the test")

// faulty is a layer with faults. It counts the calls with an answer and the failed calls.
type faulty struct {
	*memstore.Store
	shared bool // reports itself as shared, like a server

	mu     sync.Mutex // guards all fields below
	fault  func(verb string) fault
	calls  map[string]int
	faults int
	// before runs before each call, without mu.
	before func(verb string)
}

func newFaulty(store *memstore.Store) *faulty {
	return &faulty{Store: store, calls: make(map[string]int), fault: func(string) fault { return healthy }}
}

// is sets the fault of all calls.
func (f *faulty) is(next fault) { f.setFaults(func(string) fault { return next }) }

func (f *faulty) setFaults(next func(verb string) fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = next
}

func (f *faulty) count(verb string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls[verb]
}

func (f *faulty) met() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faults
}

func (f *faulty) call(ctx context.Context, verb string, made func(lost bool) error) error {
	f.mu.Lock()
	next, before := f.fault(verb), f.before
	f.calls[verb]++
	if next != healthy {
		f.faults++
	}
	f.mu.Unlock()
	if before != nil {
		before(verb)
	}
	switch next {
	case refuses:
		return fmt.Errorf("%w: %w", errFault, semel.ErrStoreUnavailable)
	case mute:
		_ = made(true)
		return fmt.Errorf("%w: %w", errFault, semel.ErrOutcomeUnknown)
	case hangs:
		<-ctx.Done()
		return fmt.Errorf("%w: %w", errFault, ctx.Err())
	}
	return made(false)
}

// room returns the destination of the answers. Lost answers go elsewhere.
func room[A any](lost bool, answers []A) []A {
	if lost {
		return make([]A, len(answers))
	}
	return answers
}

func (f *faulty) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	return f.call(ctx, "claim", func(lost bool) error { return f.Store.Claim(ctx, reqs, room(lost, answers)) })
}

func (f *faulty) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return f.call(ctx, "complete", func(lost bool) error { return f.Store.Complete(ctx, reqs, room(lost, answers)) })
}

func (f *faulty) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return f.call(ctx, "release", func(lost bool) error { return f.Store.Release(ctx, reqs, room(lost, answers)) })
}

func (f *faulty) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return f.call(ctx, "extend", func(lost bool) error { return f.Store.Extend(ctx, reqs, room(lost, answers)) })
}

func (f *faulty) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return f.call(ctx, "look", func(lost bool) error { return f.Store.Look(ctx, keys, room(lost, records)) })
}

func (f *faulty) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	return f.call(ctx, "resolve", func(bool) error { return f.Store.Resolve(ctx, req) })
}

func (f *faulty) Remove(ctx context.Context, key semel.Key) (was bool, err error) {
	err = f.call(ctx, "remove", func(lost bool) error {
		removed, err := f.Store.Remove(ctx, key)
		was = removed && !lost
		return err
	})
	return was, err
}

func (f *faulty) Purge(ctx context.Context) (n int64, err error) {
	err = f.call(ctx, "purge", func(bool) error {
		var err error
		n, err = f.Store.Purge(ctx)
		return err
	})
	return n, err
}

func (f *faulty) Traits() semel.Traits {
	t := f.Store.Traits()
	t.Shared = f.shared
	return t
}

// faultyFilter is a filter with the faults of a faulty.
type faultyFilter struct {
	*tiered.MemoryFilter
	faults *faulty
}

func (f *faultyFilter) MayContain(ctx context.Context, keys []semel.Key, maybe []bool) error {
	return f.faults.call(ctx, "may contain", func(lost bool) error { return f.MemoryFilter.MayContain(ctx, keys, room(lost, maybe)) })
}

func (f *faultyFilter) Add(ctx context.Context, keys []semel.Key) error {
	return f.faults.call(ctx, "add", func(bool) error { return f.MemoryFilter.Add(ctx, keys) })
}
