package httpidem

import (
	"context"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// flights are the keys whose requests run in this process, or run in another one while a
// request here asks the store for their end. Other requests with these keys wait in
// memory: they hold no connection to the store and do not ask it.
type flights struct {
	most, mostOfKey int // waiting requests

	mu      sync.Mutex
	flying  map[semel.Key]*flight
	waiting int
}

// flight is the request for which others wait. The lock of its flights guards it.
type flight struct {
	fingerprint semel.Fingerprint
	runs        bool      // its handler runs here, so that the fingerprint is the key's
	leaseEnd    time.Time // as it was last known; the lease is extended
	waiting     int
	landed      chan struct{} // closed at the end; made by the first that waits
	result      settled       // set before landed is closed
}

// settled is the answer for all requests with a key and a fingerprint, unless it is not
// ok: then each of them must ask the store itself.
type settled struct {
	ok   bool
	data []byte // the stored answer, if err is nil
	err  error
}

// begin lets others wait for a request, whose flight is own. It returns nil if another
// request with its key has begun. The rest is as in note.
func (f *flights) begin(call *semel.Call, own *flight, runs bool, leaseEnd time.Time) *flight {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.flying[call.Key] != nil {
		return nil
	}
	*own = flight{fingerprint: call.Fingerprint, runs: runs, leaseEnd: leaseEnd}
	f.flying[call.Key] = own
	return own
}

// note says whether the handler runs here, and when the lease of the key ends.
func (f *flights) note(own *flight, runs bool, leaseEnd time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own.runs, own.leaseEnd = runs, leaseEnd
}

// end gives all that wait for a request its result.
func (f *flights) end(key semel.Key, own *flight, result settled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.flying, key)
	if own.result = result; own.landed != nil {
		close(own.landed)
	}
}

// wait returns the answer for a call if there is a request to wait for. It waits until
// the time until, and while ctx lasts. Then, or if too many wait already, the answer is an
// InFlightError.
func (f *flights) wait(ctx context.Context, call *semel.Call, until time.Time) settled {
	own, result := f.join(call, until)
	if own == nil {
		return result
	}
	_ = retry.SleepOrWake(ctx, time.Until(until), own.landed)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting--
	own.waiting--
	select {
	case <-own.landed:
		return own.result
	default:
		return inFlight(call, own)
	}
}

// join returns the flight to wait for. Without one, it returns the answer.
func (f *flights) join(call *semel.Call, until time.Time) (*flight, settled) {
	f.mu.Lock()
	defer f.mu.Unlock()
	own := f.flying[call.Key]
	switch {
	case own == nil:
		return nil, settled{}
	case own.fingerprint != call.Fingerprint:
		return nil, settled{ok: own.runs, err: semel.ErrMismatch}
	case f.waiting == f.most || own.waiting == f.mostOfKey || !time.Now().Before(until):
		return nil, inFlight(call, own)
	}
	f.waiting++
	own.waiting++
	if own.landed == nil {
		own.landed = make(chan struct{})
	}
	return own, settled{}
}

func inFlight(call *semel.Call, own *flight) settled {
	return settled{ok: true, err: &semel.InFlightError{Key: call.Key, LeaseEnd: own.leaseEnd}}
}
