package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// byID is a FilterMap that goes by the first letter of the key.
func byID(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
	switch d.Key.ID[0] {
	case 'f':
		return nil, false, nil
	case 'e':
		return nil, false, errors.New("no such key: x")
	case 'p':
		panic("oh")
	}
	return append([]byte("mapped "), d.Key.ID...), true, nil
}

func TestFilterMapRunsAfterTheDecisionAndBeforeTheDelivery(t *testing.T) {
	t.Parallel()
	ids := []string{"a", "f1", "e1", "a", "f1", "b", "p1", "e1"}
	for name, session := range map[string]func(r *rig, sink pipeline.Sink) pipeline.Session{
		"two-phase": func(r *rig, sink pipeline.Sink) pipeline.Session {
			s, err := pipeline.NewTwoPhase(r.store, sink, &pipeline.TwoPhaseOptions{FilterMap: byID, Guard: semel.GuardOptions{Observer: r.opts.Observer}})
			if err != nil {
				r.t.Fatal(err)
			}
			return s
		},
		"lossy": func(r *rig, sink pipeline.Sink) pipeline.Session {
			return pipeline.NewLossy(newExactFilter(), sink, &pipeline.LossyOptions{FilterMap: byID, Observer: r.opts.Observer})
		},
		"direct": func(_ *rig, sink pipeline.Sink) pipeline.Session {
			return pipeline.NewDirect(sink, &pipeline.DirectOptions{FilterMap: byID})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				r, told := newRig(t), newTold()
				r.opts.Observer, r.opts.Batch, r.opts.Workers = told, 1, 1
				r.session = func(sink pipeline.Sink) pipeline.Session { return session(r, sink) }
				bodies := map[*pipeline.Item]string{}
				for i, id := range ids {
					it := r.add(int64(i), id, "g")
					bodies[it] = string(it.Message.Body)
				}
				r.run()
				r.wantAcked(len(ids))
				r.wantParked(map[string]string{"e1": "permanent", "p1": "permanent"})
				want, filtered := []string{"a", "b"}, 1
				if name == "direct" { // it decides nothing
					want, filtered = []string{"a", "a", "b"}, 2
				}
				if got := strings.Join(r.order(), " "); got != strings.Join(want, " ") {
					t.Errorf("delivered %s, want %s", got, want)
				}
				for _, d := range r.delivered {
					if string(d.Body) != "mapped "+d.Key.ID {
						t.Errorf("%s is delivered as %q", d.Key.ID, d.Body)
					}
				}
				if got := told.events[pipeline.EventFiltered]; got != filtered {
					t.Errorf("%d messages are filtered, want %d", got, filtered)
				}
				if got := told.events[pipeline.EventRetried]; got != 0 {
					t.Errorf("%d messages are retried", got)
				}
				for it, body := range bodies {
					if string(it.Message.Body) != body {
						t.Errorf("%s has the body %q, and was read with %q", it.Call.Key.ID, it.Message.Body, body)
					}
				}
				_ = r.letters.List(t.Context(), "", func(p *pipeline.Parked) bool {
					if bytes.HasPrefix(p.Message.Body, []byte("mapped")) || p.Attempts != 1 {
						t.Errorf("parked after %d attempts with the body %q", p.Attempts, p.Message.Body)
					}
					return true
				})
			})
		})
	}
}

func TestAFilteredMessageIsRemembered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.phases.FilterMap = byID
		r.add(0, "f1", "g")
		r.run()
		if answer := r.claim("f1", time.Minute); answer.Decision != semel.Duplicate {
			t.Errorf("the key of a filtered message is %s", answer.Decision)
		}
	})
}

// The store takes no completion for longer than a lease. The message is filtered out once.
func TestAFilteredMessageIsCompletedWhenItsStoreAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, told, began := newRig(t), newTold(), time.Now()
		r.phases.FilterMap, r.opts.Observer = byID, told
		r.store.complete = func(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
			if time.Since(began) < 5*time.Minute {
				return semel.ErrStoreUnavailable
			}
			return r.store.Store.Complete(ctx, reqs, answers)
		}
		r.add(0, "f1", "g")
		r.run()
		r.wantAcked(1)
		if got := told.events; len(r.delivered) != 0 || got[pipeline.EventFiltered] != 1 || got[pipeline.EventStalled] == 0 {
			t.Errorf("%d deliveries, events %v", len(r.delivered), got)
		}
		if answer := r.claim("f1", time.Minute); answer.Decision != semel.Duplicate {
			t.Errorf("the key is %s", answer.Decision)
		}
	})
}

// TestTheEndOfAContextFailsNoMessage: a message that was not decided comes again, even if the
// context has ended because another message failed permanently.
func TestTheEndOfAContextFailsNoMessage(t *testing.T) {
	t.Parallel()
	permanent := semel.Permanent(errors.New("another message"))
	for _, c := range []struct{ cause, err, want error }{
		{permanent, permanent, context.Canceled},
		{permanent, errors.New("stopped"), context.Canceled},
		{semel.ErrLeaseLost, permanent, semel.ErrLeaseLost},
		{semel.ErrLeaseLost, semel.ErrLeaseLost, semel.ErrLeaseLost},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(c.cause)
		f := pipeline.FilterMap(func(context.Context, pipeline.Delivery) ([]byte, bool, error) { return nil, false, c.err })
		if _, _, err := f.Call(ctx, pipeline.Delivery{}); !errors.Is(err, c.want) || semel.Classify(err) == semel.ClassPermanent {
			t.Errorf("the cause %v and the error %v give %v", c.cause, c.err, err)
		}
	}
}
