package pipeline

import (
	"slices"

	"github.com/semel-dev/semel"
)

// room is what one Process needs beside its items. It is used again, so that a
// batch leaves less behind it.
type room struct {
	asked              []*Item // those in claims
	claims             []semel.ClaimRequest
	answers            []semel.ClaimAnswer
	fresh, twins, todo []*Item
	done               []*Item // those in completions
	completions        []semel.CompleteRequest
	errs               []error
}

// clear forgets all but the room: who waits must hold nothing.
func (r *room) clear() {
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
		r.asked[:0], r.claims[:0], r.answers[:0], r.fresh[:0], r.twins[:0], r.todo[:0], r.done[:0], r.completions[:0], r.errs[:0],
	}
}

// zeroed returns a slice of n zero values, in the room of one that is clear.
func zeroed[T any](room []T, n int) []T { return slices.Grow(room[:0], n)[:n] }
