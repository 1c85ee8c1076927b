package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// stallEvents keeps the events of stalls.
type stallEvents struct {
	mu   sync.Mutex
	list []pipeline.Event
}

func (s *stallEvents) Observe(semel.Event) {}

func (s *stallEvents) ObservePipeline(e pipeline.Event) {
	if e.Kind == pipeline.EventStalled || e.Kind == pipeline.EventMoves {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list = append(s.list, e)
	}
}

func (s *stallEvents) get() []pipeline.Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// A pipeline with work that settles nothing says so, and says why it waits, until it
// moves again.
func TestAStallNamesItsCause(t *testing.T) {
	t.Parallel()
	const secret = "canary-4711"
	hang := func(ctx context.Context, until <-chan struct{}) error {
		select {
		case <-until:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	cases := map[string]func(r *rig, heal <-chan struct{}){
		"claims in the store": func(r *rig, heal <-chan struct{}) {
			r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
				if err := hang(ctx, heal); err != nil {
					return err
				}
				return r.store.Store.Claim(ctx, reqs, answers)
			}
		},
		"delivery to the sink": func(r *rig, heal <-chan struct{}) {
			r.handler = func(ctx context.Context, _ pipeline.Delivery) (semel.Result, error) {
				return semel.Result{}, hang(ctx, heal)
			}
		},
		"completions in the store": func(r *rig, heal <-chan struct{}) {
			r.store.complete = func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
				if err := hang(ctx, heal); err != nil {
					return err
				}
				return r.store.Store.Complete(ctx, reqs, answers)
			}
		},
		"the sink, which has failed since 2000-01-01T00:00:00Z": func(r *rig, heal <-chan struct{}) {
			r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
				select {
				case <-heal:
					return semel.Result{}, nil
				default:
					return semel.Result{}, pipeline.Unavailable(errors.New("down for "+secret), 0)
				}
			}
		},
		"the store, which has failed since 2000-01-01T00:00:00Z": func(r *rig, heal <-chan struct{}) {
			r.store.claim = func(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
				select {
				case <-heal:
					return r.store.Store.Claim(ctx, reqs, answers)
				default:
					return errors.New("down for " + secret)
				}
			}
		},
		"the next attempt in": func(r *rig, heal <-chan struct{}) {
			r.opts.Failure = pipeline.Failure{Attempts: 1000, From: 20 * time.Second, To: 20 * time.Second}
			r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
				select {
				case <-heal:
					return semel.Result{}, nil
				default:
					return semel.Result{}, errors.New("refused " + secret)
				}
			}
		},
		"a key that another process holds until 2000-01-01T00:01:40Z": func(r *rig, _ <-chan struct{}) {
			r.claim(secret, 100*time.Second)
		},
	}
	for want, prepare := range cases {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				events, heal := &stallEvents{}, make(chan struct{})
				r := newRig(t)
				r.source.endless = true
				r.opts.Observer = events
				prepare(r, heal)
				r.add(17, secret, "a")
				ctx, cancel := context.WithCancel(t.Context())
				end := r.start(ctx)
				time.Sleep(9 * time.Second)
				if got := events.get(); len(got) > 0 {
					t.Fatalf("after 9 s: %+v", got)
				}
				time.Sleep(11 * time.Second)
				got := events.get()
				if len(got) != 1 {
					t.Fatalf("after 20 s: %+v", got)
				}
				e := got[0]
				if e.Kind != pipeline.EventStalled || e.Count != 1 || e.Elapsed < 10*time.Second || e.Elapsed > 12*time.Second ||
					!strings.HasPrefix(e.Reason, want) || e.Item == nil || e.Item.Message.Origin.Offset != 17 {
					t.Errorf("%+v, waiting for %q", e, e.Reason)
				}
				if strings.Contains(e.Reason, secret) {
					t.Errorf("the reason has a part of the message: %q", e.Reason)
				}
				err := r.runner.Ready(t.Context())
				if err == nil || strings.Contains(err.Error(), secret) {
					t.Errorf("ready: %v", err)
				} else if !strings.Contains(err.Error(), " since ") && !strings.HasPrefix(err.Error(), "stalled for ") {
					t.Errorf("ready: %v", err)
				}
				time.Sleep(45 * time.Second)
				if got := events.get(); len(got) != 2 || got[1].Elapsed < time.Minute {
					t.Errorf("after a minute: %+v", got)
				}
				close(heal)
				time.Sleep(2 * time.Minute)
				r.wantAcked(1)
				if got := events.get(); len(got) != 3 || got[2].Kind != pipeline.EventMoves {
					t.Errorf("after the end: %+v", got)
				}
				if err := r.runner.Ready(t.Context()); err != nil {
					t.Errorf("ready: %v", err)
				}
				cancel()
				if err := end(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestAStallHasTheErrorOfTheStore: the guard repeats a completion for as long as a lease.
func TestAStallHasTheErrorOfTheStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := &stallEvents{}
		r := newRig(t)
		r.opts.Observer = events
		begin := time.Now()
		r.store.complete = func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			if time.Since(begin) < 20*time.Second {
				return semel.ErrStoreFull
			}
			return r.store.Store.Complete(ctx, reqs, answers)
		}
		r.add(17, "a", "")
		r.run()
		r.wantAcked(1)
		if got := events.get(); len(got) == 0 || !strings.HasPrefix(got[0].Reason, "completions in the store") || !errors.Is(got[0].Err, semel.ErrStoreFull) {
			t.Errorf("%+v", got)
		}
	})
}

func TestPipelineWithoutWorkIsNotStalled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events := &stallEvents{}
		r := newRig(t)
		r.source.endless = true
		r.opts.Observer = events
		r.add(1, "one", "a")
		ctx, cancel := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(time.Hour)
		if got := events.get(); len(got) > 0 {
			t.Errorf("%+v", got)
		}
		if err := r.runner.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		cancel()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}

// TestWaitingSourceIsReportedAsStalledWithinTenSeconds has it begin to wait at each time between
// two questions.
func TestWaitingSourceIsReportedAsStalledWithinTenSeconds(t *testing.T) {
	t.Parallel()
	for begin := 1500 * time.Millisecond; begin < 8*time.Second; begin += time.Second {
		synctest.Test(t, func(t *testing.T) {
			events, what := &stallEvents{}, "the moon"
			r := newRig(t)
			r.source.endless = true
			r.opts.Observer = events
			ctx, cancel := context.WithCancel(t.Context())
			end := r.start(ctx)
			time.Sleep(begin)
			r.source.waits.Store(&what)
			time.Sleep(10 * time.Second)
			if got := events.get(); len(got) != 1 || got[0].Reason != what {
				t.Errorf("it waits since %v: %+v", begin, got)
			}
			if err := r.runner.Ready(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "stalled for ") {
				t.Errorf("it waits since %v: ready: %v", begin, err)
			}
			refused := errors.New("refused")
			r.source.unready.Store(&refused)
			if err := r.runner.Ready(t.Context()); err != refused {
				t.Errorf("it waits since %v, and knows why: ready: %v", begin, err)
			}
			r.source.unready.Store(nil)
			r.source.waits.Store(nil)
			time.Sleep(2 * time.Second)
			if got := events.get(); len(got) != 2 || got[1].Kind != pipeline.EventMoves || r.runner.Ready(t.Context()) != nil {
				t.Errorf("it waits no more: %+v", got)
			}
			cancel()
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// starter is a session whose scope is bound when until is closed.
type starter struct {
	pipeline.Session
	until chan struct{}
}

func (s starter) BindScope(ctx context.Context, _ string, _ semel.ScopeOwner) error {
	select {
	case <-s.until:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func TestStoreThatDoesNotAnswerAtTheStartIsAStall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		events, until := &stallEvents{}, make(chan struct{})
		r := newRig(t)
		r.source.endless = true
		r.add(1, "a", "") // the first key binds the scope
		r.opts.Observer = events
		r.session = func(sink pipeline.Sink) pipeline.Session {
			session, err := pipeline.NewTwoPhase(r.store, sink, nil)
			if err != nil {
				t.Fatal(err)
			}
			return starter{session, until}
		}
		ctx, cancel := context.WithCancel(t.Context())
		end := r.start(ctx)
		time.Sleep(11 * time.Second)
		if got := events.get(); len(got) != 1 || got[0].Reason != "the store, before it starts" {
			t.Errorf("%+v", got)
		}
		if err := r.runner.Ready(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "stalled for ") {
			t.Errorf("ready: %v", err)
		}
		close(until)
		time.Sleep(2 * time.Second)
		if got := events.get(); len(got) != 2 || got[1].Kind != pipeline.EventMoves {
			t.Errorf("%+v", got)
		}
		cancel()
		if err := end(); err != nil {
			t.Error(err)
		}
	})
}
