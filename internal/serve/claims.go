package serve

import (
	"context"
	"sync/atomic"
	"time"
)

// claims says about how many claims of this process live, for the drain. It is a count and
// not a list, so it takes no memory for a claim. It may be wrong by claims that another
// process granted or completed: a drain is then shorter or longer, and nothing else.
type claims struct {
	count atomic.Int64
	last  atomic.Int64 // when the last lease ends, in Unix nanoseconds
}

// granted counts claims whose leases end at this time.
func (c *claims) granted(n int, end time.Time) {
	c.count.Add(int64(n))
	c.extended(end)
}

// extended says that a lease ends at this time.
func (c *claims) extended(end time.Time) {
	for at := end.UnixNano(); ; {
		last := c.last.Load()
		if at <= last || c.last.CompareAndSwap(last, at) {
			return
		}
	}
}

// settled counts claims that were completed or released.
func (c *claims) settled(n int) {
	for {
		count := c.count.Load()
		if c.count.CompareAndSwap(count, max(count-int64(n), 0)) {
			return
		}
	}
}

// live returns how many claims live.
func (c *claims) live(now time.Time) int64 {
	if now.UnixNano() >= c.last.Load() {
		return 0
	}
	return c.count.Load()
}

// wait waits until no claim lives, or ctx ends.
func (c *claims) wait(ctx context.Context) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for c.live(time.Now()) > 0 {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
