package oncecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
)

// linger is how long a store stays open after its last use, if only one process can have it
// open. A short command then finds it open at its end.
const linger = 50 * time.Millisecond

// callStore is the store of one call. If only one process can have the store open, it is open
// for the moments of claim, renewal and completion, and a call waits for the moments of others.
// The claims of such a store outlive its process, so they last between two moments.
type callStore struct {
	open      func(ctx context.Context) (semel.Store, io.Closer, error)
	momentary bool
	patience  time.Duration // for the moments of other processes

	mu     sync.Mutex // guards the fields below
	store  semel.Store
	closer io.Closer
	idle   *time.Timer // closes the store
	closed error       // the error of closing it
	traits semel.Traits
	answer semel.ClaimAnswer // the last one
	failed error             // why the claim may not have been given back
	over   bool              // the store is no longer in use

	// held is set while the store has the claim of this call, or may have granted it.
	held atomic.Bool
}

var _ semel.Store = (*callStore)(nil)

// begin opens the store for the first time.
func (s *callStore) begin(ctx context.Context) error {
	return s.use(ctx, func(store semel.Store) error {
		s.traits = store.Traits()
		return nil
	})
}

// use calls a function with the open store. If another process has it, use asks again until it
// is free, for as long as the patience.
func (s *callStore) use(ctx context.Context, call func(semel.Store) error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return semel.ErrClosed
	}
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.store == nil {
		if err := s.reopen(ctx); err != nil {
			return err
		}
	}
	err := call(s.store)
	if !s.momentary {
		return err
	}
	s.idle = time.AfterFunc(linger, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.shut()
	})
	return err
}

func (s *callStore) reopen(ctx context.Context) (err error) {
	var holder string
	end := time.Now().Add(s.patience)
	waited := retry.Poll(ctx, end, func() (settled bool) {
		s.store, s.closer, err = s.open(ctx)
		h, held := diagnose.Holder(err)
		holder = h
		return !held
	})
	switch {
	case waited != nil:
		return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, waited)
	case holder != "":
		return fmt.Errorf("the store is in use by %s, and did not become free in %s: run this command again when that process has ended: %w",
			holder, term.FormatElapsed(s.patience), semel.ErrStoreUnavailable)
	}
	return err
}

// shut closes the store. The caller holds the lock.
func (s *callStore) shut() {
	if s.store != nil {
		s.closed = errors.Join(s.closed, s.closer.Close())
		s.store, s.closer = nil, nil
	}
}

// Close closes the store, and returns the error of that or of an earlier moment.
func (s *callStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.idle != nil {
		s.idle.Stop()
	}
	s.over = true
	s.shut()
	return s.closed
}

// Traits implements semel.Store.
func (s *callStore) Traits() semel.Traits {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.traits
}

// Claim implements semel.Store. A claim that was not granted has no use for an open store, which
// its holder may be waiting for.
func (s *callStore) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	return s.use(ctx, func(store semel.Store) error {
		before := s.held.Swap(true)
		err := store.Claim(ctx, reqs, answers)
		s.answer = answers[0]
		switch {
		case s.answer.Decision == semel.Fresh:
			return err
		case s.answer.Decision != semel.Undecided:
			s.held.Store(false)
		case semel.Classify(cmp.Or(s.answer.Err, err, semel.ErrOutcomeUnknown)) != semel.ClassUnknown:
			s.held.Store(before) // this question changed nothing
		}
		if s.momentary {
			s.shut()
		}
		return err
	})
}

// Complete implements semel.Store.
func (s *callStore) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return s.use(ctx, func(store semel.Store) error { return store.Complete(ctx, reqs, answers) })
}

// settleTime is how long a call that ran nothing waits for the answers about its claim.
const settleTime = 5 * time.Second

// settle waits until the store has no claim of this call.
func (s *callStore) settle(ctx context.Context) {
	_ = retry.Poll(ctx, time.Now().Add(settleTime), func() bool { return !s.held.Load() }) // last says how it ended
}

// Release implements semel.Store. It asks again until ctx ends, because no process could do so
// after the call: a claim that is left behind looks like that of a dead holder.
func (s *callStore) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) (err error) {
	waited := retry.Poll(ctx, time.Now().Add(s.patience), func() bool {
		clear(answers)
		err = s.use(ctx, func(store semel.Store) error { return store.Release(ctx, reqs, answers) })
		if err == nil {
			err = answers[0]
		}
		return err == nil || semel.Classify(err) == semel.ClassPermanent
	})
	err = errors.Join(err, waited)
	s.mu.Lock()
	if s.failed = err; err == nil || semel.Classify(err) == semel.ClassPermanent {
		s.held.Store(false)
	}
	s.mu.Unlock()
	if answers[0] != nil {
		return nil // it is the answer
	}
	return err
}

var errUnsettled = errors.New("the store does not answer")

// Extend implements semel.Store. A lease of a millisecond gives back the claim of a second attempt.
func (s *callStore) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return s.use(ctx, func(store semel.Store) error {
		err := store.Extend(ctx, reqs, answers)
		s.held.Store(err != nil || answers[0].Err != nil || reqs[0].Lease > time.Millisecond)
		return err
	})
}

// last returns the last answer to a claim, and why the claim may not have been given back.
func (s *callStore) last() (semel.ClaimAnswer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed == nil && s.held.Load() {
		return s.answer, errUnsettled
	}
	return s.answer, s.failed
}
