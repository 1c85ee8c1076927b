package pipeline

import (
	"slices"
	"sync"

	"github.com/semel-dev/semel"
)

// room is what one Process needs beside its items. It is used again, so that a
// batch leaves less behind it.
type room struct {
	holds              []hold  // of the claims that are granted
	asked              []*Item // those in claims
	claims             []semel.ClaimRequest
	answers            []semel.ClaimAnswer
	fresh, twins, todo []*Item
	done               []*Item // those in completions
	completions        []semel.CompleteRequest
	errs               []error
}

// rooms lends rooms. Those that wait to be lent again are as many as were in use
// at once.
type rooms struct {
	mu   sync.Mutex
	idle []*room
}

func (l *rooms) take() *room {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	if last < 0 {
		return &room{}
	}
	r := l.idle[last]
	l.idle = l.idle[:last]
	return r
}

func (l *rooms) put(r *room) {
	r.clear()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, r)
}

// hold returns room for one more hold, of at most most. Its address lasts: items
// have it.
func (r *room) hold(most int) *hold {
	if cap(r.holds) < most {
		r.holds = make([]hold, 0, most)
	}
	r.holds = r.holds[:len(r.holds)+1]
	return &r.holds[len(r.holds)-1]
}

// clear forgets all but the room: who waits must hold nothing.
func (r *room) clear() {
	clear(r.holds)
	clear(r.asked)
	clear(r.claims)
	clear(r.answers)
	clear(r.fresh)
	clear(r.twins)
	clear(r.todo)
	clear(r.done)
	clear(r.completions)
	clear(r.errs)
	*r = room{
		r.holds[:0], r.asked[:0], r.claims[:0], r.answers[:0], r.fresh[:0], r.twins[:0], r.todo[:0], r.done[:0], r.completions[:0], r.errs[:0],
	}
}

// zeroed returns a slice of n zero values, in the room of one that is clear.
func zeroed[T any](room []T, n int) []T { return slices.Grow(room[:0], n)[:n] }
