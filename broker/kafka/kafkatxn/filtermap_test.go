package kafkatxn

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestAFilterMapRunsAfterTheDecisionAndBeforeTheOutput(t *testing.T) {
	t.Parallel()
	for _, transforms := range []bool{false, true} {
		inBubble(t, 1, func(b *bubble) {
			rule, err := key.ParseRule(".id")
			kafkatest.Must(t, err)
			opts := b.options()
			opts.Key.Rule, opts.Output.KeyHeaders = rule, true
			opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
				switch d.Key.ID {
				case "drop":
					return nil, false, nil
				case "bad":
					return nil, false, errors.New("no such key: x")
				case "panic":
					panic("oh")
				}
				return []byte("mapped " + d.Key.ID), true, nil
			}
			if transforms {
				opts.Transform = func(_ context.Context, d pipeline.Delivery) ([]*kgo.Record, error) {
					if d.Key.ID == "late" {
						return nil, errors.New("refused")
					}
					return []*kgo.Record{{Key: d.RecordKey, Value: d.Body}}, nil
				}
			}
			for _, id := range []string{"a", "drop", "bad", "a", "drop", "panic", "bad", "late"} {
				b.Write(kafkatest.Record(0, "r", `{"id":"`+id+`"}`))
			}
			p := b.start(opts)
			p.Wait(8, kafkatest.Settled)
			p.Stop()
			want := []string{"mapped a", "mapped late"}
			if transforms {
				want = want[:1]
			}
			var got []string
			for _, r := range b.Read("out") {
				got = append(got, string(r.Value))
				if id := strings.TrimPrefix(string(r.Value), "mapped "); !strings.Contains(headersOf(r), "semel-key="+id+" ") {
					t.Errorf("%s has the headers %s", r.Value, headersOf(r))
				}
			}
			if strings.Join(got, ", ") != strings.Join(want, ", ") {
				t.Errorf("outputs %q, want %q", got, want)
			}
			got = nil
			for _, r := range b.Read("aside") {
				got = append(got, string(r.Value))
			}
			bodies := []string{`{"id":"bad"}`, `{"id":"panic"}`, `{"id":"bad"}`, `{"id":"late"}`}
			if !transforms {
				bodies = bodies[:3]
			}
			if strings.Join(got, ", ") != strings.Join(bodies, ", ") {
				t.Errorf("parked %q, want %q", got, bodies)
			}
		})
	}
}

func TestAFilterMapRunsBeforeTheAggregate(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.counting(time.Minute, 0, semel.Forever)
		opts.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			return bytes.Replace(d.Body, []byte(`"g":"a"`), []byte(`"g":"z"`), 1), string(d.RecordKey) != "drop", nil
		}
		base := time.Now().Add(-time.Hour).Truncate(time.Minute)
		b.Write(counted(0, "1", "a", 1, base), counted(0, "drop", "a", 2, base), counted(0, "2", "a", 3, base), counted(0, "3", "b", 0, base.Add(2*time.Minute)), counted(0, "late", "a", 4, base))
		p := b.start(opts)
		p.Wait(5, kafkatest.Settled)
		p.Stop()
		if got, want := lines(b.results(), base), "z0 n=2 s=4"; got != want {
			t.Errorf("results %s, want %s", got, want)
		}
		if got := b.Read("aside"); len(got) != 1 || string(got[0].Value) != `{"g":"a","v":4}` {
			t.Errorf("parked %v, want the late record as it was read", got)
		}
	})
}
