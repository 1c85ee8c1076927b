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

// room is memory for the bodies of all requests in progress.
type room struct {
	most  int64
	taken atomic.Int64
	over  atomic.Bool // one share has more than there was room for
}

// share is the part of a room that one request has. It is for one goroutine at a time.
type share struct {
	of    *room
	taken int64
	spare int64 // taken elsewhere for this one
	over  bool  // it is the one that has more
}

// take reports whether there was room for n more bytes.
func (s *share) take(n int64) bool {
	if s.spare -= n; s.spare >= 0 {
		return true
	}
	n, s.spare = -s.spare, 0
	if s.of.taken.Add(n) > s.of.most {
		s.of.taken.Add(-n)
		return false
	}
	s.taken += n
	return true
}

// takeWhole is take for a kept response or a decompressed body, which may be larger than the
// room: one share at a time may have more than there is room for.
func (s *share) takeWhole(n int64) bool {
	if s.take(n) {
		return true
	}
	if !s.over && !s.of.over.CompareAndSwap(false, true) {
		return false
	}
	s.over = true
	s.give(-n)
	return true
}

// give gives n bytes back.
func (s *share) give(n int64) {
	s.of.taken.Add(-n)
	s.taken -= n
}

// end gives all bytes back.
func (s *share) end() {
	s.give(s.taken)
	if s.over {
		s.over = false
		s.of.over.Store(false)
	}
}

// crowd counts the requests in progress of each caller.
type crowd struct {
	most int // 0: no limit

	mu      sync.Mutex
	present map[string]int
}

// enter reports whether one more request of this caller may come in. If it did, the
// caller calls leave at its end.
func (c *crowd) enter(name string) bool {
	if c.most == 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.present[name] == c.most {
		return false
	}
	c.present[name]++
	return true
}

func (c *crowd) leave(name string) {
	if c.most == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.present[name]--; c.present[name] == 0 {
		delete(c.present, name)
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
