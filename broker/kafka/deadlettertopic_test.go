package kafka_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/kafkatest"
)

// bubble is a rig whose programs are Transactors.
type bubble struct{ *kafkatest.Rig }

// inBubble runs fn in a synctest bubble with a broker that has the topics in, with the
// given number of partitions, and out and `aside`, with three.
func inBubble(t *testing.T, partitions int32, fn func(b *bubble), opts ...kfake.Opt) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		kafkatest.Virtual(t, partitions, func(r *kafkatest.Rig) { fn(&bubble{r}) }, opts...)
	})
}

// options returns options for the topics, with the record key as id.
func (b *bubble) options() kafkatxn.TransactorOptions {
	return kafkatxn.TransactorOptions{
		Group: "g", Inputs: []string{"in"}, Output: kafkatxn.Output{Topic: "out"}, Parked: "aside",
		Key: kafkatxn.KeyOptions{Rule: kafkatest.RecordKey(b), Scope: "s"}, Member: kafkatxn.Member{Sessions: 1}, Window: time.Hour,
	}
}

func (b *bubble) start(opts kafkatxn.TransactorOptions) *kafkatest.Program {
	b.Helper()
	return b.Run(b.NewLine(), func(client []kgo.Opt, o pipeline.Observer) (kafkatest.Runner, error) {
		opts.Client, opts.Observer = client, o
		return kafkatxn.NewTransactor(&opts)
	})
}

// topicLot opens what the pipeline of options parked.
func (b *bubble) topicLot(opts kafkatxn.TransactorOptions, change func(o *kafka.DeadLetterTopicOptions)) *kafka.DeadLetterTopic {
	b.Helper()
	o := &kafka.DeadLetterTopicOptions{
		Client: b.Reach(), Topic: "aside", Name: "p", Group: opts.Group, Source: b.Reach(), Inputs: opts.Inputs,
		Key: opts.Key.Rule, Scope: opts.Key.Scope, OnMissing: opts.Key.OnMissing, Transactional: true,
	}
	if change != nil {
		change(o)
	}
	letters, err := kafka.OpenDeadLetterTopic(b.Context(), o)
	kafkatest.Must(b.T, err)
	b.Cleanup(func() { letters.Close() })
	return letters
}

// listed returns the messages of a dead-letter store.
func (b *bubble) listed(letters *kafka.DeadLetterTopic) []*pipeline.Parked {
	b.Helper()
	var list []*pipeline.Parked
	kafkatest.Must(b.T, letters.List(b.Context(), "p", func(p *pipeline.Parked) bool {
		list = append(list, p)
		return true
	}))
	return list
}

// redrive writes messages back and wants it to succeed.
func (b *bubble) redrive(letters *kafka.DeadLetterTopic, list ...*pipeline.Parked) {
	b.Helper()
	_, errs := letters.Redrive(b.Context(), list, "ann")
	kafkatest.Must(b.T, errors.Join(errs...))
}

// settlements returns the outcomes of messages in the log.
func (b *bubble) settlements() string {
	b.Helper()
	var said []string
	kafkatest.Must(b.T, kafka.ReadAll(b.Context(), b.Reach(), []string{"aside-settled"}, func(r *kgo.Record) bool {
		var s struct {
			pipeline.Settlement
			Key       string `json:"key"`
			ParkedFor string `json:"parked_for"`
		}
		kafkatest.Must(b.T, json.Unmarshal(r.Value, &s))
		said = append(said, fmt.Sprint(s.ID, " ", s.Key, " ", s.How, " ", s.Actor, " ", s.Reason, " ", s.ParkedFor))
		return true
	}))
	return strings.Join(said, "\n")
}

// failing parks what has the key bad.
func failing(_ context.Context, m pipeline.Delivery) ([]*kgo.Record, error) {
	if string(m.RecordKey) == "bad" {
		return nil, semel.Permanent(errors.New("refused"))
	}
	return []*kgo.Record{{Key: m.RecordKey, Value: m.Body}}, nil
}

func TestRedriveWritesAParkedRecordBackToItsPartition(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		at := time.Now().Add(-time.Minute).Truncate(time.Millisecond)
		first := &kgo.Record{Topic: "in", Partition: 1, Key: []byte("bad"), Value: []byte("1"), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("x")}, {Key: header.Key, Value: []byte("of the stage before")}}}
		b.Write(kafkatest.Record(0, "good", "v"), first, kafkatest.Record(1, "bad", "2"), kafkatest.Record(1, "", "3"))
		began := time.Now()
		p := b.start(opts)
		p.Wait(4, kafkatest.Settled)
		p.Stop()

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

		kafkatest.Must(t, letters.Audit(b.Context(), []byte(`{"verb":"parked retry","reason":"they are intended"}`)))
		if n := len(b.listed(b.topicLot(opts, nil))); n != 3 {
			t.Errorf("%d messages are listed after a line about an intended change, want 3", n)
		}
		places, errs := letters.Redrive(b.Context(), list[:2], "ann")
		kafkatest.Must(t, errors.Join(errs...))
		back := b.Read("in")
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
		kafkatest.Must(t, letters.Settle(b.Context(), list[2], pipeline.Settlement{How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}))
		if err := letters.Settle(b.Context(), list[2], pipeline.Settlement{How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}); !errors.Is(err, pipeline.ErrNotParked) {
			t.Errorf("skipped twice: %v", err)
		}
		want := "    they are intended \n" + list[0].ID + " bad redriven ann written back to its topic permanent\n" + list[1].ID + " bad redriven ann written back to its topic permanent\n" + list[2].ID + "  skipped bob a test key-missing"
		if got := b.settlements(); got != want {
			t.Errorf("the log says\n%s\nwant\n%s", got, want)
		}

		// Both have one key: one of them runs.
		opts.Transform = nil
		p = b.start(opts)
		defer p.Stop()
		p.Wait(4, kafkatest.Settled) // with the ends of the reading
		if got := b.Values(b.Read("out")); got["bad"] != "1" || len(got) != 2 {
			t.Errorf("outputs %v", got)
		}
	})
}

func TestAMessageThatFailsAgainCountsItsRedrives(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		b.Write(kafkatest.Record(0, "bad", "v"))
		p := b.start(opts)
		defer p.Stop()
		p.Wait(1, kafkatest.Settled)
		letters := b.topicLot(opts, nil)
		for n := range 3 {
			list := b.listed(letters)
			if len(list) != 1 || list[0].Redrives != n {
				t.Fatalf("%d messages after %d redrives: %+v", len(list), n, list)
			}
			b.redrive(letters, list...)
			p.Wait(n+2, kafkatest.Settled)
		}
	})
}

func TestParkedMessageStaysListedWhenItsSettlementCannotBeWritten(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Transform = failing
		b.Write(kafkatest.Record(0, "bad", "v"))
		p := b.start(opts)
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		b.Cluster.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
			resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
			topic := kmsg.NewCreateTopicsResponseTopic()
			topic.Topic, topic.ErrorCode = "aside-settled", kerr.TopicAuthorizationFailed.Code
			resp.Topics = append(resp.Topics, topic)
			return resp, nil, true
		})
		letters := b.topicLot(opts, nil)
		list := b.listed(letters)
		_, errs := letters.Redrive(b.Context(), list, "ann")
		if errs[0] == nil || !strings.Contains(errs[0].Error(), "it was written to in/0 at 1, and stays listed: kafka: create topic aside-settled") {
			t.Errorf("%v", errs[0])
		}
		if left := b.listed(letters); len(left) != 1 {
			t.Fatalf("%d messages are listed", len(left))
		}
		b.redrive(letters, list...)
		opts.Transform = nil
		p = b.start(opts)
		defer p.Stop()
		p.Wait(2, kafkatest.Settled)
		if got := b.Values(b.Read("out")); len(got) != 1 {
			t.Errorf("outputs %v", got)
		}
	})
}

func TestDeadLetterTopicReadsRecordsOfOtherPrograms(t *testing.T) {
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
			{Value: []byte("another pipeline"), Headers: header(record.HeaderReason, "late", record.ConnectName, "q", record.ConnectTopic, "in", record.ConnectPartition, "0", record.ConnectOffset, "7")},
			{Value: []byte("Connect"), Headers: header(record.ConnectName, "c", record.ConnectTopic, "in", record.ConnectPartition, "0", record.ConnectOffset, "7", record.ConnectError, "oh")},
			{Value: []byte("Connect elsewhere"), Headers: header(record.ConnectName, "c", record.ConnectTopic, "other", record.ConnectPartition, "0", record.ConnectOffset, "7")},
			{Value: []byte("nowhere"), Headers: header("own", "1")},
			{Value: []byte("no such partition"), Headers: header(record.ConnectTopic, "in", record.ConnectPartition, "9", record.ConnectOffset, "7")},
		} {
			r.Topic, r.Key = "aside", []byte("k")
			b.Write(r)
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
		if back := b.Read("in"); len(back) != 1 || string(back[0].Value) != "Connect" {
			t.Errorf("%d records came back", len(back))
		}
		for _, id := range []string{"", "aside", "aside/0", "aside/0/99", "aside/7/0", "aside/0/00", "aside/0/-1", "in/0/0", "aside/0/0", list[0].ID} {
			if _, err := letters.Get(b.Context(), id); !errors.Is(err, pipeline.ErrNotParked) {
				t.Errorf("Get(%q): %v", id, err)
			}
		}
	})
}

// TestRedriveKnowsTopicsOfAPatternThatCameLater has a topic that was created after the messages were
// listed, and one that was deleted.
func TestRedriveKnowsTopicsOfAPatternThatCameLater(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		pattern, err := kafka.NewPattern("orders-.*")
		kafkatest.Must(t, err)
		letters := b.topicLot(b.options(), func(o *kafka.DeadLetterTopicOptions) { o.Inputs, o.Pattern = nil, pattern })
		for _, topic := range []string{"orders-gone", "orders-new", "other"} {
			r := &kgo.Record{Topic: "aside", Key: []byte("k"), Value: []byte(topic)}
			for _, h := range [][2]string{{record.ConnectTopic, topic}, {record.ConnectPartition, "0"}, {record.ConnectOffset, "7"}} {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: h[0], Value: []byte(h[1])})
			}
			b.Write(r)
		}
		kafkatest.Must(t, b.Cluster.CreateTopic("orders-new", 1, map[string]string{"max.message.bytes": "1000"}))
		list := b.listed(letters)
		if len(list) != 2 {
			t.Fatalf("%d are listed, want those of topics that match", len(list))
		}
		_, errs := letters.Redrive(b.Context(), list, "ann")
		for i, p := range list {
			if gone := string(p.Message.Body) == "orders-gone"; gone != (errs[i] != nil) || gone && !strings.Contains(errs[i].Error(), "orders-gone") {
				t.Errorf("%s: %v", p.Message.Body, errs[i])
			}
		}
		if back := b.Read("orders-new"); len(back) != 1 || string(back[0].Value) != "orders-new" {
			t.Errorf("%d records came back", len(back))
		}
		long := *list[0]
		long.Message.Origin.Source, long.Message.Body = "orders-new", make([]byte, 2000)
		if _, errs := letters.Redrive(b.Context(), []*pipeline.Parked{&long}, "ann"); errs[0] == nil || !strings.Contains(errs[0].Error(), "takes 1000") {
			t.Errorf("a message that is too large: %v", errs)
		}
	})
}

func TestParkedRecordsHaveTheirKeyHeaders(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		parker, err := kafka.OpenParker(b.Context(), b.Reach(), "aside")
		kafkatest.Must(t, err)
		defer parker.Close()
		of := func(recordKey, id string) pipeline.Parked {
			return pipeline.Parked{
				Pipeline: "p", Key: semel.Key{Scope: "s", ID: id}, Reason: "attempts", Error: "oh", Attempts: 8,
				Message: semel.Message{RecordKey: []byte(recordKey), Body: []byte("v"), Headers: []semel.Header{{Name: "own", Value: []byte("1")}}, Origin: semel.Origin{Source: "in"}},
			}
		}
		other := of("k", "of another rule")
		other.Message.CaselessHeaders = true // as of a request
		kafkatest.Must(t, parker.Park(b.Context(), []pipeline.Parked{of("\x00k", "\x00s\x00k"), other}))
		letters := b.topicLot(b.options(), func(o *kafka.DeadLetterTopicOptions) { o.Group, o.Transactional = "g", false })
		list := b.listed(letters)
		if len(list) != 2 {
			t.Fatalf("%d messages are listed", len(list))
		}
		slices.SortFunc(list, func(a, b *pipeline.Parked) int { return strings.Compare(a.Key.ID, b.Key.ID) })
		if list[0].Key != (semel.Key{Scope: "s", ID: "\x00s\x00k"}) || list[0].Attempts != 8 || list[1].Key.ID != "of another rule" {
			t.Errorf("listed as %+v, %+v", list[0], list[1])
		}
		if list[0].Message.CaselessHeaders || !list[1].Message.CaselessHeaders {
			t.Errorf("the case of headers counts otherwise: %+v, %+v", list[0].Message, list[1].Message)
		}
		_, errs := letters.Redrive(b.Context(), list, "ann")
		if errs[0] != nil || errs[1] == nil || !strings.Contains(errs[1].Error(), "now finds another key in it") {
			t.Errorf("%v", errs)
		}
		if back := b.Read("in"); len(back) != 1 || fmt.Sprintf("%s", back[0].Headers) != "[{own 1} {semel-redrive 1}]" {
			t.Errorf("%d records came back: %+v", len(back), back)
		}
	})
}

func TestRedriveRefusesMessagesOlderThanTheRetention(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		opts.Inputs = []string{"short", "stamped"}
		kafkatest.Must(t, b.Cluster.CreateTopic("short", 1, map[string]string{"retention.ms": "60000"}))
		kafkatest.Must(t, b.Cluster.CreateTopic("stamped", 1, map[string]string{"retention.ms": "60000", "message.timestamp.type": "LogAppendTime"}))
		for _, topic := range opts.Inputs {
			for age := range 2 {
				b.Write(&kgo.Record{Topic: "aside", Timestamp: time.Now().Add(-time.Duration(age) * time.Minute), Headers: []kgo.RecordHeader{
					{Key: record.ConnectTopic, Value: []byte(topic)}, {Key: record.ConnectPartition, Value: []byte("0")}, {Key: record.ConnectOffset, Value: []byte("7")},
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

func TestMessagesOfARecreatedDeadLetterTopicHaveNewIDs(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		adm := kadm.NewClient(b.Client)
		for n := range 2 {
			kafkatest.Must(t, b.Cluster.CreateTopic("made", 1, nil))
			client, err := kgo.NewClient(b.Reach()...) // one that wrote to the topic before knows it by its id
			kafkatest.Must(t, err)
			kafkatest.Must(t, client.ProduceSync(b.Context(), &kgo.Record{Topic: "made", Value: fmt.Append(nil, n)}).FirstErr())
			client.Close()
			var made *kafka.DeadLetterTopicOptions
			letters := b.topicLot(opts, func(o *kafka.DeadLetterTopicOptions) { o.Topic, made = "made", o })
			list := b.listed(letters)
			if len(list) != 1 || list[0].ID != "made/0/0" {
				t.Fatalf("round %d: %+v", n, list)
			}
			kafkatest.Must(t, letters.Settle(b.Context(), list[0], pipeline.Settlement{How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}))
			if left := b.listed(letters); len(left) != 0 {
				t.Errorf("round %d: %d are left", n, len(left))
			}
			_, err = adm.DeleteTopic(b.Context(), "made")
			kafkatest.Must(t, err)
			if _, err := kafka.OpenDeadLetterTopic(b.Context(), made); !errors.Is(err, kafka.ErrNoTopic) {
				t.Errorf("without the topic: %v", err)
			}
		}
	})
}

// TestAMessageThatAnotherProcessSettledFirstIsNotRedriven has one dead-letter store look before the topic of
// settled messages exists. The client remembers that it is missing.
func TestAMessageThatAnotherProcessSettledFirstIsNotRedriven(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		opts := b.options()
		b.Write(&kgo.Record{Topic: "aside", Value: []byte("1")}, &kgo.Record{Topic: "aside", Value: []byte("2")})
		letters, other := b.topicLot(opts, nil), b.topicLot(opts, nil)
		list := b.listed(letters)
		if len(list) != 2 {
			t.Fatalf("%d messages are listed, want 2", len(list))
		}
		skipped := pipeline.Settlement{ID: list[0].ID, How: pipeline.HowSkipped, Actor: "bob", Reason: "a test"}
		kafkatest.Must(t, other.Settle(b.Context(), list[0], skipped))
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

// TestARedrivenMessageIsNeverLate has a record parked, which comes back when it is
// older than the newest by more than the window.
func TestARedrivenMessageIsNeverLate(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(o *kafkatxn.TransactorOptions){
		"drop":    func(o *kafkatxn.TransactorOptions) { o.EventTime.OnLate = pipeline.Drop },
		"park":    func(*kafkatxn.TransactorOptions) {},
		"deliver": func(o *kafkatxn.TransactorOptions) { o.EventTime.DeliverLate = true },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, 1, func(b *bubble) {
				opts := b.options()
				opts.EventTime, opts.Window, opts.Transform = &kafkatxn.EventTime{}, time.Hour, failing
				change(&opts)
				base := time.Now().Add(-48 * time.Hour)
				bad, good := kafkatest.Record(0, "bad", "v"), kafkatest.Record(0, "good", "v")
				bad.Timestamp, good.Timestamp = base, base.Add(2*time.Hour)
				b.Write(bad, good)
				p := b.start(opts)
				p.Wait(2, kafkatest.Settled)
				p.Stop()

				letters := b.topicLot(opts, nil)
				list := b.listed(letters)
				b.redrive(letters, list...)
				twice := kafkatest.Record(0, "bad", "v")
				twice.Timestamp, twice.Headers = base, []kgo.RecordHeader{{Key: pipeline.RedriveHeader, Value: []byte("1")}}
				b.Write(twice)
				opts.Transform = nil
				p = b.start(opts)
				p.Wait(2, kafkatest.Settled)
				p.Stop()
				if got := kafkatest.KeysOf(b.Read("out")); strings.Join(got, " ") != "bad good" {
					t.Errorf("outputs %v, want each once", got)
				}
				if late, twice := p.Events.Decisions(semel.Late), p.Events.Decisions(semel.Duplicate); late != 0 || twice != 1 {
					t.Errorf("%d late and %d duplicates, want none and the second copy", late, twice)
				}
				if left := b.listed(letters); len(left) != 0 {
					t.Errorf("%d are parked", len(left))
				}
			})
		})
	}
}
