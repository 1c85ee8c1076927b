package app

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/pipeline"
)

// TestAPipelineThatIsBehindSaysForHowLongAndWhy lets workers process batches for ten seconds.
func TestAPipelineThatIsBehindSaysForHowLongAndWhy(t *testing.T) {
	t.Parallel()
	const workers = 2
	lag := func(messages, bytes int64) pipeline.Lag { return pipeline.Lag{Messages: messages, Bytes: bytes} }
	for name, c := range map[string]struct {
		lag         pipeline.Lag
		claim, sink time.Duration // of a batch; negative: there is no guard
		batch       int
		every       time.Duration // a worker begins a batch
		want        admin.Limit
		left        float64 // in seconds
	}{
		"a slow sink":            {lag(2906, -1), 3 * time.Millisecond, 247 * time.Millisecond, 1, 250 * time.Millisecond, admin.LimitSink, 363},
		"a slow store":           {lag(1000, -1), 150 * time.Millisecond, 50 * time.Millisecond, 10, 200 * time.Millisecond, admin.LimitStore, 10},
		"a source that trickles": {lag(1000, -1), time.Millisecond, time.Millisecond, 1, time.Second, admin.LimitSource, 500},
		"one transaction":        {lag(2000, -1), -1, 100 * time.Millisecond, 10, 100 * time.Millisecond, admin.LimitWorkers, 10},
		"a file":                 {lag(pipeline.UnknownLag, 80_000), 3 * time.Millisecond, 247 * time.Millisecond, 1, 250 * time.Millisecond, admin.LimitSink, 100},
		"nearly at the end":      {lag(79, -1), 3 * time.Millisecond, 247 * time.Millisecond, 1, 250 * time.Millisecond, "", 0},
		"nothing settled":        {lag(5, -1), 0, 0, 0, time.Second, "", math.Inf(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var counters counters
				counters.setLags([]pipeline.Lag{c.lag})
				began := time.Now()
				counters.sample()
				for second := 1; second <= 10; second++ {
					for next := began.Add(time.Duration(second-1) * time.Second); next.Before(began.Add(time.Duration(second) * time.Second)); next = next.Add(c.every) {
						for range workers {
							if c.batch == 0 {
								continue
							}
							counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventRead, Count: c.batch, Bytes: 100 * int64(c.batch)})
							took := c.sink
							if c.claim >= 0 {
								counters.Observe(semel.Event{Kind: semel.EventDecided, Count: c.batch, Decision: semel.Fresh, Elapsed: c.claim})
								counters.Observe(semel.Event{Kind: semel.EventCompleted, Count: c.batch, Elapsed: c.sink})
								took += c.claim
							}
							counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventDelivered, Count: c.batch, Elapsed: took})
							counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventSettled, Count: c.batch})
						}
					}
					time.Sleep(time.Second)
					counters.sample()
				}
				got := counters.status(workers).Pace
				switch {
				case c.left == 0:
					if got != nil {
						t.Errorf("it is behind: %+v", *got)
					}
					return
				case got == nil:
					t.Fatal("it is not behind")
				case math.IsInf(c.left, 1):
					if got.LeftSeconds != nil || got.BatchSeconds != nil {
						t.Errorf("got %+v", *got)
					}
					return
				}
				if got.Limit != c.want || math.Abs(*got.LeftSeconds-c.left) > 0.02*c.left || got.Workers != workers || got.Messages != float64(c.batch) {
					t.Errorf("limit %q, %.1f s left, %d workers, %v messages in a batch; want %q, %.1f s", got.Limit, *got.LeftSeconds, got.Workers, got.Messages, c.want, c.left)
				}
				if guarded := got.ClaimSeconds != nil; guarded != (c.claim >= 0) || guarded && (math.Abs(*got.ClaimSeconds-c.claim.Seconds()) > 1e-6 || math.Abs(*got.SinkSeconds-c.sink.Seconds()) > 1e-6) {
					t.Errorf("claim %v, sink %v", got.ClaimSeconds, got.SinkSeconds)
				}
			})
		})
	}
}
