package pipeline

import (
	"time"

	"github.com/semel-dev/semel"
)

// Observer receives the events of a pipeline. It must be safe for concurrent use and
// must not block. Events of single keys come through Observe, as from a guard.
type Observer interface {
	semel.Observer
	ObservePipeline(Event)
}

// EventKind tells what happened in a pipeline.
type EventKind uint8

const (
	// EventRead: Count messages of Bytes came from the source.
	EventRead EventKind = iota + 1
	// EventDecided: Count messages got Decision, for Reason.
	EventDecided
	// EventDelivered: Count messages were delivered in Elapsed; Err is the error of
	// those that failed, if all have one.
	EventDelivered
	// EventSettled: Count messages are acknowledged to the source. Elapsed is the
	// time since they were read, of the oldest of them.
	EventSettled
	// EventRetried: Count messages failed and will be delivered again. Err says why.
	// With HeldReason, a message has waited Elapsed for a key that another holder
	// has, and goes on waiting. This event comes once for each message.
	EventRetried
	// EventParked, EventDropped: Count messages were parked, or dropped, for Reason.
	EventParked
	EventDropped
	// EventReturned: Count messages went back to the source undone.
	EventReturned
	// EventPaused: the pipeline stands still since Err; Reason is "sink" or
	// "store". With Reason "source", a part of the source has more messages and
	// cannot be read. EventResumed: it resumes after Elapsed.
	EventPaused
	EventResumed
	// EventFailedOpen: Count messages were delivered without a decision, because
	// the store did not answer and the pipeline passes.
	EventFailedOpen
	// EventSourceChanged: the source connected, lost its connection, was given or
	// lost partitions; Reason says it in a few words.
	EventSourceChanged
	// EventStandby: the copies that are kept of what other processes work on lack
	// Count records; Reason says in a few words what they are.
	EventStandby
)

// HeldReason is the reason of an EventRetried for a message that waits for longer
// than Options.Wait for a key that another holds, and that its source cannot take
// back. Its Err is a [*semel.InFlightError].
const HeldReason = "in flight elsewhere"

// String returns the kind's name as it is used in logs.
func (k EventKind) String() string {
	names := [...]string{"", "read", "decided", "delivered", "settled", "retried", "parked", "dropped", "returned", "paused", "resumed", "failed_open", "source_changed", "standby"}
	if int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// Event is one thing that a pipeline reports. Fields that do not belong to its
// Kind are zero. Neither a key nor anything of a message may become the label of
// a metric.
type Event struct {
	Kind     EventKind
	Pipeline string
	Count    int
	Bytes    int64
	Decision semel.Decision
	Reason   string
	Elapsed  time.Duration
	Err      error
	// Item is the message, where one is concerned that people will look for:
	// of EventParked, EventDropped and EventRetried. It is only valid during the call.
	Item *Item
}
