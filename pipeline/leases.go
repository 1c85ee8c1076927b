package pipeline

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// heldClaim is a claim that a session holds for an item.
type heldClaim struct {
	key     semel.Key
	token   semel.Token
	attempt int // of the claim
	// validUntil is until when the lease certainly lasts. The renewer's lock guards
	// it, and lost.
	validUntil time.Time
	lost       bool
	// doubt: a delivery may have had its effect. delivered: one certainly had it,
	// with this result, and is to be completed.
	doubt, delivered bool
	result           *semel.Result // nil is none
	batch            *leaseBatch   // in which its lease is renewed; the renewer's lock guards it
}

// deliver notes that the effect happened, with a result.
func (c *heldClaim) deliver(result semel.Result) {
	c.delivered = true
	if result.Kind != semel.NoResult || result.Data != nil {
		c.result = &result
	}
}

// outcome returns the result of the effect that happened.
func (c *heldClaim) outcome() semel.Result {
	if c.result == nil {
		return semel.Result{}
	}
	return *c.result
}

// leaseBatch is a batch of claims whose leases are renewed. Its effects run under a
// context that ends when one of the claims is lost.
type leaseBatch struct {
	effect context.Context
	lose   context.CancelCauseFunc
	began  time.Time
	claims []*heldClaim
}

// leaseRenewer renews the leases of all claims that a session holds. One timer is
// enough for all of them. A claim that is held for less than the timer's interval is
// never renewed.
type leaseRenewer struct {
	guard    *semel.Guard
	store    semel.Store
	lease    time.Duration
	interval time.Duration
	open     context.Context // ends when the session is closed
	close    context.CancelFunc

	renewing sync.Mutex // held during a renewal; before mu

	mu      sync.Mutex // guards the fields below
	batches map[*leaseBatch]struct{}
	timer   *time.Timer
	ticking bool
	stopped bool
	waiting bool // a renewal waits for the store, and looks at its claims then
}

func (k *leaseRenewer) init(guard *semel.Guard, store semel.Store, lease, interval time.Duration) {
	k.guard, k.store, k.lease, k.interval = guard, store, lease, interval
	k.open, k.close = context.WithCancel(context.Background())
	k.batches = map[*leaseBatch]struct{}{}
}

// stop ends the renewals. None runs when it returns, nor will one.
func (k *leaseRenewer) stop() {
	k.close()
	k.renewing.Lock()
	defer k.renewing.Unlock()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	if k.timer != nil {
		k.timer.Stop()
	}
}

// usable reports whether a claim certainly lasts for a while, or its effect happened
// and only has to be completed. If not, the claim is to be given up.
func (k *leaseRenewer) usable(c *heldClaim) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return c.delivered || !c.lost && time.Until(c.validUntil) >= k.interval/2
}

// start begins to renew the claims of items that are about to be delivered.
func (k *leaseRenewer) start(ctx context.Context, items []*Item, began time.Time) *leaseBatch {
	b := &leaseBatch{began: began, claims: make([]*heldClaim, 0, len(items))}
	b.effect, b.lose = context.WithCancelCause(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, it := range items {
		if c := claimOf(it); c != nil {
			if c.batch != nil {
				delete(k.batches, c.batch)
			}
			c.batch = b
			b.claims = append(b.claims, c)
		}
	}
	k.add(b)
	return b
}

// add has a batch renewed from now on. Call it with mu.
func (k *leaseRenewer) add(b *leaseBatch) {
	if len(b.claims) == 0 {
		return
	}
	k.batches[b] = struct{}{}
	if !k.ticking && !k.stopped {
		k.ticking = true
		if k.timer == nil {
			k.timer = time.AfterFunc(k.interval, k.renew)
		} else {
			k.timer.Reset(k.interval)
		}
	}
}

// end ends what start began.
func (k *leaseRenewer) end(b *leaseBatch) {
	b.lose(nil)
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.batches, b)
	for _, c := range b.claims {
		c.batch = nil
	}
}

// retain renews one claim until its item's next try.
func (k *leaseRenewer) retain(c *heldClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.batch != nil {
		return
	}
	c.batch = &leaseBatch{claims: []*heldClaim{c}}
	k.add(c.batch)
}

// mayLook reports whether a renewal may still look at claims that were completed or
// given up.
func (k *leaseRenewer) mayLook() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.waiting
}

// forget stops renewing a claim that is given up.
func (k *leaseRenewer) forget(c *heldClaim) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.batch != nil {
		delete(k.batches, c.batch)
	}
}

// renew renews all claims once.
func (k *leaseRenewer) renew() {
	k.renewing.Lock()
	defer k.renewing.Unlock()
	k.mu.Lock()
	var reqs []semel.ExtendRequest
	var claims []*heldClaim
	asked := time.Now()
	wait := k.lease - k.interval // and not longer than all leases last
	for b := range k.batches {
		for _, c := range b.claims {
			if !c.lost {
				reqs = append(reqs, semel.ExtendRequest{Key: c.key, Token: c.token, Lease: k.lease})
				claims = append(claims, c)
				wait = min(wait, c.validUntil.Sub(asked))
			}
		}
	}
	if len(reqs) == 0 {
		k.ticking = false
	}
	k.waiting = len(reqs) > 0
	k.mu.Unlock()
	if len(reqs) == 0 {
		return
	}
	answers := make([]semel.ExtendAnswer, len(reqs))
	ctx, cancel := context.WithTimeout(k.open, max(wait, k.interval/4))
	err := k.store.Extend(ctx, reqs, answers)
	cancel()
	if err != nil && k.open.Err() == nil {
		k.guard.Observe(semel.Event{Kind: semel.EventStoreError, Key: reqs[0].Key, Err: err})
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting = false
	next := k.interval
	if err != nil {
		next = k.interval/4 + time.Millisecond
	}
	for i, c := range claims {
		switch left := time.Until(c.validUntil); {
		case c.batch == nil: // completed or given up during the call
		case answers[i].Err != nil:
			k.lose(c, answers[i].Err)
		case err == nil || !answers[i].LeaseEnd.IsZero():
			c.validUntil = asked.Add(k.lease)
		case left <= 0:
			k.lose(c, err)
		default:
			next = min(next, left)
		}
	}
	if k.stopped || k.open.Err() != nil {
		return
	}
	k.timer.Reset(next)
}

// lose ends the effects of the batch that a lost claim is in. Call it with mu.
func (k *leaseRenewer) lose(c *heldClaim, err error) {
	c.lost = true
	k.guard.Observe(semel.Event{Kind: semel.EventLeaseLost, Key: c.key, Err: err})
	if c.batch != nil && c.batch.lose != nil {
		c.batch.lose(fmt.Errorf("%s: %w: %w", c.key, semel.ErrLeaseLost, err))
	}
}
