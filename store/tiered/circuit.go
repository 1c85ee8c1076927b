package tiered

import (
	"sync"
	"sync/atomic"
	"time"
)

// circuit tells whether a layer is in use. The first failure takes it out of
// use; after a pause one call tries it again, and the others go on without it
// until that call has its answer. So a layer that hangs costs one time-out for
// each pause.
//
// Pauses go by the monotonic clock: a step of the wall clock must not keep a
// layer out.
type circuit struct {
	name string
	opts *Options
	down atomic.Bool // also read without mu: the fast path
	// patience is for how long callers waited in vain since the last answer.
	patience atomic.Int64

	mu     sync.Mutex // guards the fields below, and changes of down
	trying bool
	retry  time.Time // when the next call may try
	since  time.Time
	err    error
	failed int64
}

func (c *circuit) init(name string, opts *Options) { c.name, c.opts = name, opts }

// enter reports whether a call may be made, and whether it is the one that
// tries a layer which failed. Each call that may be made ends with leave or
// abandon.
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

// leave ends a call with the layer's answer. Only a trial brings a layer back:
// the answer to a call from before the outage says nothing.
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

// abandon ends a call whose time was over after a while. If that was less than
// a time-out it says little of the layer; but callers who together waited for a
// whole one, and got no answer between them, are enough to call it down.
func (c *circuit) abandon(trial bool, waited time.Duration, err error) {
	if trial || time.Duration(c.patience.Add(int64(waited))) >= c.opts.Timeout {
		c.leave(trial, err)
	}
}

// tell tells the observer.
func (c *circuit) tell(e Event) {
	if c.opts.Observe != nil {
		e.Layer = c.name
		c.opts.Observe(e)
	}
}

// status fills what a circuit knows of its layer.
func (c *circuit) status() LayerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return LayerStatus{Name: c.name, Down: c.down.Load(), Since: c.since, Failures: c.failed, Err: c.err}
}
