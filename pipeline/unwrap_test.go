package pipeline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// opener is an Unwrapper.
type opener func(semel.Message) (semel.Message, error)

func (o opener) Unwrap(m semel.Message) (semel.Message, error) { return o(m) }
func (o opener) String() string                                { return "in < and >" }

// unwrapped takes what stands between < and > out of a body.
func unwrapped(m semel.Message) (semel.Message, error) {
	inner, ok := bytes.CutPrefix(m.Body, []byte("<"))
	if !ok {
		return m, errors.New("it has no envelope")
	}
	m.Body = bytes.TrimSuffix(inner, []byte(">"))
	return m, nil
}

// wrap puts the body of an item into an envelope.
func wrap(it *pipeline.Item) string {
	it.Message.Body = fmt.Appendf(nil, "<%s>", it.Message.Body)
	return string(it.Message.Body)
}

func TestKeyAndSinkSeeTheMessageInsideAndTheOtherIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.Unwrap, r.opts.Failure.Attempts = opener(unwrapped), 1
	r.handler = func(_ context.Context, d pipeline.Delivery) (semel.Result, error) {
		if d.Redrive == 0 && d.Key.ID == "bad" {
			return semel.Result{}, semel.Permanent(errors.New("no"))
		}
		return semel.Result{}, nil
	}
	wrap(r.add(1, "a", ""))
	wrap(r.add(2, "a", ""))
	bad := wrap(r.add(3, "bad", ""))
	r.add(4, "bare", "")
	r.run()
	var delivered []string // keys have no order among each other
	for _, d := range r.delivered {
		delivered = append(delivered, d.Key.ID)
		if bytes.ContainsRune(d.Body, '<') {
			t.Errorf("delivered: %s", d.Body)
		}
	}
	if slices.Sort(delivered); !slices.Equal(delivered, []string{"a", "bad"}) {
		t.Errorf("delivered: %q", delivered)
	}
	r.wantParked(map[string]string{"bad": "permanent", "": "unreadable"})
	var ids []string
	if err := r.letters.List(t.Context(), "", func(p *pipeline.Parked) bool {
		if ids = append(ids, p.ID); p.Key.ID == "bad" && string(p.Message.Body) != bad {
			t.Errorf("parked: %s", p.Message.Body)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.letters.Queue(t.Context(), ids); err != nil {
		t.Fatal(err)
	}
	again := newRig(t)
	again.opts, again.store, again.letters, again.handler, again.delivered = r.opts, r.store, r.letters, r.handler, nil
	again.run()
	if len(again.delivered) != 1 || again.delivered[0].Key.ID != "bad" || strings.ContainsRune(string(again.delivered[0].Body), '<') || again.delivered[0].Redrive != 1 {
		t.Errorf("redriven: %+v", again.delivered)
	}
	again.wantParked(map[string]string{"": "unreadable"})
}

// returning is a source that delivers what it got back once more.
type returning struct {
	*listSource
	bodies []string
}

func (s *returning) Return(_ context.Context, items []*pipeline.Item, _ time.Duration) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, it := range items {
		s.bodies = append(s.bodies, string(it.Message.Body))
		if len(s.bodies) == 1 {
			return io.ErrNoProgress // it stays with the runner, which gives it back once more
		}
	}
	return nil
}

func TestASourceGetsBackTheMessageThatItRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.opts.Unwrap = opener(unwrapped)
		r.claim("a", time.Hour)
		want := wrap(r.add(1, "a", ""))
		r.source.returns = true
		source := &returning{listSource: r.source}
		session, err := pipeline.NewTwoPhase(r.store, pipeline.NewHandler(r.handler), nil)
		if err != nil {
			t.Fatal(err)
		}
		runner, err := pipeline.NewRunner(source, session, &r.opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := runner.Run(t.Context()); err != nil {
			t.Error(err)
		}
		if got := strings.Join(source.bodies, " "); got != want+" "+want {
			t.Errorf("it got back %s, want %s twice", got, want)
		}
	})
}

func TestAMessageThatItsSourceCannotReadIsParked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.opts.OnMissing = pipeline.MissingHash
	r.add(1, "a", "").Err = errors.New("row 1 has 3 fields")
	r.run()
	r.wantParked(map[string]string{"": "unreadable"})
}
