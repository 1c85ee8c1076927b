package redisstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// Status is the state of the connection of a [Client].
type Status struct {
	// Open is set while the server does not answer. Calls then fail immediately
	// with [semel.ErrStoreUnavailable], except for one call at a time that
	// tries the server.
	Open bool
	// Since is when the circuit opened. It is zero unless Open.
	Since time.Time
	// Failures counts the failed calls since the server last answered.
	Failures int
	// LastError is the newest failure, or nil, and LastFailure is its time.
	// Both stay when the server answers again.
	LastError   error
	LastFailure time.Time
}

// These are the pauses between two tries while the circuit is open. Each pause
// is twice the one before.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = time.Second
)

// circuit makes an outage cost one time-out instead of one time-out for each
// call.
//
// The circuit opens when a call timed out or could not connect, and no call was
// answered since that call began. In a cluster with one node down, the other
// nodes therefore keep it closed. A cut connection does not open the circuit.
// It cost no time, and the next call, which may repeat the one that was cut,
// finds out whether the server is there. While the circuit is open, one call at
// a time may try the server after a pause. The first answer closes the circuit.
//
// The circuit of tiered is another one. It opens after the first failure and closes only
// after a trial, which would keep a cluster out of use because of one of its nodes.
type circuit struct {
	// answers counts the answered calls. suspect is set if a call failed since
	// the last answer. A call to a healthy server touches only these two.
	answers atomic.Uint64
	suspect atomic.Bool

	mu      sync.Mutex // guards the fields below, and changes of suspect
	current Status
	pause   time.Duration
	retry   time.Time // when the next call may try
	probing bool      // a call is trying
}

// pass permits one call.
type pass struct {
	answers uint64 // value of circuit.answers when the call began
	began   time.Time
	probe   bool
}

func (c *circuit) enter(now time.Time) (pass, error) {
	p := pass{answers: c.answers.Load(), began: now}
	if !c.suspect.Load() {
		return p, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.current.Open:
		return p, nil
	case c.probing || now.Before(c.retry):
		return p, &SilentError{c.current.Since, c.current.LastError}
	}
	c.probing, p.probe = true, true
	return p, nil
}

// SilentError says that a command was not sent, because the server has not answered for a
// while. It wraps semel.ErrStoreUnavailable, and not Last: the cause of an earlier failure is
// not the cause of this one.
type SilentError struct {
	// Since is when the server began not to answer, and Last its last error.
	Since time.Time
	Last  error
}

// Error implements error.
func (e *SilentError) Error() string {
	return fmt.Sprintf("not sent because the server has not answered since %s (%v); last error: %v",
		e.Since.UTC().Format(time.RFC3339), semel.ErrStoreUnavailable, e.Last)
}

// Unwrap returns semel.ErrStoreUnavailable.
func (*SilentError) Unwrap() error { return semel.ErrStoreUnavailable }

func (c *circuit) leave(p pass, now time.Time, answered bool, failure error) {
	if answered {
		c.answers.Add(1)
		if c.suspect.Load() {
			c.close()
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.probe {
		c.probing = false
	}
	counts, opens := judge(failure, now.Sub(p.began))
	if !counts {
		return
	}
	c.suspect.Store(true)
	c.current.Failures++
	c.current.LastError, c.current.LastFailure = failure, now
	if c.current.Open {
		if p.probe {
			c.pause = min(2*c.pause, lastPause)
			c.retry = now.Add(c.pause)
		}
		return
	}
	if opens && c.answers.Load() == p.answers {
		c.current.Open, c.current.Since = true, now
		c.pause = firstPause
		c.retry = now.Add(c.pause)
	}
}

func (c *circuit) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.current.Open, c.current.Since, c.current.Failures = false, time.Time{}, 0
	c.probing = false
	c.suspect.Store(false)
}

func (c *circuit) status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.current
}

// judge reports whether a call without any answer counts as a failure of the
// server, and whether it may open the circuit. A caller who gave up before the
// first pause does not count. Refusing other calls for that long would cost
// more than it saves.
func judge(err error, waited time.Duration) (counts, opens bool) {
	switch {
	case err == nil, errors.Is(err, rueidis.ErrClosing), errors.Is(err, rueidis.ErrNoSlot):
		return false, false
	case errors.Is(err, errAbandoned):
		late := waited >= firstPause
		return late, late
	case errors.Is(err, semel.ErrStoreUnavailable), errors.Is(err, semel.ErrOutcomeUnknown):
		return true, true // dial or leave set this error
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		late := waited >= firstPause
		return late, late
	}
	return true, false
}
