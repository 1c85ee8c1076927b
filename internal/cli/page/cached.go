package page

import (
	"context"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// listAge is how old a list may be that is shown, and listPause how many times as long as
	// its reading took.
	listAge   = time.Second
	listPause = 20
	// errorAge is how old an error may be that is shown, and listOld a list while it is read again.
	errorAge = 3 * time.Second
	listOld  = 10 * time.Second
	// readFor limits the time for a reading.
	readFor = 15 * time.Second
	// mostListed limits the entries that are read for a list.
	mostListed = 20_000
)

// cached keeps what may take long to read, for many people. One of them reads it again, and the
// others get what was read before, unless that is old.
type cached[T any] struct {
	times time.Duration // the pause is as many times as long as the reading

	mu      sync.Mutex // guards the fields below
	value   T
	err     error
	good    *T        // the last value without an error since the last change
	at      time.Time // zero: nothing can be shown
	took    time.Duration
	reading chan struct{} // closed when the reading ends that is under way; otherwise nil
	changes int           // how often forget was called
}

// get returns what read returned. Only the end of the request that waits for another's reading
// makes it return another error.
func (c *cached[T]) get(ctx context.Context, read func(context.Context) (T, error)) (T, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for waited := false; ; waited = true {
		pause, age := max(listAge, c.times*c.took), time.Since(c.at)
		if c.err != nil {
			pause = errorAge
		}
		known := !c.at.IsZero() && age < max(2*pause, listOld)
		switch {
		case known && (age < pause || c.reading != nil), waited && !c.at.IsZero():
			return c.value, c.err
		case c.reading == nil:
			return c.again(ctx, read)
		}
		ended := c.reading
		c.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
		}
		c.mu.Lock()
		if ctx.Err() != nil {
			return *new(T), context.Cause(ctx)
		}
	}
}

// again reads. A browser that goes away does not cut it, because others wait for it. The caller
// holds mu, and again releases it while it reads.
func (c *cached[T]) again(ctx context.Context, read func(context.Context) (T, error)) (value T, err error) {
	ended, changes, began := make(chan struct{}), c.changes, time.Now()
	c.reading = ended
	c.mu.Unlock()
	done := false
	defer func() {
		c.mu.Lock()
		c.value, c.err, c.took, c.at = value, err, time.Since(began), began
		if !done || changes != c.changes { // it panicked, or what it read may be from before a change
			c.at = time.Time{}
		}
		if err == nil && !c.at.IsZero() {
			c.good = &value
		}
		c.reading = nil
		close(ended)
	}()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readFor)
	defer cancel()
	value, err = read(ctx)
	done = true
	return value, err
}

// last returns the value that was last read without an error, or false.
func (c *cached[T]) last() (value T, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.good != nil {
		value = *c.good
	}
	return value, c.good != nil
}

// forget makes the next get read the list.
func (c *cached[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at, c.good = time.Time{}, nil
	c.changes++
}

// rendered keeps what was rendered of one status for each person, because many people look at it.
type rendered struct {
	mu    sync.Mutex // guards the fields below, even while one of them is rendered
	of    *admin.Status
	pages map[admin.Identity][]byte
}

// get returns the result of render for a person and a status. No caller changes it.
func (c *rendered) get(of *admin.Status, who admin.Identity, render func() ([]byte, error)) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of != of {
		c.of, c.pages = of, map[admin.Identity][]byte{}
	}
	if page, ok := c.pages[who]; ok {
		return page, nil
	}
	page, err := render()
	if err == nil {
		c.pages[who] = page
	}
	return page, err
}

// lists has a list for each name.
type lists[T any] struct {
	mu sync.Mutex // guards of
	of map[string]*cached[T]
}

func (l *lists[T]) named(name string) *cached[T] {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]*cached[T]{}
	}
	if l.of[name] == nil {
		l.of[name] = &cached[T]{times: listPause}
	}
	return l.of[name]
}

// parkedList has the parked messages of a pipeline, without bodies and headers.
type parkedList struct {
	at       time.Time
	messages []pipeline.Parked
	more     bool // there are more than mostListed
	unread   error
}

// unknownList has the unknown keys of a store.
type unknownList struct {
	at      time.Time
	records []semel.Record
	more    bool
}
