package pipeline

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

// Source is where messages come from. One goroutine calls Read. Many goroutines call
// the other methods, also while Read runs.
//
// A source recovers by itself where it can: it reconnects, rejoins its group, or waits
// for a file to come back. An error of Read ends the pipeline.
type Source interface {
	// Read returns messages, at least one, in the order of each partition. It blocks
	// until there are some, or until ctx ends: it then returns the error of ctx.
	// io.EOF means that no more will come. The slice belongs to the caller.
	//
	// Read returns the messages that are there and does not wait for more. An option
	// of the source bounds what one call returns.
	Read(ctx context.Context) ([]*Item, error)

	// Ack acknowledges items. Their fate is durable, and the source may forget them.
	// Each item comes once, in any order. A source that forgets up to a position
	// moves it behind the last item before which all are settled, see [Watermark].
	// Ack need not be durable when it returns: after a crash, acknowledged items may
	// come again. After an error the runner calls again with the same items. Slice
	// and items belong to the runner again when Ack returns.
	//
	// The items have their outcome: Decision, Result, Parked and Err, which is set
	// for an item that was parked or dropped. A source that takes requests answers
	// with it.
	Ack(ctx context.Context, items []*Item) error

	// Return gives items back that were not settled. The source delivers them again
	// after delay, perhaps to another process. A source that forgets up to a position
	// does nothing, because the items are behind it.
	Return(ctx context.Context, items []*Item, delay time.Duration) error

	// Close makes acknowledgements durable and disconnects. The runner calls it once,
	// after the last Read has returned and all items are settled or returned. It
	// blocks at most until ctx ends.
	Close(ctx context.Context) error

	// Traits says what else the source can do. Its answer does not change.
	Traits() SourceTraits
}

// SourceTraits say what a source can do in addition to the methods of Source. The zero value is a
// source that can do nothing more.
type SourceTraits struct {
	// CanReturn: Return has an item delivered again while the source reads on, as a
	// queue does, or a server that answers "later". From a source without it, the
	// runner keeps an item until it is settled.
	CanReturn bool
	// Pause stops or resumes reading from one partition while others go on. It must not
	// block. Items of the partition that were on their way may still come. The runner
	// calls it when a partition takes more than its share of what may be under way.
	Pause func(partition *Partition, paused bool)
	// Place names the place of a message in the source's own words. Defaults to
	// source, partition and offset.
	Place func(o semel.Origin) string
}

// UnknownLag stands where a source cannot count in a unit.
const UnknownLag = -1

// Lag is how far a source is behind.
type Lag struct {
	// Source is the topic or queue; "" stands for all that the source has.
	Source    string
	Partition int32
	// Messages and Bytes are how many are there and not settled. A source that
	// does not count in one of them says UnknownLag.
	Messages, Bytes int64
}

// Lagger is implemented by a source that knows how far it is behind.
type Lagger interface {
	// Lag returns how much is there and not settled, for each partition that this
	// process has now. It may ask a server and blocks at most until ctx ends. It may
	// be called at any time. An error that wraps errors.ErrUnsupported will come
	// again.
	Lag(ctx context.Context) ([]Lag, error)
}
