package kafkatxn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/output"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

func TestKeyHeadersNameTheKeyOfEachOutput(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	kafkatest.Must(t, err)
	bodies := []string{`{"id":"a"}`, `{"no":1}`, "not json", `{"id":"old"}`}
	want := map[string]string{
		bodies[0]: "semel-key=a semel-scope=s semel-pipeline=g",
		bodies[3]: "mine=1 semel-key=old semel-scope=s semel-pipeline=g",
	}
	for _, body := range bodies[1:3] {
		name, id := header.OfKey(string(record.ContentID(nil, []byte(body))))
		want[body] = name + "=" + id + " semel-scope=s semel-pipeline=g"
	}
	for _, transforms := range []bool{false, true} {
		t.Run("transform "+strconv.FormatBool(transforms), func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Key.Rule, opts.Key.OnMissing, opts.Output.KeyHeaders = rule, pipeline.MissingHash, true
				times := 1
				if transforms {
					times = 2
					opts.Transform = func(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
						var headers []kgo.RecordHeader
						for _, h := range m.Headers {
							headers = append(headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
						}
						if m.Key.ID == "" {
							return nil, semel.Permanent(errors.New("it has no key"))
						}
						return []*kgo.Record{{Value: m.Body, Headers: headers}, {Value: m.Body, Headers: headers}}, nil
					}
				}
				for _, body := range bodies[:3] {
					b.Write(kafkatest.Record(0, "", body))
				}
				stale := kafkatest.Record(0, "", bodies[3])
				stale.Headers = []kgo.RecordHeader{{Key: "mine", Value: []byte("1")}, {Key: header.Key, Value: []byte("of the stage before")}}
				b.Write(stale)
				p := b.start(opts)
				p.Wait(len(bodies), kafkatest.Settled)
				p.Stop()
				got := b.Read("out")
				if len(got) != times*len(bodies) {
					t.Errorf("%d outputs, want %d for each of %d", len(got), times, len(bodies))
				}
				for _, r := range got {
					body := string(r.Value)
					want := fmt.Sprint(want[body], " semel-origin=in 0/", slices.Index(bodies, body))
					if is := headersOf(r); is != want {
						t.Errorf("%s has %s, want %s", body, is, want)
					}
				}
			})
		})
	}
}

// headersOf returns the headers of a record as text, without the time in FirstSeen.
func headersOf(r *kgo.Record) string {
	var list []string
	for _, h := range r.Headers {
		if _, err := time.Parse(time.RFC3339, string(h.Value)); h.Key == header.FirstSeen && err == nil {
			continue
		}
		list = append(list, h.Key+"="+string(h.Value))
	}
	return strings.Join(list, " ")
}

// TestARedrivenRecordHasNoParkingHeaders has a record with such headers, and a record with
// similar ones.
func TestARedrivenRecordHasNoParkingHeaders(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		first := kafkatest.Record(0, "back", "v")
		first.Headers = []kgo.RecordHeader{{Key: "own", Value: []byte("1")}}
		back := record.Parked(first, "in", "g", "late", 3, semel.ErrLate)
		back.Partition = 0
		similar := kafkatest.Record(0, "similar", "v")
		similar.Headers = []kgo.RecordHeader{{Key: record.ConnectTopic, Value: []byte("t")}, {Key: record.SpringGroup, Value: []byte("h")}}
		b.Write(back, similar)
		p := b.start(b.options())
		p.Wait(2, kafkatest.Settled)
		p.Stop()
		got := map[string]string{}
		for _, r := range b.Read("out") {
			got[string(r.Key)] = headersOf(r)
		}
		for name, want := range map[string]string{"back": "own=1 semel-redrive=1", "similar": "__connect.errors.topic=t kafka_dlt-original-consumer-group=h"} {
			if got[name] != want {
				t.Errorf("%s has %q, want %q", name, got[name], want)
			}
		}
	})
}

// refusing is a Transform that gives up what begins with these words.
func refusing(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
	switch {
	case strings.HasPrefix(string(m.Body), `{"id":"permanent`):
		return nil, semel.Permanent(errors.New("refused"))
	case strings.HasPrefix(string(m.Body), `{"id":"never`):
		return nil, errors.New("not now")
	}
	return []*kgo.Record{{Value: m.Body}}, nil
}

func TestParkedRecordsAreReportedWithReasonKeyAndOrigin(t *testing.T) {
	t.Parallel()
	rule, err := key.ParseRule(".id")
	kafkatest.Must(t, err)
	for then, verb := range map[pipeline.Then]string{pipeline.Park: "parked", pipeline.Drop: "dropped"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.Key.Rule, opts.Transform, opts.EventTime = rule, refusing, &EventTime{OnLate: then}
				opts.Failure.Then = then
				if then == pipeline.Drop {
					opts.Key.OnMissing = pipeline.MissingDrop
				}
				late := kafkatest.Record(0, "", `{"id":"late"}`)
				late.Timestamp = time.Now().Add(-time.Hour)
				b.Write(kafkatest.Record(0, "", `{"id":"fine"}`), kafkatest.Record(0, "", `{"id":"permanent"}`), kafkatest.Record(0, "", `{"id":"never"}`),
					kafkatest.Record(0, "", `{"no":1}`), kafkatest.Record(0, "", `not json`), late)
				p := b.start(opts)
				p.Wait(6, kafkatest.Settled)
				p.Stop()
				got := p.Events.Told()
				want := []string{
					verb + " 1 permanent: refused, \"s\"/\"permanent\" of in/0 at 1, attempt 1",
					verb + " 1 attempts: not now, \"s\"/\"never\" of in/0 at 2, attempt 3",
					verb + " 1 key-missing: key: .id is missing, \"\"/\"\" of in/0 at 3, attempt 0",
					verb + " 1 key-invalid: key: ",
					verb + " 1 late: " + semel.ErrLate.Error() + ", \"s\"/\"late\" of in/0 at 5, attempt 0",
				}
				if len(got) != len(want) {
					t.Errorf("told %q, want %q", got, want)
				}
				for i := range min(len(got), len(want)) {
					if !strings.HasPrefix(got[i], want[i]) {
						t.Errorf("told %q, want %q", got[i], want[i])
					}
				}
			})
		})
	}
}

// TestManyParkedRecordsOfATransactionAreCounted has more than are reported one by one.
func TestManyParkedRecordsOfATransactionAreCounted(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = refusing
		var list []*kgo.Record
		for i := range output.MostDeferred + 50 {
			list = append(list, kafkatest.Record(0, strconv.Itoa(i), fmt.Sprintf(`{"id":"permanent %d"}`, i)))
		}
		b.Write(list...)
		p := b.start(opts)
		p.Wait(len(list), kafkatest.Settled)
		p.Stop()
		if got := p.Events.Count(pipeline.EventParked); got != len(list) {
			t.Errorf("%d were told of, want %d", got, len(list))
		}
		told := p.Events.Told()
		if len(told) < output.MostDeferred || len(told) > output.MostDeferred+10 || !strings.Contains(told[len(told)-1], "permanent: <nil>") {
			t.Errorf("%d events, the last %q", len(told), told[len(told)-1])
		}
	})
}
