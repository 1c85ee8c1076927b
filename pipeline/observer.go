package pipeline

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

// Observer receives the events of a pipeline. It must be safe for concurrent use and
// must not block. Observe receives the events of single keys, as from a guard.
type Observer interface {
	semel.Observer
	ObservePipeline(Event)
}

// Tracer is an Observer that also follows messages, for instance to make spans. If
// Options.Observer is a Tracer, the runner calls it too. Give it to the session's guard
// as well. Its methods must not block.
type Tracer interface {
	semel.Tracer
	// Begin is called before a batch is processed. It may set the Trace of each item.
	// It may also replace Message.Headers by another slice, so that the sink sends on
	// a trace context. It must not change the old slice.
	Begin(ctx context.Context, pipeline string, items []*Item)
	// In returns a context for work on items that have begun: their delivery by the
	// session, or their parking.
	In(ctx context.Context, items []*Item) context.Context
	// End is called once for each item that has begun, when its outcome is known, and
	// before it is acknowledged or waits for its next attempt. It sets Trace to nil and
	// Message.Headers to the slice that it was.
	End(items []*Item)
}

// EventKind is the kind of a pipeline event.
type EventKind uint8

const (
	// EventRead: Count messages with Bytes were read.
	EventRead EventKind = iota + 1
	// EventDecided: Count messages got Decision, for Reason.
	EventDecided
	// EventDelivered: Count messages were delivered in Elapsed. With Err, Count
	// messages of the batch failed; Err is the error of one of them.
	EventDelivered
	// EventFiltered: a FilterMap filtered Count fresh messages out. They are settled
	// without a delivery.
	EventFiltered
	// EventSettled: Count messages were acknowledged to the source. Elapsed is the time
	// since the oldest of them was read.
	EventSettled
	// EventRetried: Count messages failed with Err and will be delivered again. With
	// eventreason.Held, a message has waited Elapsed for a key that another holder has, and
	// keeps waiting. There is one such event for each message.
	EventRetried
	// EventParked, EventDropped: Count messages were parked, or dropped, for Reason. With
	// ReasonParkedBefore, they came again after they were parked.
	EventParked
	EventDropped
	// EventReturned: Count unsettled messages went back to the source.
	EventReturned
	// EventPaused: Err stopped the work of the pipeline. Reason is "sink", "store",
	// "parking" or "acknowledging". With Reason "source", a part of the source has more
	// messages and cannot be read. EventResumed: work resumes after Elapsed, perhaps because
	// sink and store answer again while no message waits.
	EventPaused
	EventResumed
	// EventFailedOpen: Count messages were delivered without a decision, because the
	// store did not answer and the session passes them.
	EventFailedOpen
	// EventSourceChanged: the source connected or lost its connection, or got or lost
	// partitions. Reason describes the change.
	EventSourceChanged
	// EventStandby: a standby copy of the state of other processes lacks Count records.
	// Reason describes the copy.
	EventStandby
	// EventStalled: the pipeline has work and has settled nothing for Elapsed. Count
	// messages are in progress, and Item has the origin of the oldest. Reason says what
	// the pipeline waits for, without a part of a message. Err is the error that it
	// waits to pass, or nil. The event comes after 10 s, and again after 1, 5, 15 and
	// every further 15 minutes. EventMoves: after Elapsed it settles messages again,
	// or has no more work.
	EventStalled
	EventMoves
	// EventDiffering: Count duplicates differ in content from the message of their key
	// that took effect, so the key may be too coarse. Item has the key and the origin of
	// one of them. If there are very many keys, only a sample of them is compared. With
	// Options.Fingerprint there are no such events, because such messages are mismatches.
	EventDiffering
)

// String returns the kind's name in logs.
func (k EventKind) String() string {
	names := [...]string{"", "read", "decided", "delivered", "filtered", "settled", "retried", "parked", "dropped", "returned", "paused", "resumed", "failed_open", "source_changed", "standby", "stalled", "moves_again", "differing"}
	if int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// Event is an event of a pipeline. Fields that its Kind does not use are zero. Do not
// make a key, or any part of a message, the label of a metric.
type Event struct {
	Kind     EventKind
	Pipeline string
	Count    int
	Bytes    int64
	Decision semel.Decision
	Reason   string
	Elapsed  time.Duration
	Err      error
	// Attempt is the number of tries before an EventPaused, and Next the time until the
	// next try. Each is zero if it is not known.
	Attempt int
	Next    time.Duration
	// Item is the message of an EventParked, EventDropped, EventRetried, EventStalled
	// or EventDiffering. It is only valid during the call.
	Item *Item
	// Items are the messages of an EventDecided of a [Runner], unless they are fresh, and of an
	// EventFiltered or EventDiffering. They are only valid during the call.
	Items []*Item
}
