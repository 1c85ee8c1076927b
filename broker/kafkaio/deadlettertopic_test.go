package kafkaio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// topicLot opens what the pipeline of options put aside.
func (b *bubble) topicLot(opts TransactorOptions, change func(o *DeadLetterTopicOptions)) *DeadLetterTopic {
	b.Helper()
	o := &DeadLetterTopicOptions{
		Client: b.reach(), Topic: "aside", Name: "p", Group: opts.Group, Source: b.reach(), Inputs: opts.Inputs,
		Key: opts.Key, Scope: opts.Scope, OnMissing: opts.OnMissing, Transactional: true,
	}
	if change != nil {
		change(o)
	}
	letters, err := OpenDeadLetterTopic(b.Context(), o)
	must(b.T, err)
	b.Cleanup(func() { letters.Close() })
	return letters
}

// listed returns the messages of a dead-letter store.
func (b *bubble) listed(letters *DeadLetterTopic) []*pipeline.Parked {
	b.Helper()
	var list []*pipeline.Parked
	must(b.T, letters.List(b.Context(), "p", func(p *pipeline.Parked) bool {
		list = append(list, p)
		return true
	}))
	return list
}

// redrive writes messages back and wants it to succeed.
func (b *bubble) redrive(letters *DeadLetterTopic, list ...*pipeline.Parked) {
	b.Helper()
	_, errs := letters.Redrive(b.Context(), list, "ann")
	must(b.T, errors.Join(errs...))
}

// settlements returns what the log says became of messages.
func (b *bubble) settlements() string {
	b.Helper()
	var said []string
	must(b.T, ReadAll(b.Context(), b.reach(), []string{"aside-settled"}, func(r *kgo.Record) bool {
		var s settlement
		must(b.T, json.Unmarshal(r.Value, &s))
		said = append(said, fmt.Sprint(s.ID, " ", s.Key, " ", s.How, " ", s.Actor, " ", s.Reason, " ", s.ParkedFor))
		return true
	}))
	return strings.Join(said, "\n")
}

// failing puts aside what has the key bad.
func failing(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
	if string(m.RecordKey) == "bad" {
		return nil, semel.Permanent(errors.New("refused"))
	}
	return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
}

func TestWhatATransactionPutAsideGoesBackToItsPartition(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		first := &kgo.Record{Topic: "in", Partition: 1, Key: []byte("bad"), Value: []byte("1"), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}, {Key: headerKey, Value: []byte("of the stage before")}}}
		b.write(record(0, "good", "v"), first, record(1, "bad", "2"), record(1, "", "3"))
		began := time.Now()
		p := b.start(opts)
		p.wait(4, settled)
		p.stop()

		letters := b.topicLot(opts, nil)
		list := b.listed(letters)
		if len(list) != 3 {
			t.Fatalf("%d messages are listed, want 3", len(list))
		}
		slices.SortFunc(list, func(a, b *pipeline.Parked) int {
			return strings.Compare(string(a.Message.Body), string(b.Message.Body))
		})
		m := list[0]
		if m.Key != (semel.Key{Scope: "s", ID: "bad"}) || m.Reason != "permanent" || m.Error != "refused" || m.Attempts != 1 || m.Redrives != 0 || m.Pipeline != "p" {
			t.Errorf("listed as %+v", m)
		}
		if m.At.Before(began) || m.At.After(time.Now()) || !m.Message.Time.Equal(at) || m.Message.Origin != (semel.Origin{Source: "in", Partition: 1, Offset: 0}) {
			t.Errorf("at %v, of %v, from %v", m.At, m.Message.Time, m.Message.Origin)
		}
		if missing := list[2]; missing.Key != (semel.Key{}) || missing.Reason != "key-missing" {
			t.Errorf("listed as %+v", missing)
		}
		// Another one knows a message by its id.
		again, err := b.topicLot(opts, nil).Get(b.Context(), m.ID)
		if err != nil || string(again.Message.Body) != "1" {
			t.Errorf("%v, %v", again, err)
		}

		places, errs := letters.Redrive(b.Context(), list[:2], "ann")
		must(t, errors.Join(errs...))
		back := b.read("in")
		back = slices.DeleteFunc(back, func(r *kgo.Record) bool { return r.Offset < 3 || r.Partition != 1 })
		if len(back) != 2 || places[0] != (semel.Origin{Source: "in", Partition: 1, Offset: 3}) {
			t.Fatalf("%d records came back, the first to %v", len(back), places[0])
		}
		r := back[0]
		if string(r.Key) != "bad" || string(r.Value) != "1" || !r.Timestamp.Equal(at) || fmt.Sprintf("%s", r.Headers) != "[{h x} {semel-key of the stage before} {semel-redrive 1}]" {
			t.Errorf("%s %s %v %s came back", r.Key, r.Value, r.Timestamp, r.Headers)
		}
		if left := b.listed(b.topicLot(opts, nil)); len(left) != 1 || string(left[0].Message.Body) != "3" {
			t.Errorf("%d messages are left", len(left))
		}
		if _, errs = letters.Redrive(b.Context(), list[:1], "ann"); !errors.Is(errs[0], pipeline.ErrNotParked) {
			t.Errorf("once more: %v", errs[0])
		}
		must(t, letters.Settle(b.Context(), list[2], pipeline.Settlement{How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}))
		if err := letters.Settle(b.Context(), list[2], pipeline.Settlement{How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}); !errors.Is(err, pipeline.ErrNotParked) {
			t.Errorf("skipped twice: %v", err)
		}
		want := list[0].ID + " bad redriven ann written back to its topic permanent\n" + list[1].ID + " bad redriven ann written back to its topic permanent\n" + list[2].ID + "  skipped bob a test key-missing"
		if got := b.settlements(); got != want {
			t.Errorf("the log says\n%s\nwant\n%s", got, want)
		}

		// Both have one key: one of them runs.
		opts.Transform = nil
		p = b.start(opts)
		defer p.stop()
		p.wait(4, settled) // with the ends of the reading
		if got := b.values(b.read("out")); got["bad"] != "1" || len(got) != 2 {
			t.Errorf("outputs %v", got)
		}
	})
}

func TestAMessageThatFailsAgainCountsItsRedrives(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		b.write(record(0, "bad", "v"))
		p := b.start(opts)
		defer p.stop()
		p.wait(1, settled)
		letters := b.topicLot(opts, nil)
		for n := range 3 {
			list := b.listed(letters)
			if len(list) != 1 || list[0].Redrives != n {
				t.Fatalf("%d messages after %d redrives: %+v", len(list), n, list)
			}
			b.redrive(letters, list...)
			p.wait(n+2, settled)
		}
	})
}

func TestAMessageThatCouldNotBeNotedStaysListed(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		b.write(record(0, "bad", "v"))
		p := b.start(opts)
		p.wait(1, settled)
		p.stop()
		b.cluster.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
			topic := kmsg.NewCreateTopicsResponseTopic()
			topic.Topic, topic.ErrorCode = "aside-settled", kerr.TopicAuthorizationFailed.Code
			resp.Topics = append(resp.Topics, topic)
			return resp, nil, true
		})
		letters := b.topicLot(opts, nil)
		list := b.listed(letters)
		_, errs := letters.Redrive(b.Context(), list, "ann")
		if errs[0] == nil || !strings.Contains(errs[0].Error(), "it was written to in/0 at 1, and stays listed: kafkaio: make topic aside-settled") {
			t.Errorf("%v", errs[0])
		}
		if left := b.listed(letters); len(left) != 1 {
			t.Fatalf("%d messages are listed", len(left))
		}
		b.redrive(letters, list...)
		opts.Transform = nil
		p = b.start(opts)
		defer p.stop()
		p.wait(2, settled)
		if got := b.values(b.read("out")); len(got) != 1 {
			t.Errorf("outputs %v", got)
		}
	})
}

func TestMessagesOfOthersInATopic(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		header := func(list ...string) (headers []kgo.RecordHeader) {
			for i := 0; i < len(list); i += 2 {
				headers = append(headers, kgo.RecordHeader{Key: list[i], Value: []byte(list[i+1])})
			}
			return headers
		}
		for _, r := range []*kgo.Record{
			{Value: []byte("another pipeline"), Headers: header(headerReason, "late", connectName, "q", connectTopic, "in", connectPartition, "0", connectOffset, "7")},
			{Value: []byte("Connect"), Headers: header(connectName, "c", connectTopic, "in", connectPartition, "0", connectOffset, "7", connectError, "oh")},
			{Value: []byte("Connect elsewhere"), Headers: header(connectName, "c", connectTopic, "other", connectPartition, "0", connectOffset, "7")},
			{Value: []byte("nowhere"), Headers: header("own", "1")},
			{Value: []byte("no such partition"), Headers: header(connectTopic, "in", connectPartition, "9", connectOffset, "7")},
		} {
			r.Topic, r.Key = "aside", []byte("k")
			b.write(r)
		}
		letters := b.topicLot(opts, nil)
		list := b.listed(letters)
		var bodies []string
		for _, p := range list {
			bodies = append(bodies, string(p.Message.Body))
		}
		if got := strings.Join(bodies, ", "); got != "Connect, nowhere, no such partition" {
			t.Fatalf("listed: %s", got)
		}
		if list[0].Error != "oh" || list[0].Key.ID != "k" {
			t.Errorf("listed as %+v", list[0])
		}
		_, errs := letters.Redrive(b.Context(), list, "ann")
		if errs[0] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), "do not say where it came from") || errs[2] == nil {
			t.Errorf("%v", errs)
		}
		if back := b.read("in"); len(back) != 1 || string(back[0].Value) != "Connect" {
			t.Errorf("%d records came back", len(back))
		}
		for _, id := range []string{"", "aside", "aside/0", "aside/0/99", "aside/7/0", "aside/0/00", "aside/0/-1", "in/0/0", "aside/0/0", list[0].ID} {
			if _, err := letters.Get(b.Context(), id); !errors.Is(err, pipeline.ErrNotParked) {
				t.Errorf("Get(%q): %v", id, err)
			}
		}
	})
}

func TestMessagesThatAParkerPutAsideHaveTheirKeys(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		parker, err := OpenParker(b.Context(), b.reach(), "aside")
		must(t, err)
		defer parker.Close()
		of := func(recordKey, id string) pipeline.Parked {
			return pipeline.Parked{
				Pipeline: "p", Key: semel.Key{Scope: "s", ID: id}, Reason: "attempts", Error: "oh", Attempts: 8,
				Message: semel.Message{RecordKey: []byte(recordKey), Body: []byte("v"), Headers: []semel.Header{{Name: "own", Value: []byte("1")}}, Origin: semel.Origin{Source: "in"}},
			}
		}
		must(t, parker.Park(b.Context(), []pipeline.Parked{of("\x00k", "\x00s\x00k"), of("k", "of another rule")}))
		letters := b.topicLot(b.options(), func(o *DeadLetterTopicOptions) { o.Group, o.Transactional = "g", false })
		list := b.listed(letters)
		if len(list) != 2 {
			t.Fatalf("%d messages are listed", len(list))
		}
		slices.SortFunc(list, func(a, b *pipeline.Parked) int { return strings.Compare(a.Key.ID, b.Key.ID) })
		if list[0].Key != (semel.Key{Scope: "s", ID: "\x00s\x00k"}) || list[0].Attempts != 8 || list[1].Key.ID != "of another rule" {
			t.Errorf("listed as %+v, %+v", list[0], list[1])
		}
		_, errs := letters.Redrive(b.Context(), list, "ann")
		if errs[0] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), "now finds another key in it") {
			t.Errorf("%v", errs)
		}
		if back := b.read("in"); len(back) != 1 || fmt.Sprintf("%s", back[0].Headers) != "[{own 1} {semel-redrive 1}]" {
			t.Errorf("%d records came back: %+v", len(back), back)
		}
	})
}

func TestWhatKafkaMightDeleteBeforeItIsReadStaysAside(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Inputs = []string{"short", "stamped"}
		must(t, b.cluster.CreateTopic("short", 1, map[string]string{"retention.ms": "60000"}))
		must(t, b.cluster.CreateTopic("stamped", 1, map[string]string{"retention.ms": "60000", "message.timestamp.type": "LogAppendTime"}))
		for _, topic := range opts.Inputs {
			for age := range 2 {
				b.write(&kgo.Record{Topic: "aside", Timestamp: time.Now().Add(-time.Duration(age) * time.Minute), Headers: []kgo.RecordHeader{
					{Key: connectTopic, Value: []byte(topic)}, {Key: connectPartition, Value: []byte("0")}, {Key: connectOffset, Value: []byte("7")},
				}})
			}
		}
		letters := b.topicLot(opts, nil)
		list := b.listed(letters)
		_, errs := letters.Redrive(b.Context(), list, "ann")
		refused := 0
		for i, err := range errs {
			if err != nil {
				refused++
				if from := list[i].Message.Origin.Source; from != "short" || !strings.Contains(err.Error(), "it is 1m0s old, and short keeps records for 1m0s") {
					t.Errorf("%s: %v", from, err)
				}
			}
		}
		if refused != 1 || len(list) != 4 {
			t.Errorf("of %d messages %d are refused", len(list), refused)
		}
	})
}

func TestATopicThatWasMadeAnewHasOtherMessages(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		adm := kadm.NewClient(b.client)
		for n := range 2 {
			must(t, b.cluster.CreateTopic("made", 1, nil))
			client, err := kgo.NewClient(b.reach()...) // one that wrote to the topic before knows it by its id
			must(t, err)
			must(t, client.ProduceSync(b.Context(), &kgo.Record{Topic: "made", Value: fmt.Append(nil, n)}).FirstErr())
			client.Close()
			letters := b.topicLot(opts, func(o *DeadLetterTopicOptions) { o.Topic = "made" })
			list := b.listed(letters)
			if len(list) != 1 || list[0].ID != "made/0/0" {
				t.Fatalf("round %d: %+v", n, list)
			}
			must(t, letters.Settle(b.Context(), list[0], pipeline.Settlement{How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}))
			if left := b.listed(letters); len(left) != 0 {
				t.Errorf("round %d: %d are left", n, len(left))
			}
			_, err = adm.DeleteTopic(b.Context(), "made")
			must(t, err)
			if _, err := OpenDeadLetterTopic(b.Context(), &letters.opts); !errors.Is(err, ErrNoTopic) {
				t.Errorf("without the topic: %v", err)
			}
		}
	})
}

// TestWhatAnotherProcessSettledFirstIsKnown has one dead-letter store look before the topic of
// settled messages exists. The client remembers that it is missing.
func TestWhatAnotherProcessSettledFirstIsKnown(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		b.write(&kgo.Record{Topic: "aside", Value: []byte("1")}, &kgo.Record{Topic: "aside", Value: []byte("2")})
		letters, other := b.topicLot(opts, nil), b.topicLot(opts, nil)
		list := b.listed(letters)
		if len(list) != 2 {
			t.Fatalf("%d messages are listed, want 2", len(list))
		}
		skipped := pipeline.Settlement{ID: list[0].ID, How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}
		must(t, other.Settle(b.Context(), list[0], skipped))
		if _, errs := letters.Redrive(b.Context(), list[:1], "ann"); !errors.Is(errs[0], pipeline.ErrNotParked) {
			t.Errorf("what another skipped is redriven: %v", errs[0])
		}
		if got, ok := letters.Settled(list[0].ID); !ok || got != skipped {
			t.Errorf("settled: %+v, %v, want %+v", got, ok, skipped)
		}
		if got, ok := letters.Settled(list[1].ID); ok {
			t.Errorf("settled, of a message that is parked: %+v", got)
		}
		if left := b.listed(letters); len(left) != 1 || left[0].ID != list[1].ID {
			t.Errorf("left: %+v", left)
		}
	})
}
