package tiered

import "time"

// EventKind is the kind of an event of a layer.
type EventKind uint8

const (
	// EventDown: a layer failed and is left out from now on. Err has its answer.
	EventDown EventKind = iota + 1
	// EventUp: a layer that was down answered and is in use again.
	EventUp
	// EventPassed: the durable store did not answer, and Keys claims were answered
	// with Fresh although it is unknown whether their effects have happened.
	// Err is the durable store's answer, if it was asked.
	EventPassed
	// EventUnreached: Keys removals could not reach a layer. This stack does not
	// believe it about them until they have.
	EventUnreached
)

// String returns the kind's name, as used in logs.
func (k EventKind) String() string {
	names := [...]string{"", "down", "up", "passed", "unreached"}
	if int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// Event is an incident of one layer.
type Event struct {
	Kind EventKind
	// Layer is the layer's name, or "durable" for the durable store.
	Layer string
	Keys  int
	Err   error
}

// Status describes the state of a stack and its layers.
type Status struct {
	// Layers are the layers in their order.
	Layers []LayerStatus
	// Durable is the durable store. It is down after a call without an answer,
	// until it answers a call.
	Durable LayerStatus
	// Passed is the number of claims that were answered with Fresh under
	// [Pass].
	Passed int64
}

// LayerStatus describes the state of one layer. Counts start when the stack
// starts.
type LayerStatus struct {
	Name string
	// Down reports whether the layer is out of use. Since is the time at which
	// it last went down or came up. Err is its last failure.
	Down  bool
	Since time.Time
	Err   error
	// Failures is the number of failed calls.
	Failures int64
	// Answered is the number of duplicates that a cache answered, or of reads
	// that a filter saved. It is not counted for the durable store.
	Answered int64
	// Filled is the number of keys that were copied into the layer. Refused is the number of
	// refused copies: the layer was full, or a removal forbade the copy.
	Filled, Refused int64
	// PendingRemovals is the number of removals that have not yet reached the layer.
	PendingRemovals int
	// Filter reports whether the layer is a filter. Rate is the filter's error
	// rate. Fill is the share of its bits that are set, or negative if the
	// filter has no method Fill() float64.
	Filter     bool
	Rate, Fill float64
	// FalsePositives counts keys that passed the filter and all filters below
	// it, but had no record in the durable store. It includes keys whose record
	// was removed or had expired.
	FalsePositives int64
}

// Status returns the state of the stack and its layers. It does not block.
func (s *Store) Status() Status {
	st := Status{Durable: s.outage.status(), Passed: s.passed.Load()}
	for _, l := range s.layers {
		ls := l.status()
		ls.Answered, ls.Filled, ls.Refused = l.answered.Load(), l.filled.Load(), l.refused.Load()
		ls.PendingRemovals = l.invalid.count()
		if l.filter != nil {
			ls.Filter, ls.Rate, ls.Fill, ls.FalsePositives = true, l.filter.Rate(), -1, l.mistaken.Load()
			if full, ok := l.filter.(interface{ Fill() float64 }); ok {
				ls.Fill = full.Fill()
			}
		}
		st.Layers = append(st.Layers, ls)
	}
	return st
}
