// Package clock is the clock of a store in this process. It starts at the wall
// clock and then follows the monotonic clock, so that a step of the wall clock
// neither ends a lease nor shortens a window.
package clock

import (
	"sync"
	"time"
)

// Clock returns a time that never runs backwards. It is safe for concurrent
// use.
type Clock struct {
	wall func() time.Time
	base time.Time
	// start is the clock's time at base. It is used with the real clock.
	start int64

	mu   sync.Mutex // guards last and now; not used with the real clock
	last time.Time
	now  time.Time
}

// New returns a clock that starts at the later of wall() and notBefore. A nil
// wall is time.Now. If wall returns times without a monotonic reading, the
// clock ignores steps backwards and continues from its last time.
func New(wall func() time.Time, notBefore time.Time) *Clock {
	c := &Clock{wall: wall}
	if wall == nil {
		c.base = time.Now()
		c.last = c.base
		c.now = c.base
	} else {
		c.last = wall()
		c.now = c.last
	}
	if c.now.Before(notBefore) {
		c.now = notBefore
	}
	c.start = c.now.UnixNano()
	return c
}

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	if c.wall == nil {
		return c.now.Add(time.Since(c.base))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.wall()
	if d := t.Sub(c.last); d > 0 {
		c.now = c.now.Add(d)
	}
	c.last = t
	return c.now
}

// Nanos returns Now as nanoseconds since the Unix epoch.
func (c *Clock) Nanos() int64 {
	if c.wall == nil {
		return c.start + int64(time.Since(c.base))
	}
	return c.Now().UnixNano()
}
