package pipeline_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// counted counts how often a source is closed.
type counted struct {
	*listSource
	mu     sync.Mutex
	closes int
}

func (c *counted) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closes++
	c.mu.Unlock()
	return c.listSource.Close(ctx)
}

func discard(context.Context, pipeline.Delivery) (semel.Result, error) { return semel.Result{}, nil }

func phases(t *testing.T) *pipeline.TwoPhase {
	t.Helper()
	s, err := pipeline.NewTwoPhase(newStore(t), pipeline.NewHandler(discard), nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func stopping(t *testing.T) *pipeline.Options {
	return &pipeline.Options{Key: rule(t), OnMissing: pipeline.MissingStop, OnLate: pipeline.Stop, OnMismatch: pipeline.Stop, Failure: pipeline.Failure{Then: pipeline.Stop}}
}

// refused checks that an error reports an invalid call, in these words.
func refused(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("got %v, want a refused request", err)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %q", err, word)
		}
	}
}

func TestARunnerRunsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &counted{listSource: newListSource(message(pipeline.NewPartition("a"), 0, "x", ""))}
		source.endless = true
		r, err := pipeline.NewRunner(source, phases(t), stopping(t))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		synctest.Wait()
		refused(t, r.Run(ctx), "once")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		refused(t, r.Run(t.Context()), "once")
		if source.closes != 1 || len(source.acked) != 1 {
			t.Errorf("the source was closed %d times, and %d messages were acknowledged; want 1 and 1", source.closes, len(source.acked))
		}
	})
}

func TestMissingPartsAreNamed(t *testing.T) {
	t.Parallel()
	sink := pipeline.NewHandler(discard)
	_, err := pipeline.NewRunner(nil, nil, stopping(t))
	refused(t, err, "source is nil", "session is nil")
	_, err = pipeline.NewRunner(newListSource(), nil, stopping(t))
	refused(t, err, "session is nil")
	_, err = pipeline.NewTwoPhase(nil, nil, nil)
	refused(t, err, "store is nil", "sink is nil")
	_, err = pipeline.NewTwoPhase(newStore(t), nil, nil)
	refused(t, err, "sink is nil")
	_, err = pipeline.OpenDeadLetterDir("")
	refused(t, err, "no directory")
	for word, construct := range map[string]func(){
		"function is nil": func() { pipeline.NewHandler(nil) },
		"filter is nil":   func() { pipeline.NewLossy(nil, sink, nil) },
	} {
		func() {
			defer func() {
				err, _ := recover().(error)
				refused(t, err, word)
			}()
			construct()
		}()
	}
}

// keeping is a source that holds groups, and knows messages near a delivery limit.
type keeping struct{ *listSource }

func (s keeping) Traits() pipeline.SourceTraits {
	traits := s.listSource.Traits()
	traits.Hold, traits.Resume = func([]*pipeline.Item) {}, func(uint64) {}
	traits.Exhausted = func(ctx context.Context) ([]*pipeline.Item, error) { <-ctx.Done(); return nil, ctx.Err() }
	traits.Repeats = true // and it has Positions
	return traits
}

func TestTraitsThatExcludeEachOtherAreRefused(t *testing.T) {
	t.Parallel()
	s := newListSource()
	_, err := pipeline.NewRunner(keeping{s}, phases(t), stopping(t))
	refused(t, err, "SourceTraits.Exhausted", "Hold", "set only one")
	refused(t, err, "SourceTraits.", "Repeats", "Positions", "set only one")
}

// placeless is a source that returns an item without a partition.
type placeless struct{ *listSource }

func (s *placeless) Read(ctx context.Context) ([]*pipeline.Item, error) {
	items, err := s.listSource.Read(ctx)
	if errors.Is(err, io.EOF) {
		return nil, err
	}
	return append(items, &pipeline.Item{}), err
}

// TestAnItemWithoutPartitionEndsThePipelineAlone: the process survives, and the runner
// closes the source.
func TestAnItemWithoutPartitionEndsThePipelineAlone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		source := &placeless{newListSource(message(pipeline.NewPartition("a"), 0, "x", ""))}
		r, err := pipeline.NewRunner(source, phases(t), stopping(t))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		refused(t, r.Run(ctx), "source: item 1 of the 2", "placeless.Read", "no Partition")
		if !source.closed || len(source.acked) > 0 {
			t.Errorf("closed %v, %d acknowledged", source.closed, len(source.acked))
		}
	})
}

// counting is a source with a backlog and a gauge.
type counting struct{ *listSource }

func (counting) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{
		Lag: func(context.Context) ([]pipeline.Lag, error) {
			return []pipeline.Lag{{Source: "in", Messages: 7, Bytes: pipeline.UnknownLag}}, nil
		},
		Gauges: func(context.Context) ([]pipeline.Gauge, error) {
			return []pipeline.Gauge{{Name: "oldest", Value: 3}}, nil
		},
	}
}

// TestBacklogAndGaugesPassAWrapper wraps the source in a type that knows no more than
// the interface.
func TestBacklogAndGaugesPassAWrapper(t *testing.T) {
	t.Parallel()
	wrapped := struct{ pipeline.Source }{counting{newListSource()}}
	r, err := pipeline.NewRunner(wrapped, phases(t), stopping(t))
	if err != nil {
		t.Fatal(err)
	}
	if lags, err := r.Lag(t.Context()); err != nil || len(lags) != 1 || lags[0].Messages != 7 {
		t.Errorf("the backlog is %+v, %v", lags, err)
	}
	if gauges, err := r.Gauges(t.Context()); err != nil || len(gauges) != 1 || gauges[0].Value != 3 {
		t.Errorf("the gauges are %+v, %v", gauges, err)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
	if r, err = pipeline.NewRunner(newListSource(), phases(t), stopping(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Lag(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("the backlog of a source that counts none: %v", err)
	}
	if _, err := r.Gauges(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("the gauges of a source that has none: %v", err)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
