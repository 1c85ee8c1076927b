package tiered

import (
	"sync"
	"sync/atomic"
	"time"
)

// circuit is a circuit breaker: it decides whether a layer is in use. The first
// failure takes the layer out of use. After a pause, one call tries the layer
// again, and the other calls skip it until that call has an answer. So a
// hanging layer costs one timeout per pause.
//
// Pauses use the monotonic clock, because a step of the wall clock must not
// keep a layer out of use.
//
// The circuit of redisstore is different: it stands for all nodes of a server, so any answer
// closes it. Here only the answer to a trial shows that a layer is back.
type circuit struct {
	name string
	opts *Options
	down atomic.Bool // fast path: also read without mu
	// patience is how long callers have waited without an answer since the last
	// answer.
	patience atomic.Int64

	mu     sync.Mutex // guards the fields below, and changes of down
	trying bool
	retry  time.Time // when the next call may try
	since  time.Time
	err    error
	failed int64
}

func (c *circuit) init(name string, opts *Options) { c.name, c.opts = name, opts }

// enter reports whether a call may be made, and whether it is the trial call of
// a failed layer. Each permitted call ends with leave or abandon.
func (c *circuit) enter() (trial, ok bool) {
	if !c.down.Load() {
		return false, true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.down.Load():
		return false, true
	case c.trying || time.Now().Before(c.retry):
		return false, false
	}
	c.trying = true
	return true, true
}

// leave ends a call with the layer's answer. Only a trial call brings a layer
// back: the answer to a call from before the outage proves nothing.
func (c *circuit) leave(trial bool, err error) {
	if err == nil && !trial {
		if c.patience.Load() != 0 {
			c.patience.Store(0)
		}
		return
	}
	c.mu.Lock()
	was := c.down.Load()
	if trial {
		c.trying = false
	}
	now := time.Now()
	if err != nil {
		c.failed++
		c.err, c.retry = err, now.Add(c.opts.Retry)
	}
	if was != (err != nil) {
		c.since = now
		c.down.Store(err != nil)
		c.patience.Store(0)
	}
	c.mu.Unlock()
	switch {
	case !was && err != nil:
		c.tell(Event{Kind: EventDown, Err: err})
	case was && err == nil:
		c.tell(Event{Kind: EventUp})
	}
}

// abandon ends a call whose time ran out. A wait shorter than the timeout
// proves little about the layer. But if several callers together waited for a
// whole timeout, and none got an answer, the layer counts as down.
func (c *circuit) abandon(trial bool, waited time.Duration, err error) {
	if trial || time.Duration(c.patience.Add(int64(waited))) >= c.opts.Timeout {
		c.leave(trial, err)
	}
}

// tell reports an event to the observer.
func (c *circuit) tell(e Event) {
	if c.opts.Observe != nil {
		e.Layer = c.name
		c.opts.Observe(e)
	}
}

// status returns the circuit's part of the layer's status.
func (c *circuit) status() LayerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return LayerStatus{Name: c.name, Down: c.down.Load(), Since: c.since, Failures: c.failed, Err: c.err}
}
