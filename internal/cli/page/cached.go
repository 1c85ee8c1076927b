package page

import (
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

const (
	// listAge is how old a list may be that is shown, and listPause how many times as long as
	// its reading took.
	listAge   = time.Second
	listPause = 20
	// mostListed limits the entries that are read for a list.
	mostListed = 20_000
)

// cached keeps a list that may take long to read, for many people.
type cached[T any] struct {
	mu    sync.Mutex // guards the fields below, and is held while the list is read
	value T
	at    time.Time // zero: it was not read
	took  time.Duration
}

// get returns the list, and when it was read.
func (c *cached[T]) get(read func() (T, error)) (T, time.Time, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.at.IsZero() && time.Since(c.at) < max(listAge, listPause*c.took) {
		return c.value, c.at, nil
	}
	began := time.Now()
	value, err := read()
	if err != nil {
		c.at = time.Time{}
		return value, began, err
	}
	c.value, c.at, c.took = value, began, time.Since(began)
	return value, began, nil
}

// forget makes the next get read the list.
func (c *cached[T]) forget() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = time.Time{}
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
		l.of[name] = &cached[T]{}
	}
	return l.of[name]
}

// parkedList has the parked messages of a pipeline, without bodies and headers.
type parkedList struct {
	messages []pipeline.Parked
	more     bool // there are more than mostListed
	unread   error
}

// unknownList has the unknown keys of a store.
type unknownList struct {
	records []semel.Record
	more    bool
}
