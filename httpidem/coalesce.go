package httpidem

import (
	"context"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// coalescer has the keys whose requests run in this process, or run in another one while a
// request here asks the store for their end. Other requests with these keys wait in
// memory: they hold no connection to the store and do not ask it.
type coalescer struct {
	most, mostOfKey int // waiting requests

	mu      sync.Mutex
	running map[semel.Key]*leader
	waiting int
}

// leader is the request for which others wait. The lock of its coalescer guards it.
type leader struct {
	fingerprint semel.Fingerprint
	runs        bool      // its handler runs here, so that the fingerprint is the key's
	leaseEnd    time.Time // as it was last known; the lease is extended
	waiting     int
	ended       chan struct{} // closed at the end; made by the first that waits
	result      settled       // set before ended is closed
}

// settled is the answer for all requests with a key and a fingerprint, unless it is not
// ok: then each of them must ask the store itself.
type settled struct {
	ok   bool
	data []byte // the stored answer, if err is nil
	err  error
}

// begin lets others wait for a request, whose leader is own. It returns nil if another
// request with its key has begun. The rest is as in note.
func (c *coalescer) begin(call *semel.Call, own *leader, runs bool, leaseEnd time.Time) *leader {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running[call.Key] != nil {
		return nil
	}
	*own = leader{fingerprint: call.Fingerprint, runs: runs, leaseEnd: leaseEnd}
	c.running[call.Key] = own
	return own
}

// note says whether the handler runs here, and when the lease of the key ends.
func (c *coalescer) note(own *leader, runs bool, leaseEnd time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own.runs, own.leaseEnd = runs, leaseEnd
}

// end gives all that wait for a request its result.
func (c *coalescer) end(key semel.Key, own *leader, result settled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.running, key)
	if own.result = result; own.ended != nil {
		close(own.ended)
	}
}

// wait returns the answer for a call if there is a request to wait for. It waits until
// the time until, and while ctx lasts. Then, or if too many wait already, the answer is an
// InFlightError.
func (c *coalescer) wait(ctx context.Context, call *semel.Call, until time.Time) settled {
	own, result := c.join(call, until)
	if own == nil {
		return result
	}
	_ = retry.SleepOrWake(ctx, time.Until(until), own.ended)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.waiting--
	own.waiting--
	select {
	case <-own.ended:
		return own.result
	default:
		return inFlight(call, own)
	}
}

// join returns the leader to wait for. Without one, it returns the answer.
func (c *coalescer) join(call *semel.Call, until time.Time) (*leader, settled) {
	c.mu.Lock()
	defer c.mu.Unlock()
	own := c.running[call.Key]
	switch {
	case own == nil:
		return nil, settled{}
	case own.fingerprint != call.Fingerprint:
		return nil, settled{ok: own.runs, err: semel.ErrMismatch}
	case c.waiting == c.most || own.waiting == c.mostOfKey || !time.Now().Before(until):
		return nil, inFlight(call, own)
	}
	c.waiting++
	own.waiting++
	if own.ended == nil {
		own.ended = make(chan struct{})
	}
	return own, settled{}
}

func inFlight(call *semel.Call, own *leader) settled {
	return settled{ok: true, err: &semel.InFlightError{Key: call.Key, LeaseEnd: own.leaseEnd}}
}
