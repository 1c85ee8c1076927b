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
	// Fetch returns a new token. Its errors are of type *Error. It blocks at most until ctx ends.
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
	// fetchWithin limits an attempt without which no connection can be made.
	fetchWithin = 8 * time.Second
	// renewWithin limits an attempt while the present token can be used. It is shorter, because
	// requests to the server wait for it.
	renewWithin = 3 * time.Second
	// leastPause and mostPause are between attempts that fail.
	leastPause, mostPause = 500 * time.Millisecond, 15 * time.Second
)

// Cache keeps the token of an origin, and renews it when four fifths of its life are over. A
// server ends a session with its token, and a client logs in again a little earlier: it then gets
// a token that lasts. The methods may be called concurrently.
type Cache struct {
	origin Origin

	fetching chan struct{} // has an element while a token is fetched

	mu       sync.Mutex // guards the fields below
	token    Token
	failed   error // of the last attempt, or nil
	tries    int   // attempts that failed since a token came
	refusals int   // since the server accepted a token
	again    time.Time
	asking   bool // an attempt runs
}

// NewCache returns a Cache without a token.
func NewCache(origin Origin) *Cache {
	return &Cache{origin: origin, fetching: make(chan struct{}, 1)}
}

// String names the origin.
func (c *Cache) String() string { return c.origin.String() }

// Token returns a token that has not ended. While the present one can be used, a failed renewal
// is no error: it is tried again. Without a token it blocks until one comes, at most for a few
// seconds or until ctx ends. Errors are of type *Error, or wrap that of ctx. Soon after an error,
// it returns the error again instead of asking again.
func (c *Cache) Token(ctx context.Context) (Token, error) {
	if token, ok := c.present(time.Now()); ok {
		return token, nil
	}
	if token := c.Last(); token.usable(time.Now()) {
		select {
		case c.fetching <- struct{}{}:
		default:
			return token, nil // another caller renews it
		}
	} else {
		select {
		case c.fetching <- struct{}{}:
		case <-ctx.Done():
			return Token{}, c.ended(ctx)
		}
	}
	defer func() { <-c.fetching }()
	now := time.Now()
	if token, ok := c.present(now); ok { // another caller has fetched it
		return token, nil
	}
	if err := c.recent(now); err != nil {
		return Token{}, err
	}
	return c.fetch(ctx)
}

// present returns the token if it need not be renewed, or cannot be renewed yet.
func (c *Cache) present(now time.Time) (Token, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := now.Before(c.token.Renew) || now.Before(c.again)
	return c.token, fresh && c.token.usable(now)
}

// recent returns the error of an attempt that failed a moment ago.
func (c *Cache) recent(now time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Before(c.again) {
		return c.failed
	}
	return nil
}

// fetch gets a token. Only one call runs at a time.
func (c *Cache) fetch(ctx context.Context) (Token, error) {
	c.mu.Lock()
	old, within := c.token, fetchWithin
	if old.usable(time.Now()) {
		within = renewWithin
	}
	c.asking = true
	c.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, within)
	token, err := c.origin.Fetch(limited)
	cancel()
	now := time.Now()
	if err == nil {
		err = token.check(c.origin, now)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asking = false
	if err == nil {
		c.token, c.failed, c.tries, c.again = token, nil, 0, time.Time{}
		return token, nil
	}
	if ctx.Err() != nil {
		return Token{}, c.ended(ctx)
	}
	c.failed, c.again = err, now.Add(retry.Backoff(c.tries, leastPause, mostPause))
	c.tries++
	if old.usable(now) {
		return old, nil
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
	if token.Text != c.token.Text || c.token.Renew.IsZero() {
		return // it was reported, or is read each time
	}
	c.token.Renew, c.again = time.Time{}, time.Now().Add(retry.Backoff(c.refusals, leastPause, mostPause))
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

// Trouble returns why there is no new token: the error of the last attempt, or that an attempt
// has no answer yet. It returns nil if the last attempt succeeded or none was made.
func (c *Cache) Trouble() *Error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e, ok := errors.AsType[*Error](c.failed); ok {
		return e
	}
	if c.asking {
		return silent(c.origin)
	}
	return nil
}

// silent is the error of an origin that does not answer.
func silent(origin Origin) *Error {
	return &Error{Cause: "no answer from " + origin.String(), Remedy: "is it up, and can this machine reach it?"}
}
