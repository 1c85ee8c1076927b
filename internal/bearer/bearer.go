// Package bearer gets the bearer tokens of OAuth with which a client logs in to a server, renews
// them before they end, and says what a token has.
package bearer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// Origin is where tokens come from.
type Origin interface {
	// Fetch returns a new token. Its errors are of type *Error. It should end
	// with ctx; a Cache does not wait for it longer.
	Fetch(ctx context.Context) (Token, error)
	// String names the origin for people, without secrets.
	String() string
}

// Error says why there is no token.
type Error struct {
	// Cause says what happened, and Remedy what to do. Neither contains a secret.
	Cause, Remedy string
	// Lasting means that another attempt does not help until an operator does what Remedy says.
	Lasting bool
}

// Error implements error.
func (e *Error) Error() string { return e.Cause + ": " + e.Remedy }

// Unwrap returns the class.
func (e *Error) Unwrap() error {
	if e.Lasting {
		return semel.ErrInvalidRequest
	}
	return semel.ErrStoreUnavailable
}

const (
	// fetchWithin limits an attempt.
	fetchWithin = 8 * time.Second
	// leastPause and mostPause are between attempts that fail.
	leastPause, mostPause = 500 * time.Millisecond, 15 * time.Second
	// lastingPause is the longest after an answer that only an operator can change. An issuer may
	// block a client that it refuses too often.
	lastingPause = time.Minute
)

// Cache keeps the token of an origin, and renews it when four fifths of its life are over. A
// server ends a session with its token, and a client logs in again a little earlier: it then gets
// a token that lasts. The methods may be called concurrently.
type Cache struct {
	origin Origin

	mu       sync.Mutex // guards the fields below
	token    Token
	refused  bool     // the server did not accept the token
	running  *attempt // or nil
	failed   error    // of the last attempt, or nil
	tries    int      // attempts that failed since a token came
	refusals int      // since the server accepted a token
	again    time.Time
}

// attempt is a question to the origin.
type attempt struct {
	begun time.Time
	done  chan struct{} // closed at its end
	token Token         // the answer, or the token that can still be used
	err   error         // of type *Error
}

// NewCache returns a Cache without a token.
func NewCache(origin Origin) *Cache { return &Cache{origin: origin} }

// String names the origin.
func (c *Cache) String() string { return c.origin.String() }

// Token returns a token that has not ended. While the present one can be used, it is renewed in the
// background, and a failed renewal is no error: it is tried again. Otherwise Token blocks until a
// token comes, at most for a few seconds or until ctx ends. Errors are of type *Error, or wrap that
// of ctx. Soon after an error, it returns the error again instead of asking again. A token that the
// server refused is only returned in the moment before another one is fetched, so that the server
// says again what is wrong.
func (c *Cache) Token(ctx context.Context) (Token, error) {
	c.mu.Lock()
	now := time.Now()
	token, good := c.token, c.good(now)
	switch pause := now.Before(c.again); {
	case good && (pause || now.Before(token.Renew)), pause && c.failed == nil && token.usable(now):
		c.mu.Unlock()
		return token, nil
	case pause && c.failed != nil:
		defer c.mu.Unlock()
		return Token{}, c.failed
	}
	a := c.attempt(ctx)
	c.mu.Unlock()
	if good && !token.Renew.IsZero() {
		return token, nil
	}
	select {
	case <-a.done:
		return a.token, a.err
	case <-ctx.Done():
		return Token{}, c.ended(ctx)
	case <-time.After(time.Until(a.begun.Add(fetchWithin + time.Second))): // a read of a dead file system does not end
		if good {
			return token, nil
		}
		return Token{}, silent(c.origin)
	}
}

// good reports whether the token can be used, and no server refused it. The caller holds mu.
func (c *Cache) good(now time.Time) bool { return !c.refused && c.token.usable(now) }

// attempt returns the attempt that runs, or begins one. It does not end with the caller, because
// others wait for it too. The caller holds mu.
func (c *Cache) attempt(ctx context.Context) *attempt {
	if c.running == nil {
		a := &attempt{begun: time.Now(), done: make(chan struct{})}
		c.running = a
		go func() {
			defer close(a.done)
			limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), fetchWithin)
			defer cancel()
			token, err := c.origin.Fetch(limited)
			a.token, a.err = c.result(token, err)
		}()
	}
	return c.running
}

// result notes how an attempt ended.
func (c *Cache) result(token Token, err error) (Token, error) {
	now := time.Now()
	if err == nil {
		err = token.check(c.origin, now)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = nil
	if err == nil {
		c.token, c.refused, c.failed, c.tries, c.again = token, false, nil, 0, time.Time{}
		return token, nil
	}
	most := mostPause
	if errors.Is(err, semel.ErrInvalidRequest) {
		most = lastingPause
	}
	c.failed, c.again = err, now.Add(retry.Backoff(c.tries, leastPause, most))
	c.tries++
	if c.good(now) {
		return c.token, nil
	}
	return Token{}, err
}

// Accepted notes that the server accepts a token.
func (c *Cache) Accepted(token Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if token.Text == c.token.Text {
		c.refusals = 0
	}
}

// Refused notes that the server does not accept a token. Soon after, another one is fetched,
// because an operator may have corrected the issuer.
func (c *Cache) Refused(token Token) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if token.Text != c.token.Text || c.refused {
		return // there is another one, or it was reported
	}
	c.refused = true
	if c.token.Renew.IsZero() {
		return // it is read each time
	}
	c.again = time.Now().Add(retry.Backoff(c.refusals, leastPause, mostPause))
	c.refusals++
}

// ended is the error of a caller whose context has ended.
func (c *Cache) ended(ctx context.Context) error {
	return fmt.Errorf("%s: %w", c.origin, context.Cause(ctx))
}

// Last returns the last token that came, or the zero Token.
func (c *Cache) Last() Token {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.token
}

// Usable reports whether a login has a token and does not wait for one.
func (c *Cache) Usable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.good(time.Now())
}

// Trouble returns why there is no new token: the error of the last attempt, or that an attempt
// has no answer yet. It returns nil if the last attempt succeeded or none was made.
func (c *Cache) Trouble() *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := errors.AsType[*Error](c.failed); ok {
		return e
	}
	if c.running != nil {
		return silent(c.origin)
	}
	return nil
}

// silent is the error of an origin that does not answer.
func silent(origin Origin) *Error {
	return &Error{Cause: "no answer from " + origin.String(), Remedy: "is it up, and can this machine reach it?"}
}
