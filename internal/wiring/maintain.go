package wiring

import (
	"context"
	"errors"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// Maintain returns a function that cleans up the store with this name until its
// context ends, as configured. For each clean-up it reports how many keys are
// gone and why it ended early. Maintain returns nil if the store deletes expired
// keys itself.
func Maintain(f *config.File, name string, store semel.Store) func(ctx context.Context, pass func(gone int64, err error)) error {
	s := f.Decider(name)
	if s == nil {
		return nil
	}
	cleaner, ok := s.Spec.(config.Cleaner)
	if !ok {
		return nil
	}
	return cleaner.Clean(store)
}

// UnderWay returns the amount that a pipeline has under way. It stays 0 if the
// pipeline does not know.
func UnderWay(p config.Runnable) Amount {
	if of, ok := bare(p).(Amount); ok {
		return of
	}
	return none{}
}

// bare returns the pipeline without its wrapper.
func bare(p config.Runnable) any {
	if r, ok := p.(*redacted); ok {
		p = r.Runnable
	}
	return p
}

// Lag returns the lag of a pipeline's source; see pipeline.Lagger. If the lag is
// not known, the error wraps errors.ErrUnsupported.
func Lag(ctx context.Context, p config.Runnable) ([]pipeline.Lag, error) {
	of, ok := bare(p).(pipeline.Lagger)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	lags, err := of.Lag(ctx)
	return lags, hide(p, err)
}

// Waiting returns the number of parked messages of a pipeline; see
// pipeline.Runner. If the number is not known, the error wraps
// errors.ErrUnsupported.
func Waiting(ctx context.Context, p config.Runnable) (int64, error) {
	of, ok := bare(p).(interface {
		Waiting(ctx context.Context) (int64, error)
	})
	if !ok {
		return 0, errors.ErrUnsupported
	}
	n, err := of.Waiting(ctx)
	return n, hide(p, err)
}

// Loss returns a function that reports the share of new messages that a pipeline
// drops now; see semel.KeyFilter. It returns nil if the pipeline drops none.
func Loss(p config.Runnable) (ratio func() float64) {
	if of, ok := bare(p).(lossy); ok {
		return of.filter.Rate
	}
	return nil
}

// lossy is a pipeline whose filter decides alone.
type lossy struct {
	*pipeline.Runner
	filter semel.KeyFilter
}

func hide(p config.Runnable, err error) error {
	if r, ok := p.(*redacted); ok {
		return r.file.RedactError(err)
	}
	return err
}

// Amount reports how much is under way.
type Amount interface {
	UnderWay() (count int, bytes int64)
}

type none struct{}

func (none) UnderWay() (count int, bytes int64) { return 0, 0 }
