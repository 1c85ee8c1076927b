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
	if s := f.Decider(name); s != nil {
		if cleaner, ok := s.Spec.(config.Cleaner); ok {
			return cleaner.Clean(store)
		}
	}
	return nil
}

// UnderWay returns the amount that the pipeline has under way. It is 0 if the
// pipeline does not know.
func (p *Pipeline) UnderWay() (count int, bytes int64) {
	if of, ok := p.Runnable.(interface {
		UnderWay() (count int, bytes int64)
	}); ok {
		return of.UnderWay()
	}
	return 0, 0
}

// Lag returns the lag of the source; see config.Runnable.
func (p *Pipeline) Lag(ctx context.Context) ([]pipeline.Lag, error) {
	lags, err := p.Runnable.Lag(ctx)
	return lags, p.file.RedactError(err)
}

// Gauges returns the source's own gauges; see config.Runnable.
func (p *Pipeline) Gauges(ctx context.Context) ([]pipeline.Gauge, error) {
	gauges, err := p.Runnable.Gauges(ctx)
	return gauges, p.file.RedactError(err)
}

// Waiting returns the number of parked messages; see pipeline.Runner. If the number
// is not known, the error wraps errors.ErrUnsupported.
func (p *Pipeline) Waiting(ctx context.Context) (int64, error) {
	of, ok := p.Runnable.(interface {
		Waiting(ctx context.Context) (int64, error)
	})
	if !ok {
		return 0, errors.ErrUnsupported
	}
	n, err := of.Waiting(ctx)
	return n, p.file.RedactError(err)
}

// Loss returns a function that reports the share of new messages that the pipeline
// drops now; see semel.KeyFilter. It returns nil if the pipeline drops none.
func (p *Pipeline) Loss() (ratio func() float64) {
	if of, ok := p.Runnable.(lossy); ok {
		return of.filter.Rate
	}
	return nil
}

// lossy is a pipeline whose filter decides alone.
type lossy struct {
	*pipeline.Runner
	filter semel.KeyFilter
}
