package app

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/retry"
)

const (
	// pollEvery is how often a pipeline reports its lag and its parked messages, if
	// the answer is quick. The calls take at most a twentieth of the time.
	pollEvery = 15 * time.Second
	// pollFirst is the first pause. The pauses then double.
	pollFirst = 500 * time.Millisecond
	// pollFor limits the time for one answer.
	pollFor = 10 * time.Second
)

// look updates the metrics and the status for the lag of a pipeline's source, its own
// gauges and the parked messages. For a filter that decides alone, it also shows the rate at which new
// messages are dropped. It runs until stop is called. Values that the pipeline
// does not know are not shown.
func (d *daemon) poll(ctx context.Context, s *state, p *Pipeline, log *slog.Logger) (stop func()) {
	name := s.name
	ctx, cancel := context.WithCancel(ctx)
	asks := []*polled{
		{what: "the lag of the source is not known", ask: func(ctx context.Context) error {
			lags, err := p.Lag(ctx)
			d.metrics.Lag(name, lags)
			s.counters.setLags(lags)
			return d.file.Advise(s.readiness.spec, config.SourcePart, err)
		}},
		{what: "the gauges of the source are not known", ask: func(ctx context.Context) error {
			gauges, err := p.Gauges(ctx)
			d.metrics.Gauges(name, gauges)
			return d.file.Advise(s.readiness.spec, config.SourcePart, err)
		}},
		{what: "parked messages cannot be counted", ask: func(ctx context.Context) error {
			asked := time.Now()
			n, err := p.Waiting(ctx)
			if err == nil {
				d.metrics.Waiting(name, n)
				s.counters.setWaiting(n, asked)
			}
			return d.file.Advise(s.readiness.spec, config.ParkedPart, err)
		}},
	}
	if ratio := p.Loss(); ratio != nil {
		asks = append(asks, &polled{ask: func(context.Context) error {
			d.metrics.Loss(name, ratio())
			return nil
		}})
	}
	var looking sync.WaitGroup
	for _, a := range asks {
		looking.Go(func() { a.now(ctx, log) })
	}
	looking.Go(func() { d.count(ctx, s, log) })
	return func() {
		cancel()
		looking.Wait()
		d.metrics.Lag(name, nil)
		d.metrics.Gauges(name, nil)
	}
}

// polled is a value that is asked for repeatedly.
type polled struct {
	what string // logged if the answer is an error
	ask  func(ctx context.Context) error
}

// now polls until ctx ends or the value turns out to be unsupported.
func (a *polled) now(ctx context.Context, log *slog.Logger) {
	failed := false
	var took time.Duration
	for every := pollFirst; ; every = min(2*every, pollEvery) {
		if retry.Sleep(ctx, max(every, 20*took)) != nil {
			return
		}
		began := time.Now()
		limited, cancel := context.WithTimeout(ctx, pollFor)
		err := a.ask(limited)
		cancel()
		switch {
		case ctx.Err() != nil, errors.Is(err, errors.ErrUnsupported):
			return
		case err != nil && !failed:
			log.Warn(a.what, "error", err)
		}
		failed = err != nil
		took = time.Since(began)
	}
}
