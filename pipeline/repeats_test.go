package pipeline_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// A sender that gets no answer repeats its request, perhaps to the next process. Its message must not be parked for each
// repetition, and two messages that can have two keys must not become one.
func TestARepeatedMessageIsParkedOnce(t *testing.T) {
	t.Parallel()
	header := func(value string) []semel.Header { return []semel.Header{{Name: "webhook-id", Value: []byte(value)}} }
	for name, c := range map[string]struct {
		first, second     semel.Message
		entries, parkings int
	}{
		"no key":              {semel.Message{Body: []byte(`{"n":1}`), Headers: header("a")}, semel.Message{Body: []byte(`{"n":1}`), Headers: header("a")}, 1, 1},
		"no JSON":             {semel.Message{Body: []byte(`{`)}, semel.Message{Body: []byte(`{`)}, 1, 1},
		"another body":        {semel.Message{Body: []byte(`{"n":1}`)}, semel.Message{Body: []byte(`{"n":2}`)}, 2, 2},
		"another header":      {semel.Message{Body: []byte(`{"n":1}`), Headers: header("a")}, semel.Message{Body: []byte(`{"n":1}`), Headers: header("b")}, 2, 2},
		"another attempt":     {semel.Message{Body: []byte(`{"n":1}`), Headers: append(header("a"), semel.Header{Name: "Attempt", Value: []byte("1")})}, semel.Message{Body: []byte(`{"n":1}`), Headers: header("a")}, 1, 1},
		"a key":               {semel.Message{Body: []byte(`{"id":"x"}`), Headers: header("a")}, semel.Message{Body: []byte(`{"id":"x"}`), Headers: header("b")}, 1, 2},
		"a key, other bodies": {semel.Message{Body: []byte(`{"id":"x"}`)}, semel.Message{Body: []byte(`{"id":"x","n":2}`)}, 2, 2},
	} {
		for _, restart := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				r := newRig(t)
				letters, count := r.letters, &parkings{}
				begin := func() (end func() error) {
					r.source.repeats, r.source.endless = true, true
					r.letters, r.opts.DeadLetters, r.opts.Observer = letters, letters, count
					r.handler = func(context.Context, pipeline.Delivery) (semel.Result, error) {
						return semel.Result{}, semel.Permanent(errors.New("refused"))
					}
					return r.start(ctx)
				}
				send := func(m semel.Message, offset int64) {
					m.Origin = semel.Origin{Source: "http", Offset: offset}
					r.source.mu.Lock()
					r.source.todo = append(r.source.todo, &pipeline.Item{Partition: r.partition, Message: m})
					r.source.mu.Unlock()
					r.source.more <- struct{}{}
					synctest.Wait()
					r.wantAcked(1)
				}
				end := begin()
				send(c.first, 1)
				if restart {
					cancel()
					if err := end(); err != nil {
						t.Error(err)
					}
					ctx, cancel = context.WithCancel(t.Context())
					r = newRig(t)
					end = begin()
				} else {
					clear(r.source.acked)
				}
				send(c.second, 2)
				cancel()
				if err := end(); err != nil {
					t.Error(err)
				}
				entries := 0
				if err := letters.List(context.Background(), "", func(*pipeline.Parked) bool { entries++; return true }); err != nil {
					t.Fatal(err)
				}
				if got := int(count.Load()); entries != c.entries || got != c.parkings {
					t.Errorf("%s, restart %v: %d entries after %d parkings, want %d after %d", name, restart, entries, got, c.entries, c.parkings)
				}
			})
		}
	}
}

// parkings counts the messages that were parked.
type parkings struct{ atomic.Int32 }

func (*parkings) Observe(semel.Event) {}

func (p *parkings) ObservePipeline(e pipeline.Event) {
	if e.Kind == pipeline.EventParked && e.Reason != string(pipeline.ReasonParkedBefore) {
		p.Add(int32(e.Count))
	}
}
