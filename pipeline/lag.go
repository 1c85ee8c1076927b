package pipeline

import (
	"context"
	"errors"
)

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

var _ Lagger = (*Runner)(nil)

// Lag implements Lagger for the source. It wraps errors.ErrUnsupported if that
// cannot tell.
func (r *Runner) Lag(ctx context.Context) ([]Lag, error) {
	if of, ok := r.feeds[0].source.(Lagger); ok {
		return of.Lag(ctx)
	}
	return nil, errors.ErrUnsupported
}

// Waiting returns how many messages of the pipeline are parked and wait for
// somebody to settle them. It wraps errors.ErrUnsupported if they are parked where
// they cannot be counted. It blocks at most until ctx ends and may be called at
// any time.
func (r *Runner) Waiting(ctx context.Context) (int64, error) {
	if r.lot == nil {
		return 0, errors.ErrUnsupported
	}
	return r.lot.Count(ctx, r.opts.Name)
}
