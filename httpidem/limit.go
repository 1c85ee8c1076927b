package httpidem

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// requestCost is the part of Options.MaxBuffered that each request takes in addition to its body:
// for its headers, its connection, and a short response.
const requestCost = 16 << 10

// memoryBudget is memory for the bodies of all requests in progress.
type memoryBudget struct {
	most  int64
	taken atomic.Int64
	over  atomic.Bool // one reservation has more than there was room for
}

// reservation is the part of a memoryBudget that one request has. It is for one goroutine at a time.
type reservation struct {
	of    *memoryBudget
	taken int64
	spare int64 // taken elsewhere for this one
	over  bool  // it is the one that has more
}

// take reports whether there was room for n more bytes.
func (r *reservation) take(n int64) bool {
	if r.spare -= n; r.spare >= 0 {
		return true
	}
	n, r.spare = -r.spare, 0
	if r.of.taken.Add(n) > r.of.most {
		r.of.taken.Add(-n)
		return false
	}
	r.taken += n
	return true
}

// takeWhole is take for a kept response or a decompressed body, which may be larger than the
// budget: one reservation at a time may have more than there is room for.
func (r *reservation) takeWhole(n int64) bool {
	if r.take(n) {
		return true
	}
	if !r.over && !r.of.over.CompareAndSwap(false, true) {
		return false
	}
	r.over = true
	r.give(-n)
	return true
}

// give gives n bytes back.
func (r *reservation) give(n int64) {
	r.of.taken.Add(-n)
	r.taken -= n
}

// end gives all bytes back.
func (r *reservation) end() {
	r.give(r.taken)
	if r.over {
		r.over = false
		r.of.over.Store(false)
	}
}

// callerLimit counts the requests in progress of each caller.
type callerLimit struct {
	most int // 0: no limit

	mu     sync.Mutex
	active map[string]int
}

// enter reports whether one more request of this caller may come in. If it did, the
// caller calls leave at its end.
func (c *callerLimit) enter(name string) bool {
	if c.most == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active[name] == c.most {
		return false
	}
	c.active[name]++
	return true
}

func (c *callerLimit) leave(name string) {
	if c.most == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.active[name]--; c.active[name] == 0 {
		delete(c.active, name)
	}
}

// errQuota is the error of a request that did not run, because its caller has used too
// many new keys.
var errQuota = errors.New("httpidem: the caller has used too many new keys")

// quota counts the new keys of each caller, for an hour.
type quota struct {
	most int // 0: no limit

	mu   sync.Mutex
	end  time.Time // of the hour
	used map[string]int
}

// take reports whether a caller may use one more new key in this hour.
func (q *quota) take(name string) bool {
	if q.most == 0 {
		return true
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if now := time.Now(); !now.Before(q.end) {
		q.end, q.used = now.Add(time.Hour), map[string]int{}
	}
	if q.used[name] >= q.most {
		return false
	}
	q.used[name]++
	return true
}

// left returns how long the hour lasts.
func (q *quota) left() time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return max(time.Until(q.end), time.Second)
}
