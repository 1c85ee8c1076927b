package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// hold is what a session holds for an item: its claim.
type hold struct {
	key     semel.Key
	token   semel.Token
	attempt int // of the claim
	// sure is until when the lease surely lasts. The keeper's lock guards it
	// and lost.
	sure time.Time
	lost bool
	// doubt: a delivery may have had its effect. delivered: one surely had,
	// with this result, and is to be completed.
	doubt, delivered bool
	result           *semel.Result // nil is none
	of               *held         // the batch it is kept in; the keeper's lock guards it
}

// deliver notes that the effect was had, with a result.
func (h *hold) deliver(result semel.Result) {
	h.delivered = true
	if result.Kind != semel.NoResult || result.Data != nil {
		h.result = &result
	}
}

// outcome returns the result of the effect that was had.
func (h *hold) outcome() semel.Result {
	if h.result == nil {
		return semel.Result{}
	}
	return *h.result
}

// held is a batch of claims whose leases are kept. Its effects run under a
// context that ends when one of them is lost.
type held struct {
	effect context.Context
	lose   context.CancelCauseFunc
	began  time.Time
	holds  []*hold
}

// keeper extends the leases of all claims that a session holds. One timer is
// enough for all, and what is shorter than a beat is never extended.
type keeper struct {
	guard   *semel.Guard
	store   semel.Store
	lease   time.Duration
	every   time.Duration
	beating context.Context
	endBeat context.CancelFunc

	beat sync.Mutex // held over a beat, before mu

	mu      sync.Mutex // guards the fields below
	batches map[*held]struct{}
	timer   *time.Timer
	ticking bool
	stopped bool
	asks    bool // a beat waits for the store, and will look at holds then
}

func (k *keeper) init(guard *semel.Guard, store semel.Store, lease, every time.Duration) {
	k.guard, k.store, k.lease, k.every = guard, store, lease, every
	k.beating, k.endBeat = context.WithCancel(context.Background())
	k.batches = map[*held]struct{}{}
}

// stop ends the beats. None runs when it returns, nor will one.
func (k *keeper) stop() {
	k.endBeat()
	k.beat.Lock()
	defer k.beat.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	if k.timer != nil {
		k.timer.Stop()
	}
}

// held reports whether the claim of an item surely lasts for a while, or its
// effect is there and only to be completed. If not it is to be given up.
func (k *keeper) held(it *Item) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !it.hold.delivered && (it.hold.lost || time.Until(it.hold.sure) < k.every/2) {
		return false
	}
	it.Attempt = it.hold.attempt + it.tries
	it.Token = it.hold.token
	return true
}

// keep begins to extend the claims of items that are about to be delivered.
func (k *keeper) keep(ctx context.Context, items []*Item, began time.Time) *held {
	b := &held{began: began, holds: make([]*hold, 0, len(items))}
	b.effect, b.lose = context.WithCancelCause(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, it := range items {
		if h := it.hold; h != nil {
			if h.of != nil {
				delete(k.batches, h.of)
			}
			h.of = b
			b.holds = append(b.holds, h)
		}
	}
	k.register(b)
	return b
}

// register has a batch extended from now on. Call with mu.
func (k *keeper) register(b *held) {
	if len(b.holds) == 0 {
		return
	}
	k.batches[b] = struct{}{}
	if !k.ticking && !k.stopped {
		k.ticking = true
		if k.timer == nil {
			k.timer = time.AfterFunc(k.every, k.tick)
		} else {
			k.timer.Reset(k.every)
		}
	}
}

// unkeep ends what keep began.
func (k *keeper) unkeep(b *held) {
	b.lose(nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.batches, b)
	for _, h := range b.holds {
		h.of = nil
	}
}

// retain keeps the claim of one item until its next try.
func (k *keeper) retain(it *Item) {
	k.mu.Lock()
	defer k.mu.Unlock()
	b := &held{holds: []*hold{it.hold}}
	it.hold.of = b
	k.register(b)
}

// asking reports whether a beat may look at holds that were given up or completed.
func (k *keeper) asking() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.asks
}

// let ends the keeping of an item's claim, which is given up.
func (k *keeper) let(it *Item) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if it.hold.of != nil {
		delete(k.batches, it.hold.of)
	}
	it.hold = nil
}

// tick extends all claims once.
func (k *keeper) tick() {
	k.beat.Lock()
	defer k.beat.Unlock()
	k.mu.Lock()
	var reqs []semel.ExtendRequest
	var holds []*hold
	asked := time.Now()
	wait := k.lease - k.every // and not longer than all leases last
	for b := range k.batches {
		for _, h := range b.holds {
			if !h.lost {
				reqs = append(reqs, semel.ExtendRequest{Key: h.key, Token: h.token, Lease: k.lease})
				holds = append(holds, h)
				wait = min(wait, h.sure.Sub(asked))
			}
		}
	}
	if len(reqs) == 0 {
		k.ticking = false
	}
	k.asks = len(reqs) > 0
	k.mu.Unlock()
	if len(reqs) == 0 {
		return
	}
	answers := make([]semel.ExtendAnswer, len(reqs))
	ctx, cancel := context.WithTimeout(k.beating, max(wait, k.every/4))
	err := k.store.Extend(ctx, reqs, answers)
	cancel()
	if err != nil && k.beating.Err() == nil {
		k.guard.Observe(semel.Event{Kind: semel.StoreError, Key: reqs[0].Key, Err: err})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.asks = false
	next := k.every
	if err != nil {
		next = k.every/4 + time.Millisecond
	}
	for i, h := range holds {
		switch left := time.Until(h.sure); {
		case h.of == nil: // completed or given up meanwhile
		case answers[i].Err != nil:
			k.lose(h, answers[i].Err)
		case err == nil || !answers[i].LeaseEnd.IsZero():
			h.sure = asked.Add(k.lease)
		case left <= 0:
			k.lose(h, err)
		default:
			next = min(next, left)
		}
	}
	if k.stopped || k.beating.Err() != nil {
		return
	}
	k.timer.Reset(next)
}

// lose ends the effects of the batch that a lost claim is in. Call with mu.
func (k *keeper) lose(h *hold, err error) {
	h.lost = true
	k.guard.Observe(semel.Event{Kind: semel.LeaseLost, Key: h.key, Err: err})
	if h.of != nil && h.of.lose != nil {
		h.of.lose(fmt.Errorf("%s: %w: %w", h.key, semel.ErrLeaseLost, err))
	}
}
