package pipeline

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

// Parked is a message that was put aside.
type Parked struct {
	// ID names it within its lot. It is made from the pipeline, the key, the
	// message's origin and its body, so that the same message parked twice is
	// parked once.
	ID       string
	Pipeline string
	Key      semel.Key
	// Reason says in a few fixed words why: "attempts", "permanent", "late",
	// "mismatch", "unknown", "key-missing", "key-invalid". Error is the last
	// error.
	Reason, Error string
	// Attempts counts the deliveries that were begun.
	Attempts int
	// Redrives counts how often it came back from the lot before.
	Redrives int
	// At is when it was put aside.
	At time.Time
	// Queued: somebody asked for it to be redriven.
	Queued bool
	// Message is the original, with its headers and origin.
	Message semel.Message
}

// Parker puts messages aside. Its method may be called by many goroutines at
// once.
type Parker interface {
	// Park keeps messages. They are durable when it returns nil. One with the
	// ID of one that is there replaces it. It blocks until then, and holds nothing
	// of list behind that: the memory of bodies and headers is used again. An error that is
	// permanent, see [semel.Permanent], ends the pipeline; others are tried again.
	Park(ctx context.Context, list []Parked) error
}

// Lot keeps messages that were put aside until somebody settles them. Several
// processes may use one lot at once. Errors of a message that is not there wrap
// ErrNotParked.
type Lot interface {
	Parker
	// Parked lists what a pipeline has parked, oldest first, until fn returns
	// false. All pipelines are listed for "". What a lot cannot read it may
	// pass over, and names it in an error that wraps ErrUnreadable, behind all others.
	Parked(ctx context.Context, pipeline string, fn func(*Parked) bool) error
	// Count returns how many messages a pipeline has parked, or all for "". It
	// does not read them.
	Count(ctx context.Context, pipeline string) (int64, error)
	// Get returns one message.
	Get(ctx context.Context, id string) (*Parked, error)
	// Queue asks for messages to be redriven by whoever runs their pipeline.
	Queue(ctx context.Context, ids []string) error
	// Queued returns messages of a pipeline that are to be redriven, oldest
	// request first, at most max. What cannot be read is not among them.
	Queued(ctx context.Context, pipeline string, max int) ([]*Parked, error)
	// Remove takes a message out: it was redriven, or somebody settled it.
	// What was removed, how ("redriven", "skipped", "done"), by whom and why is
	// kept in the lot's audit log.
	Remove(ctx context.Context, id, how, actor, reason string) error
	// Close ends what the lot has open.
	Close() error
}
