package window

import (
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
)

// mostInline is the length of the longest accumulator that stays in memory. A pane takes
// about as much besides, and a read from disk for each transaction that changes it would
// cost more than it saves.
const mostInline = 256

// stored reports whether only the copy on disk has the accumulator. Then acc is empty, which
// no accumulator is, and its place is in the memory behind acc. So panes of accumulators in
// memory, of which there are millions, have no field for it.
func (p *pane) stored() bool { return p.acc != nil && len(p.acc) == 0 }

// onDisk returns the acc of an accumulator at a place on disk.
func onDisk(ref state.Ref) []byte { return ref.Append(nil)[:0] }

// ref returns the place of a stored accumulator.
func (p *pane) ref() state.Ref { return state.RefAt(p.acc[:state.RefSize]) }

// size returns the length of the accumulator.
func (p *pane) size() int {
	if p.stored() {
		return p.ref().Size()
	}
	return len(p.acc)
}

// load returns the accumulator of a pane, which must not be changed.
func (s *State) load(p *pane) ([]byte, error) {
	if p.stored() {
		return s.Load(nil, p.ref())
	}
	return p.acc, nil
}

// appendAcc appends the accumulator of a pane.
func (s *State) appendAcc(dst []byte, p *pane) ([]byte, error) {
	if p.stored() {
		return s.Load(dst, p.ref())
	}
	return append(dst, p.acc...), nil
}

// spot is where a long accumulator is in the records of the open transaction.
type spot struct {
	pane *pane
	at   state.Spot
}

// leave leaves the long accumulators of the open transaction's records on disk, which has
// the records at places.
func (s *State) leave(places []state.Place) {
	for _, of := range s.spots {
		p, place, at := of.pane, places[of.at.Record], of.at.At
		if p.stored() {
			p.acc = onDisk(p.ref().Again(place, at))
		} else {
			p.acc = onDisk(s.Leave(place, at, p.acc))
		}
	}
}
