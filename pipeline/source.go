package pipeline

import (
	"context"
	"time"

	"github.com/semel-dev/semel"
)

// Source is where messages come from. Read is called by one goroutine, the
// other methods by many at once and beside Read.
//
// A source mends what it can by itself: it connects again, rejoins its group,
// waits for a file to come back. An error of Read ends the pipeline.
type Source interface {
	// Read returns messages, at least one, in the order of each partition. It
	// blocks until there are some or ctx ends, whose error it returns. io.EOF
	// means that no more will come. The slice belongs to the caller.
	//
	// It returns what is there, and does not wait for more. What one call
	// returns is bounded by an option of the source.
	Read(ctx context.Context) ([]*Item, error)

	// Ack tells that items are settled: their fate is durable, and the source
	// may forget them. Each item comes once, in any order; a source that
	// forgets up to a position moves it behind the last item before which all
	// are settled (see [Watermark]). Ack need not be durable when it returns:
	// what was acknowledged may come again after a crash. An error means that
	// it was not noted; the runner calls again with the same items. Slice and items
	// are the runner's again when Ack returns.
	//
	// The outcome is in the items: Decision, Result and Err, which is set for
	// an item that was put aside or dropped. A source that answers, such as
	// one that takes requests, answers with it.
	Ack(ctx context.Context, items []*Item) error

	// Return gives items back that were not settled, to be delivered again, to
	// whomever, not before delay is over. A source that forgets up to a
	// position does nothing: the items are behind it.
	Return(ctx context.Context, items []*Item, delay time.Duration) error

	// Close gives back what was not settled, makes acknowledgements durable
	// and leaves. It is called once, after Read has returned for the last time
	// and all items are settled or returned, and blocks at most until ctx ends.
	Close(ctx context.Context) error

	// Traits says what else the source can do. Its answer does not change.
	Traits() SourceTraits
}

// SourceTraits say what a source can do beside what Source asks. The zero value is a
// source that can do nothing more.
type SourceTraits struct {
	// CanReturn: Return has an item delivered again while the source goes on, as a
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
	// Source is the topic or queue; "" is all that the source has.
	Source    string
	Partition int32
	// Messages and Bytes are how many are there and not settled. A source that
	// does not count in one of them says UnknownLag.
	Messages, Bytes int64
}

// Lagger is the ability of a source to say how far it is behind.
type Lagger interface {
	// Lag returns how much is there and not settled, for each partition that the
	// source has now: what others have is theirs to tell. It may ask a server
	// and blocks at most until ctx ends. It may be called at any time. An error
	// that wraps errors.ErrUnsupported will come again.
	Lag(ctx context.Context) ([]Lag, error)
}
