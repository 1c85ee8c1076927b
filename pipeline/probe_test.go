package pipeline_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// outage is a sink that fails until a time, and that may say in a probe whether it works.
type outage struct {
	over   time.Time
	probes atomic.Int32
}

func (*outage) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{} }
func (*outage) Close(context.Context) error { return nil }

func (o *outage) down() error {
	if time.Now().Before(o.over) {
		return errors.New("down")
	}
	return nil
}

func (o *outage) Deliver(_ context.Context, items []*pipeline.Item) {
	for _, it := range items {
		it.Err = pipeline.Unavailable(o.down(), 0)
	}
}

// telling is an outage that a probe sees.
type telling struct{ *outage }

// Ready implements doctor.Readier.
func (o telling) Ready(context.Context) error {
	o.probes.Add(1)
	return o.down()
}

// storeOutage is a store that a probe asks.
type storeOutage struct {
	semel.Store
	of *outage
}

func (s storeOutage) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if s.of.down() != nil {
		return semel.ErrStoreUnavailable
	}
	return s.Store.Claim(ctx, reqs, answers)
}

// Ready implements doctor.Readier.
func (s storeOutage) Ready(context.Context) error {
	s.of.probes.Add(1)
	return s.of.down()
}

// turns is an observer that keeps the pauses and their ends.
type turns struct {
	mu   sync.Mutex
	list []string
}

func (*turns) Observe(semel.Event) {}

func (s *turns) ObservePipeline(e pipeline.Event) {
	if e.Kind == pipeline.EventPaused || e.Kind == pipeline.EventResumed {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.list = append(s.list, e.Kind.String()+" "+e.Reason)
	}
}

func (s *turns) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.list...)
}

// TestAPauseEndsWithoutAnotherMessage takes the last message away from a pipeline that is paused.
func TestAPauseEndsWithoutAnotherMessage(t *testing.T) {
	t.Parallel()
	ends := map[string]func(r *rig, o *outage){
		"its partition is closed": func(r *rig, _ *outage) {
			if err := r.partition.Close(r.t.Context()); err != nil {
				r.t.Error(err)
			}
		},
		"its effect is complete": func(r *rig, _ *outage) { r.settle("a") },
	}
	for end, leave := range ends {
		for name, tells := range map[string]bool{"sink": true, "store": true, "sink that cannot tell": false} {
			if name == "store" && end != "its partition is closed" {
				continue // a store that is down settles nothing
			}
			t.Run(name+": "+end, func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					o := &outage{over: time.Now().Add(5 * time.Minute)}
					seen := &turns{}
					r := newRig(t)
					r.opts.Observer, r.source.endless = seen, true
					part := "sink"
					switch name {
					case "store":
						part = "store"
						r.session = func(s pipeline.Sink) pipeline.Session {
							two, err := pipeline.NewTwoPhase(storeOutage{r.store.Store, o}, s, nil)
							if err != nil {
								t.Fatal(err)
							}
							return two
						}
					case "sink":
						r.sink = telling{o}
					default:
						r.sink = o
					}
					r.add(1, "a", "")
					ctx, stop := context.WithCancel(t.Context())
					finish := r.start(ctx)
					time.Sleep(time.Minute)
					if r.runner.Ready(ctx) == nil || r.runner.NextAttempt().IsZero() {
						t.Error("the pipeline is not paused")
					}
					leave(r, o)
					time.Sleep(time.Minute)
					if n, _ := r.runner.UnderWay(); n != 0 {
						t.Fatalf("%d messages are under way", n)
					}
					if err := r.runner.Ready(ctx); (err != nil) != tells {
						t.Errorf("without a message, while the %s fails: %v", part, err)
					}
					time.Sleep(time.Until(o.over) + time.Minute)
					if err := r.runner.Ready(ctx); err != nil || !r.runner.NextAttempt().IsZero() {
						t.Errorf("after the outage: %v; the next attempt is at %v", err, r.runner.NextAttempt())
					}
					if got := seen.told(); len(got) != 2 || got[0] != "paused "+part || got[1] != "resumed "+part {
						t.Errorf("events: %q", got)
					}
					synctest.Wait()
					probes := o.probes.Load()
					time.Sleep(time.Hour)
					synctest.Wait()
					if o.probes.Load() != probes || probes > 40 {
						t.Errorf("%d probes in the outage, and %d in an hour after it", probes, o.probes.Load()-probes)
					}
					r.partition = pipeline.NewPartition("b")
					r.add(2, "b", "")
					time.Sleep(time.Second)
					synctest.Wait()
					if r.acked() == 0 {
						t.Error("the next message was not delivered")
					}
					stop()
					if err := finish(); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// settle completes a key that the pipeline holds, as if an earlier attempt had done it late.
func (r *rig) settle(id string) {
	r.t.Helper()
	inspector, _ := semel.As[semel.Inspector](r.store.Store)
	records, errs := make([]semel.Record, 1), make([]error, 1)
	if err := inspector.Look(r.t.Context(), []semel.Key{{ID: id}}, records); err != nil {
		r.t.Fatal(err)
	}
	err := r.store.Store.Complete(r.t.Context(), []semel.CompleteRequest{{Key: semel.Key{ID: id}, Token: records[0].Token, Window: time.Hour}}, errs)
	if err = errors.Join(err, errs[0]); err != nil {
		r.t.Fatal(err)
	}
}

// TestTheEndOfEachPauseIsReported lets each call that pauses work fail for a while.
func TestTheEndOfEachPauseIsReported(t *testing.T) {
	t.Parallel()
	for what, prepare := range map[string]func(r *rig, over time.Time){
		"acknowledging": func(r *rig, over time.Time) { r.source.deaf = over },
		"parking": func(r *rig, over time.Time) {
			r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
				return semel.Result{}, semel.Permanent(errors.New("refused"))
			}
			r.opts.DeadLetters = &fullParker{over: over, to: r.letters}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				seen := &turns{}
				r := newRig(t)
				r.opts.Observer = seen
				prepare(r, time.Now().Add(time.Minute))
				r.add(1, "a", "")
				r.run()
				r.wantAcked(1)
				got := seen.told()
				if len(got) < 3 || got[len(got)-1] != "resumed "+what {
					t.Errorf("events: %q", got)
				}
				for _, e := range got[:len(got)-1] {
					if e != "paused "+what {
						t.Errorf("events: %q", got)
					}
				}
			})
		})
	}
}

// TestAPauseLastsUntilNoCallerWaits has two messages that are parked at the same time, and room for one of them.
func TestAPauseLastsUntilNoCallerWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		seen := &turns{}
		r := newRig(t)
		r.opts.Observer, r.opts.Workers, r.opts.Batch = seen, 2, 1
		r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
			return semel.Result{}, semel.Permanent(errors.New("refused"))
		}
		began := time.Now()
		r.opts.DeadLetters = fullFor{"a": &fullParker{began.Add(time.Minute), r.letters}, "b": &fullParker{began.Add(time.Hour), r.letters}}
		r.add(1, "a", "a")
		r.add(2, "b", "b")
		end := r.start(t.Context())
		time.Sleep(30 * time.Minute)
		if n := r.acked(); n != 1 {
			t.Fatalf("%d messages are settled", n)
		}
		if got := seen.told(); slices.Contains(got, "resumed parking") {
			t.Errorf("while a message cannot be parked: %q", got)
		}
		if err := end(); err != nil {
			t.Error(err)
		}
		if got := seen.told(); strings.Count(strings.Join(got, "\n"), "resumed parking") != 1 || got[len(got)-1] != "resumed parking" {
			t.Errorf("events: %q", got)
		}
	})
}

// fullFor has a parker for each id.
type fullFor map[string]pipeline.Parker

func (f fullFor) Park(ctx context.Context, list []pipeline.Parked) error {
	return f[list[0].Key.ID].Park(ctx, list)
}

// fullParker parks nothing until a time.
type fullParker struct {
	over time.Time
	to   pipeline.Parker
}

func (p *fullParker) Park(ctx context.Context, list []pipeline.Parked) error {
	if time.Now().Before(p.over) {
		return errors.New("no room")
	}
	return p.to.Park(ctx, list)
}
