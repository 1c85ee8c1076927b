package tiered

import "time"

// EventKind tells what happened to a layer.
type EventKind uint8

const (
	// EventDown: a layer failed and is left out from now on. Err has its answer.
	EventDown EventKind = iota + 1
	// EventUp: a layer that was down answered and is in use again.
	EventUp
	// EventPassed: the durable store did not answer, and Keys claims were answered
	// with Fresh although nobody knows whether their effects have happened.
	// Err is the durable store's answer, if it was asked.
	EventPassed
	// EventUnreached: Keys removals could not reach a layer. This stack does not
	// believe it about them until they have.
	EventUnreached
)

// String returns the kind's name as it is used in logs.
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
	// Layer is the layer's name, and "durable" for the durable store.
	Layer string
	Keys  int
	Err   error
}

// Status is how a stack and its layers do.
type Status struct {
	// Layers are the layers in their order.
	Layers []LayerStatus
	// Durable is the durable store. It is down between a call that it did not
	// answer and the next one that it answered.
	Durable LayerStatus
	// Passed is how many claims were answered with Fresh under [Pass].
	Passed int64
}

// LayerStatus is how one layer does. Counts are from the start of the stack.
type LayerStatus struct {
	Name string
	// Down says that the layer is left out, Since when it last went down or
	// came up, Err how it failed last.
	Down  bool
	Since time.Time
	Err   error
	// Failures is how many calls failed.
	Failures int64
	// Answered is how many duplicates a cache answered, and how many reads a
	// filter saved; of the durable store it is not counted.
	Answered int64
	// Filled is how many keys were copied into the layer, Refused how many it
	// did not take: it was full, or a removal forbade it.
	Filled, Refused int64
	// Owed is how many removals have not yet reached the layer.
	Owed int
	// Filter says that it is a filter. Rate is its error rate, Fill the share of
	// its bits that are set, below 0 if it does not tell by a method Fill() float64.
	Filter     bool
	Rate, Fill float64
	// FalsePositives is how many keys a filter called maybe there, and no filter
	// below it new, of which the durable store had no record, also because it was
	// removed or had expired.
	FalsePositives int64
}

// Status returns how the stack and its layers do. It does not block.
func (s *Store) Status() Status {
	st := Status{Durable: s.outage.status(), Passed: s.passed.Load()}
	for _, l := range s.layers {
		ls := l.status()
		ls.Answered, ls.Filled, ls.Refused = l.answered.Load(), l.filled.Load(), l.refused.Load()
		ls.Owed = l.bars.owing()
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
