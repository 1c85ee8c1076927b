package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

// pacedSource has a message every so often, or as many as the pipeline takes.
type pacedSource struct {
	every     time.Duration
	group     []byte
	partition *pipeline.Partition
	read      int
}

func (s *pacedSource) Read(ctx context.Context) (items []*pipeline.Item, err error) {
	select {
	case <-time.After(s.every):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	body := append(fmt.Appendf(nil, `{"id":"%d"}`, s.read), bytes.Repeat([]byte(" "), 85)...)
	it := &pipeline.Item{Partition: s.partition, Message: semel.Message{Body: body, RecordKey: s.group, Origin: semel.Origin{Source: "s", Offset: int64(s.read)}}}
	s.read++
	return []*pipeline.Item{it}, nil
}

func (s *pacedSource) Ack(context.Context, []*pipeline.Item) error { return nil }
func (s *pacedSource) Return(context.Context, []*pipeline.Item, time.Duration) error {
	return nil
}
func (s *pacedSource) Close(context.Context) error   { return nil }
func (s *pacedSource) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{} }

// pacedStore takes some time for each call.
type pacedStore struct {
	semel.Store
	takes time.Duration
}

func (s pacedStore) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	<-time.After(s.takes)
	return s.Store.Claim(ctx, reqs, answers)
}

func (s pacedStore) Complete(ctx context.Context, reqs []semel.CompleteRequest, errs []error) error {
	<-time.After(s.takes)
	return s.Store.Complete(ctx, reqs, errs)
}

// pacedSink takes some time for each batch, and parks take some time if it refuses messages.
type pacedSink struct {
	takes, parks time.Duration
	batch        int
}

func (s pacedSink) Deliver(_ context.Context, items []*pipeline.Item) {
	<-time.After(s.takes)
	for _, it := range items {
		if s.parks > 0 {
			it.Err = semel.Permanent(errors.New("refused"))
		}
	}
}

func (s pacedSink) Park(context.Context, []pipeline.Parked) error {
	<-time.After(s.parks)
	return nil
}

func (s pacedSink) Close(context.Context) error { return nil }
func (s pacedSink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{MaxBatch: s.batch} }

// TestAPipelineThatIsBehindSaysForHowLongAndWhy lets a pipeline work for twenty seconds.
func TestAPipelineThatIsBehindSaysForHowLongAndWhy(t *testing.T) {
	t.Parallel()
	const workers = 2
	rule, err := key.ParseRule(".id")
	if err != nil {
		t.Fatal(err)
	}
	lag := func(messages, bytes int64) pipeline.Lag { return pipeline.Lag{Messages: messages, Bytes: bytes} }
	for name, c := range map[string]struct {
		lag   pipeline.Lag
		store time.Duration // of a call; negative: there is no store
		sink  pacedSink
		every time.Duration // the source has a message
		group string        // of all messages; empty: each has its own
		want  admin.Limit
		left  float64 // in seconds
	}{
		"a slow sink":             {lag: lag(2906, -1), store: 3 * time.Millisecond, sink: pacedSink{takes: 244 * time.Millisecond, batch: 1}, want: admin.LimitSink, left: 363},
		"a slow store":            {lag: lag(2000, -1), store: 100 * time.Millisecond, sink: pacedSink{takes: 2 * time.Millisecond, batch: 10}, want: admin.LimitStore, left: 20},
		"both are slow":           {lag: lag(2000, -1), store: 50 * time.Millisecond, sink: pacedSink{takes: 100 * time.Millisecond, batch: 10}, want: admin.LimitSink, left: 20},
		"a source that trickles":  {lag: lag(1000, -1), store: time.Millisecond, sink: pacedSink{takes: time.Millisecond, batch: 1}, every: 500 * time.Millisecond, want: admin.LimitSource, left: 500},
		"no store":                {lag: lag(4000, -1), store: -1, sink: pacedSink{takes: 100 * time.Millisecond, batch: 10}, want: admin.LimitWorkers, left: 20},
		"a file":                  {lag: lag(pipeline.UnknownLag, 80_000), store: 3 * time.Millisecond, sink: pacedSink{takes: 244 * time.Millisecond, batch: 1}, want: admin.LimitSink, left: 100},
		"all messages are parked": {lag: lag(1000, -1), store: time.Millisecond, sink: pacedSink{takes: time.Millisecond, parks: 100 * time.Millisecond, batch: 1}, want: admin.LimitParking, left: 51},
		"messages of one group":   {lag: lag(1000, -1), store: time.Millisecond, sink: pacedSink{takes: 98 * time.Millisecond, batch: 1}, group: "a", want: "", left: 100},
		"nearly at the end":       {lag: lag(70, -1), store: 3 * time.Millisecond, sink: pacedSink{takes: 244 * time.Millisecond, batch: 1}},
		"nothing settled":         {lag: lag(5, -1), store: time.Millisecond, sink: pacedSink{batch: 1}, every: time.Hour, left: math.Inf(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				keys, err := memstore.New(nil)
				if err != nil {
					t.Fatal(err)
				}
				s := &state{}
				session := pipeline.Session(pipeline.NewDirect(c.sink, nil))
				if c.store >= 0 {
					session, err = pipeline.NewTwoPhase(pacedStore{keys, c.store}, c.sink, &pipeline.TwoPhaseOptions{Guard: semel.GuardOptions{Observer: &s.counters}})
				}
				if err != nil {
					t.Fatal(err)
				}
				source := &pacedSource{every: c.every, partition: pipeline.NewPartition("s")}
				if c.group != "" {
					source.group = []byte(c.group)
				}
				runner, err := pipeline.NewRunner(source, session, &pipeline.Options{Key: rule, Workers: workers, Batch: c.sink.batch, MaxItems: 200, DeadLetters: c.sink, Observer: &s.counters})
				if err != nil {
					t.Fatal(err)
				}
				s.counters.setLags([]pipeline.Lag{c.lag})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan error, 1)
				go func() { ended <- runner.Run(ctx) }()
				time.Sleep(250 * time.Millisecond) // between two messages
				for range 21 {
					s.counters.sample()
					time.Sleep(time.Second)
				}
				got := s.counters.status(workers, runner.Progress().Ahead > workers).Pace
				cancel()
				if err := <-ended; err != nil {
					t.Error(err)
				}
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
				if got.Limit != c.want || math.Abs(*got.LeftSeconds-c.left) > 0.1*c.left || got.Workers != workers || math.Abs(got.Messages-float64(c.sink.batch)) > 0.5 {
					t.Errorf("limit %q, %.1f s left, %d workers, %v messages in a batch; want %q, %.1f s", got.Limit, *got.LeftSeconds, got.Workers, got.Messages, c.want, c.left)
				}
				if guarded := got.ClaimSeconds != nil; guarded != (c.store >= 0) || guarded && math.Abs(*got.ClaimSeconds-c.store.Seconds()) > 1e-6 {
					t.Errorf("claim %v", got.ClaimSeconds)
				}
				if timed := got.SinkSeconds != nil; timed != (c.store >= 0 && c.sink.parks == 0) || timed && math.Abs(*got.SinkSeconds-c.sink.takes.Seconds()) > 1e-6 {
					t.Errorf("sink %v", got.SinkSeconds)
				}
			})
		})
	}
}
