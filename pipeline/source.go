package pipeline

import (
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
)

// Source reads messages for a pipeline. One goroutine calls Read. Many goroutines call
// the other methods, even while Read runs.
//
// A source recovers by itself if it can: it reconnects, rejoins its group, or waits for
// a file to come back. An error of Read ends the pipeline.
type Source interface {
	// Read returns at least one message. The messages of a partition are in order. Read
	// blocks until there is a message, or until ctx ends and it returns the error of
	// ctx. io.EOF means that there will be no more messages. The slice belongs to the
	// caller.
	//
	// Read does not wait for more than one message. An option of the source limits
	// the number that one call returns.
	Read(ctx context.Context) ([]*Item, error)

	// Ack acknowledges items. Their outcome is durable, and the source may forget them.
	// Each item comes once, in any order. A source that remembers a position moves it
	// behind the last item before which all are settled, see [Watermark]. Ack need not
	// be durable when it returns: after a crash, acknowledged items may come again.
	// After an error the runner calls Ack again with the same items. The slice and the
	// items belong to the runner again when Ack returns.
	//
	// The items have their outcome: Decision, Result and Parked. An item that was
	// parked or dropped has an Err. A source of requests answers with the outcome.
	Ack(ctx context.Context, items []*Item) error

	// Return gives back items that were not settled. The source delivers them again
	// after delay, perhaps to another process. A source that remembers a position does
	// nothing, because the position is before these items.
	Return(ctx context.Context, items []*Item, delay time.Duration) error

	// Close makes acknowledgements durable and disconnects. The runner calls it once,
	// after the last Read has returned and all items are settled or returned. It
	// blocks at most until ctx ends.
	Close(ctx context.Context) error

	// Traits describes what else the source can do. Its answer does not change.
	Traits() SourceTraits
}

// ErrReplaced is wrapped by the error of a source whose place another process took. Do not
// open the source again: the two processes would replace each other without end.
var ErrReplaced = errors.New("another process took its place")

// SourceTraits describe what a source can do in addition to its methods. All fields are
// optional.
type SourceTraits struct {
	// Positions: each message has an Origin.Identity. A pipeline whose keys are made of
	// positions needs it: without it, all messages would have one key.
	Positions bool
	// CanReturn: the source can deliver a returned item again while it keeps reading,
	// as a queue does, or a server that answers "later". Without CanReturn, the runner
	// keeps an item until it is settled.
	CanReturn bool
	// Pause stops or resumes reading one partition. It must not block. Read may still
	// return some items of a paused partition. The runner calls Pause when a partition
	// has more than its share of the items in progress.
	Pause func(partition *Partition, paused bool)
	// Hold takes back items of one group that were not processed, in their order, because
	// an item before them waits for its next try and much is in progress. Until Resume is
	// called with the group, Read returns no item of their Partition that has the
	// RecordKey of one of them. After that, it returns the items again, in their order. The
	// goroutine that calls Read calls Hold, between two calls. Others call Resume. Neither
	// may block. Without both, such items stay in memory. The runner may end the context of
	// Read to call Hold; items that Read has taken by then must be returned.
	Hold   func(items []*Item)
	Resume func(group uint64)
	// Exhausted returns messages near the delivery limit of the server, at which it
	// deletes a message or never delivers it again. Their Err says so.
	// The runner parks them with ReasonDeliveries and acknowledges them, without
	// processing them, because a message that is not acknowledged once more may be lost.
	// Read does not return them. Exhausted blocks until there is such a message, or until
	// ctx ends. One goroutine calls it, while others call the other methods. A source has
	// either Exhausted or Hold: its messages go past those that the source holds.
	Exhausted func(ctx context.Context) ([]*Item, error)
	// Repeats: senders repeat a message until they learn that it is settled, and no position
	// tells a repetition from another message. The runner then parks a message once for each
	// key and body. A message without a key is parked once for each body with its headers,
	// and is not parked again while it is parked. Nothing is lost: a rule that finds a key
	// later finds the same one for both.
	Repeats bool
	// OfAttempt reports whether a header, in lower case, is about one delivery, so that
	// repetitions of a message differ in it: a signature with a time, or what a proxy adds.
	// With Repeats, it does not tell messages apart. Defaults to no header.
	OfAttempt func(header string) bool
	// Place describes the place of a message in the source's own words. Defaults to
	// source, partition and offset.
	Place func(o semel.Origin) string
	// Lag returns the backlog of each partition that this process has. It may ask a
	// server. It blocks at most until ctx ends, and may be called at any time. After an
	// error that wraps errors.ErrUnsupported, further calls cannot succeed.
	Lag func(ctx context.Context) ([]Lag, error)
	// Gauges returns the present values of gauges that only this kind of source has. A
	// value that is not returned disappears. The rest is as with Lag.
	Gauges func(ctx context.Context) ([]Gauge, error)
}

// validate refuses abilities that do not go together.
func (t *SourceTraits) validate() error {
	wrong := invalid.In("pipeline: SourceTraits.")
	if t.Exhausted != nil && t.Hold != nil {
		wrong.Add("Exhausted: the source also has Hold, which keeps the order of a group; messages of Exhausted would go past those that it holds: set only one of the two")
	}
	if t.Repeats && t.Positions {
		wrong.Add("Repeats: the source also has Positions, which tell repeated messages apart: set only one of the two")
	}
	return wrong.Err()
}

// UnknownLag is the value of a field of Lag that the source cannot count.
const UnknownLag = -1

// Lag is the backlog of a source.
type Lag struct {
	// Source is the topic or queue. It is empty for the whole source.
	Source    string
	Partition int32
	// Messages and Bytes count the unsettled messages in the source. A field that the
	// source cannot count is UnknownLag.
	Messages, Bytes int64
	// More: the source counted no further, and has more than that.
	More bool
}

// Gauge is a value that only one kind of source has.
type Gauge struct {
	// Name is the name of a Semel instrument, such as "dedup.outbox.oldest".
	Name string
	// Labels are the values of its labels after the pipeline, in their order.
	Labels []string
	Value  float64
}
