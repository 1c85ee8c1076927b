package wiring

import (
	"context"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore"
)

// maintainer is a store whose expired keys go only where somebody cleans up.
type maintainer interface {
	Maintain(ctx context.Context, opts *pgstore.MaintainOptions) error
}

// Maintain returns what cleans a store up until its context ends, and tells of
// each clean-up how many keys are gone and why it ended early; nil if the store
// forgets by itself.
func Maintain(store semel.Store) func(ctx context.Context, pass func(gone int64, err error)) error {
	of, ok := semel.Ability[maintainer](store)
	if !ok {
		return nil
	}
	return func(ctx context.Context, pass func(gone int64, err error)) error {
		return of.Maintain(ctx, &pgstore.MaintainOptions{OnPass: pass})
	}
}

// UnderWay returns what tells how much a pipeline has under way, which is nothing
// where the pipeline does not know.
func UnderWay(p Pipeline) Amount {
	if r, ok := p.(*redacted); ok {
		p = r.Pipeline
	}
	if of, ok := p.(Amount); ok {
		return of
	}
	return none{}
}

// Amount tells how much is under way.
type Amount interface {
	UnderWay() (count int, bytes int64)
}

type none struct{}

func (none) UnderWay() (count int, bytes int64) { return 0, 0 }
