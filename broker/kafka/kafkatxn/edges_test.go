package kafkatxn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

// The tests here are for small changes of the code that other tests did not notice.

// tried is a trial that begins at a time.
type tried struct {
	*testing.T
	*Trial
	base time.Time
}

// try starts a trial of records with the record key as id.
func try(t *testing.T, change func(*TransactorOptions)) *tried {
	t.Helper()
	base := time.Date(2026, 11, 24, 13, 0, 0, 0, time.UTC)
	opts := TransactorOptions{Group: "g", Inputs: []string{"in"}, Output: Output{Topic: "out"}, Parked: "aside", Key: Key{Rule: ruleFor(t, "record-key"), Scope: Scope{Name: "s"}}}
	change(&opts)
	trial, err := NewTrial(&opts, base, 1)
	kafkatest.Must(t, err)
	return &tried{t, trial, base}
}

// at sends a message, which arrives at a second and has the time of another one.
func (t *tried) at(second, when int, id, body string, headers ...string) Outcome {
	t.Helper()
	m := &semel.Message{RecordKey: []byte(id), Body: []byte(body), Time: t.base.Add(time.Duration(when) * time.Second)}
	for i := 0; i < len(headers); i += 2 {
		m.Headers = append(m.Headers, semel.Header{Name: headers[i], Value: []byte(headers[i+1])})
	}
	o, err := t.Send(t.Context(), t.base.Add(time.Duration(second)*time.Second), m)
	kafkatest.Must(t.T, err)
	return o
}

func TestANewestVersionCountsByTheWatermarkAndTheClock(t *testing.T) {
	t.Parallel()
	minute := func(o *TransactorOptions) {
		o.Keep, o.Window, o.EventTime = &stream.Keep{Newest: ruleFor(t, ".v")}, time.Minute, &EventTime{}
	}
	tr := try(t, minute)
	tr.at(100, 100, "b", `{"v":1}`)
	tr.at(100, 10, "a", `{"v":2}`) // as of the watermark, 100
	if o := tr.at(150, 150, "a", `{"v":1}`); o.Decision != semel.Superseded {
		t.Errorf("an older version is %s within the window", o.Decision)
	}
	if o := tr.at(161, 161, "a", `{"v":1}`); o.Decision != semel.Fresh {
		t.Errorf("a version is %s behind the window", o.Decision)
	}
	tr = try(t, minute)
	tr.at(0, 0, "a", `{"v":2}`)
	tr.at(0, 200, "b", `{"v":1}`) // from the future: as of now
	if o := tr.at(1, 1, "a", `{"v":1}`); o.Decision != semel.Superseded {
		t.Errorf("after a record from the future an older version is %s", o.Decision)
	}
	tr = try(t, minute)
	tr.at(100, 0, "a", `{"v":2}`)
	if o := tr.at(200, 30, "a", `{"v":1}`); o.Decision != semel.Superseded {
		t.Errorf("an older version is %s within the window by the times of records", o.Decision)
	}
	tr = try(t, func(o *TransactorOptions) { minute(o); o.EventTime = nil })
	tr.at(0, 0, "a", `{"v":2}`)
	if o := tr.at(59, 3600, "a", `{"v":1}`); o.Decision != semel.Superseded { // by the clock
		t.Errorf("an older version is %s by the clock", o.Decision)
	}
	tr.at(61, 0, "b", `{"v":1}`)
	if o := tr.at(61, 0, "a", `{"v":1}`); o.Decision != semel.Fresh {
		t.Errorf("a version is %s when the clock has passed the window", o.Decision)
	}
}

func TestAVersionThatIsParkedIsNotRemembered(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) {
		o.Keep = &stream.Keep{Newest: ruleFor(t, ".v")}
		o.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			if string(d.Body) == `{"v":5}` {
				return nil, false, errors.New("it fails")
			}
			return d.Body, true, nil
		}
	})
	if o := tr.at(0, 0, "a", `{"v":5}`); o.Reason == "" {
		t.Fatalf("%+v", o)
	}
	if o := tr.at(0, 0, "a", `{"v":4}`); o.Decision != semel.Fresh {
		t.Errorf("a version below one without an effect is %s", o.Decision)
	}
}

// TestARedrivenRecordWithFirst takes effect although it is late, and is remembered. One
// that is held then does not take effect.
func TestARedrivenRecordWithFirst(t *testing.T) {
	t.Parallel()
	first := func(o *TransactorOptions) {
		o.Keep = &stream.Keep{First: ruleFor(t, ".at"), Grace: time.Second, Idle: semel.Forever}
	}
	body := func(tr *tried, second int) string {
		return fmt.Sprintf(`{"at":%d}`, tr.base.Add(time.Duration(second)*time.Second).UnixMilli())
	}
	tr := try(t, first)
	tr.at(100, 0, "b", body(tr, 100))
	if o := tr.at(100, 0, "a", body(tr, 10)); o.Decision != semel.Late || o.Reason != pipeline.ReasonLate {
		t.Errorf("%+v", o)
	}
	held := tr.at(100, 0, "a", body(tr, 100))
	redriven := tr.at(100, 0, "a", body(tr, 10), pipeline.RedriveHeader, "1")
	if !held.Held || redriven.Decision != semel.Fresh || len(redriven.Outputs) != 1 {
		t.Errorf("held: %t; redriven: %+v", held.Held, redriven)
	}
	if o := tr.at(101, 0, "a", body(tr, 101)); o.Decision != semel.Duplicate {
		t.Errorf("after a redriven one another record is %s", o.Decision)
	}
	tr.at(110, 0, "c", body(tr, 110))
	released, err := tr.Pass(t.Context(), tr.base.Add(110*time.Second))
	kafkatest.Must(t, err)
	for _, r := range released {
		if string(r.Key) == "a" {
			t.Error("a record took effect after a redriven one of its key")
		}
	}
}

// TestAHeldRecordIsWhole is delivered as it was read, and parked so if it fails then.
func TestAHeldRecordIsWhole(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) {
		o.Keep, o.Key.Rule = &stream.Keep{Last: stream.Tumbling(time.Minute), Idle: semel.Forever}, ruleFor(t, "header:id")
		o.Output.KeyHeaders = true
		o.FilterMap = func(_ context.Context, d pipeline.Delivery) ([]byte, bool, error) {
			if string(d.Body) == "fails" {
				return nil, false, errors.New("it fails")
			}
			return append([]byte("mapped "), d.Body...), true, nil
		}
	})
	tr.at(10, 10, "unused", "earlier", "id", "0")
	m := &semel.Message{Body: []byte("text"), Time: tr.base.Add(10 * time.Second), Headers: []semel.Header{{Name: "id", Value: []byte("1")}}}
	if o, err := tr.Send(t.Context(), m.Time, m); err != nil || !o.Held {
		t.Fatalf("%+v, %v", o, err)
	}
	if o := tr.at(60, 60, "", "fails", "id", "2"); !o.Held {
		t.Fatalf("%+v", o)
	}
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Minute))
	kafkatest.Must(t, err)
	if len(released) != 2 {
		t.Fatalf("%d records took effect", len(released))
	}
	var r *kgo.Record
	for _, one := range released {
		if string(one.Value) == "mapped text" {
			r = one
		}
	}
	if r == nil || r.Key != nil || !r.Timestamp.Equal(m.Time) || !strings.Contains(headerText(r), "semel-origin=in 0/1") {
		t.Errorf("%+v", released)
	}
	tr.at(120, 120, "", "later", "id", "3")
	tr.written = nil
	if _, err := tr.Pass(t.Context(), tr.base.Add(2*time.Minute)); err == nil || !strings.Contains(err.Error(), "it fails") {
		t.Errorf("a held record that fails: %v", err)
	}
	if body := string(tr.aside.Item.Message.Body); body != "fails" {
		t.Errorf("%q is parked", body)
	}
}

// TestRecordsThatAreTooLargeToBeHeld do not take effect: with their key they do not fit
// into the topic that holds them.
func TestRecordsThatAreTooLargeToBeHeld(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) {
		o.Keep, o.Key.Rule = &stream.Keep{Last: stream.Tumbling(time.Minute)}, ruleFor(t, "header:id")
	})
	const most = 1_000_012 // for a topic that nothing is known of
	id, held, refused := strings.Repeat("k", 3000), 0, 0
	for size := most - 3*len(id); size < most; size += 50 {
		if o := tr.at(0, 0, "", strings.Repeat("x", size), "id", id); o.Held {
			held++
		} else if refused++; o.Reason == "" {
			t.Fatalf("%+v", o)
		}
		for _, p := range tr.s.parts {
			for _, r := range p.windows {
				if len(r.Value)+cluster.BatchOverhead > most {
					t.Fatalf("a record of %d bytes was written to %s", len(r.Value), r.Topic)
				}
			}
		}
	}
	if held == 0 || refused == 0 {
		t.Errorf("%d are held, and %d refused", held, refused)
	}
}

func TestAGroupKeyThatIsTooLongIsParked(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute) })
	for _, c := range []struct {
		n    int
		park bool
	}{{semel.MaxKeyBytes, false}, {semel.MaxKeyBytes + 1, true}} {
		o := tr.at(0, 0, fmt.Sprint(c.n), fmt.Sprintf(`{"g":%q,"v":1}`, strings.Repeat("g", c.n)))
		if parked := o.Reason != ""; parked != c.park {
			t.Errorf("%d bytes: %v", c.n, o.Err)
		}
	}
}

// countIn makes options count in windows.
func countIn(t *testing.T, o *TransactorOptions, size time.Duration) {
	t.Helper()
	values, err := stream.Values(stream.Value{Name: "n", Of: "count"})
	kafkatest.Must(t, err)
	by, err := key.ParseRule(".g")
	kafkatest.Must(t, err)
	o.Aggregate = &stream.Aggregate{By: by, Over: stream.Tumbling(size), Func: values, Idle: semel.Forever}
}

// TestATransactionWritesAtMostSoManyResults for all partitions together, in the partitions
// of the input if that is asked for.
func TestATransactionWritesAtMostSoManyResults(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Output.SamePartition = true })
	send := func(partition int32, id, group string, second int) {
		m := &semel.Message{RecordKey: []byte(id), Body: fmt.Appendf(nil, `{"g":%q}`, group), Time: tr.base.Add(time.Duration(second) * time.Second), Origin: semel.Origin{Partition: partition}}
		_, err := tr.Send(t.Context(), tr.base.Add(2*time.Minute), m)
		kafkatest.Must(t, err)
	}
	for p := range int32(2) {
		for i := range 5 {
			send(p, fmt.Sprint(i), fmt.Sprint("g", p, i), 0)
		}
		send(p, "end", "end", 60)
	}
	tr.s.t.opts.results = 3
	total := 0
	for tr.s.due() {
		before, _ := tr.s.t.health.Progress()
		kafkatest.Must(t, tr.transact(t.Context(), nil))
		out := tr.outputs()
		if after, _ := tr.s.t.health.Progress(); after != before+uint64(len(out)) { // otherwise a long close counts as a stall
			t.Errorf("the progress was %d, and is %d with %d results", before, after, len(out))
		}
		if len(out) == 0 || len(out) > 3 {
			t.Fatalf("a transaction wrote %d results", len(out))
		}
		for _, r := range out {
			if r.Partition != int32(r.Key[1]-'0') {
				t.Errorf("%s is in partition %d", r.Key, r.Partition)
			}
		}
		total += len(out)
	}
	if total != 10 {
		t.Errorf("%d results", total)
	}
}

// TestAResultThatIsTooLargeStops says which one it is.
func TestAResultThatIsTooLargeStops(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Func = large{o.Aggregate.Func} })
	tr.at(0, 0, "1", `{"g":"a"}`)
	tr.at(60, 60, "2", `{"g":"a"}`)
	if _, err := tr.Pass(t.Context(), tr.base.Add(time.Minute)); !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), `the result of "a" in the window of in/0`) {
		t.Error(err)
	}
}

// large is an Aggregator with large results.
type large struct{ stream.Aggregator }

// Result implements stream.Aggregator.
func (large) Result(*stream.Closed) ([]byte, error) { return make([]byte, 2<<20), nil }

// careless is an Aggregator that panics for a value, and has no results for some groups.
type careless struct{ stream.Aggregator }

// Add implements stream.Aggregator.
func (c careless) Add(acc []byte, m *semel.Message) ([]byte, error) {
	if bytes.Contains(m.Body, []byte("bad")) {
		panic("bad value")
	}
	return c.Aggregator.Add(acc, m)
}

// Result implements stream.Aggregator.
func (c careless) Result(w *stream.Closed) ([]byte, error) {
	switch w.Key {
	case "none":
		return nil, nil
	case "stops":
		panic("bad result")
	}
	return c.Aggregator.Result(w)
}

func TestAnAggregatorMayPanicAndHaveNoResult(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Func = careless{o.Aggregate.Func} })
	tr.at(0, 0, "1", `{"g":"a"}`)
	tr.at(0, 0, "2", `{"g":"none"}`)
	if o := tr.at(0, 0, "3", `{"g":"a","v":"bad"}`); o.Reason != pipeline.ReasonPermanent || !strings.Contains(o.Err.Error(), "bad value") {
		t.Errorf("%+v", o)
	}
	tr.at(60, 60, "4", `{"g":"stops"}`)
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Minute))
	if err != nil || len(released) != 1 || !strings.Contains(string(released[0].Value), `"n":1`) {
		t.Errorf("%d results, %v", len(released), err)
	}
	tr.at(120, 120, "5", `{"g":"a"}`)
	if _, err := tr.Pass(t.Context(), tr.base.Add(2*time.Minute)); !errors.Is(err, pipeline.ErrStopped) || !strings.Contains(err.Error(), "bad result") {
		t.Error(err)
	}
}

func TestAPartitionWithoutAnOffsetHasNoPresentOne(t *testing.T) {
	t.Parallel()
	p := &part{id: cluster.Partition{Topic: "in"}}
	for offset, want := range map[int64]bool{-1: false, 0: true, 7: true} {
		if _, ok := present(map[string]map[int32]kgo.EpochOffset{"in": {0: {Offset: offset}}}, p); ok != want {
			t.Errorf("%d: %t", offset, ok)
		}
	}
}

// TestRecordsKeepAPartitionFromBeingQuiet has a record from time to time. All have the same
// time, which the clock would close meanwhile.
func TestRecordsKeepAPartitionFromBeingQuiet(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		p := b.start(b.counting(10*time.Second, 0, 20*time.Second))
		base := time.Now().Truncate(10 * time.Second)
		for i := range 30 {
			b.Write(counted(0, fmt.Sprint(i), "a", 1, base))
			p.Wait(i+1, kafkatest.Settled)
			time.Sleep(7 * time.Second) // in a bubble
		}
		time.Sleep(time.Minute) // in a bubble
		if got := b.finals(); got != "a n=30 s=30" {
			t.Errorf("results %s", got)
		}
		p.Stop()
	})
}

// TestAPartitionIsQuietAsOfTheQuestion gets each answer about the end of the partition some
// seconds after it was asked for. A record may have come meanwhile.
func TestAPartitionIsQuietAsOfTheQuestion(t *testing.T) {
	t.Parallel()
	for shift := range 8 { // of the questions
		inBubble(t, 1, func(b *bubble) {
			const size, idle, slow = 10 * time.Second, 20 * time.Second, 4 * time.Second
			opts := b.counting(size, 0, idle)
			opts.Timeouts.Session = time.Minute
			p := b.start(opts)
			base := time.Now().Truncate(size)
			time.Sleep(time.Duration(shift) * 500 * time.Millisecond) // in a bubble
			b.Write(counted(0, "1", "a", 1, time.Now()))
			p.Wait(1, kafkatest.Settled)
			var ends atomic.Bool
			b.Cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
				if !ends.Load() {
					b.Cluster.KeepControl()
					b.Cluster.SleepControl(func() { time.Sleep(slow) }) // in a bubble
				}
				return nil, nil, false
			})
			due := base.Add(size + idle + stream.ClockMargin)
			time.Sleep(time.Until(due.Add(slow - time.Second/2))) // in a bubble
			if watermarkOf(p) >= base.Add(size).UnixMilli() {
				t.Error("a window was closed by the time of an answer")
			}
			time.Sleep(time.Minute) // in a bubble
			if watermarkOf(p) < base.Add(size).UnixMilli() {
				t.Error("the window is not closed")
			}
			ends.Store(true)
			time.Sleep(time.Minute) // in a bubble
			p.Stop()
		})
	}
}

// watermarkOf returns the committed watermark of the only partition.
func watermarkOf(p *program) int64 {
	p.tr.mu.Lock()
	defer p.tr.mu.Unlock()
	return p.tr.slots[cluster.Partition{Topic: "in"}].watermark.Load()
}

// TestTopicsOfWindowsThatWouldLoseThemAreRefused names what is wrong with each.
func TestTopicsOfWindowsThatWouldLoseThemAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 2, func(b *bubble) {
		client, err := kgo.NewClient(b.Reach()...)
		kafkatest.Must(b.T, err)
		defer client.Close()
		adm := kadm.NewClient(client)
		forever := kadm.StringPtr("-1")
		for i, c := range []struct {
			partitions int32
			settings   map[string]*string
			want       string
		}{
			{2, map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "retention.ms": forever}, "has cleanup.policy compact"},
			{2, map[string]*string{"retention.ms": kadm.StringPtr("60000")}, "has retention.ms 60000"},
			{2, map[string]*string{"retention.ms": forever, "retention.bytes": kadm.StringPtr("1000")}, "has retention.bytes 1000"},
			{3, map[string]*string{"retention.ms": forever}, "has 2 partitions, and topic"},
		} {
			opts := b.counting(time.Minute, 0, 0)
			opts.Group, opts.Client = fmt.Sprint("g", i), b.Reach()
			_, err := adm.CreateTopic(b.Context(), c.partitions, 1, c.settings, opts.Group+"-state")
			kafkatest.Must(b.T, err)
			tr, err := NewTransactor(&opts)
			kafkatest.Must(b.T, err)
			if err := tr.Run(b.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
	})
}

// TestWindowsOfAnotherTopicAreRefused changes the input and the topic of the keys in a group.
func TestWindowsOfAnotherTopicAreRefused(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		client, err := kgo.NewClient(b.Reach()...)
		kafkatest.Must(b.T, err)
		defer client.Close()
		_, err = kadm.NewClient(client).CreateTopic(b.Context(), 1, 1, nil, "other")
		kafkatest.Must(b.T, err)
		p := b.start(b.counting(time.Minute, 0, 0))
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		p.Stop()
		opts := b.counting(time.Minute, 0, 0)
		opts.Client, opts.Inputs, opts.State.Changelog = b.Reach(), []string{"other"}, "other-keys"
		tr, err := NewTransactor(&opts)
		kafkatest.Must(b.T, err)
		if err := tr.Run(b.Context()); err == nil || !strings.Contains(err.Error(), "holds windows of another topic than other") {
			t.Error(err)
		}
	})
}

// aborting are brokers that do not commit.
type aborting struct{ *Trial }

// End implements brokers.
func (r aborting) End(ctx context.Context, _ kgo.TransactionEndTry) (bool, error) {
	return r.Trial.End(ctx, kgo.TryAbort)
}

// TestATransactionThatIsNotCommittedAddsNothing to windows.
func TestATransactionThatIsNotCommittedAddsNothing(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute) })
	m := &semel.Message{RecordKey: []byte("1"), Body: []byte(`{"g":"a"}`), Time: tr.base}
	tr.s.brokers = aborting{tr.Trial}
	for range 2 {
		if _, err := tr.Send(t.Context(), tr.base, m); !errors.Is(err, errAgain) {
			t.Fatal(err)
		}
	}
	tr.s.brokers = tr.Trial
	if o := tr.at(0, 0, "1", `{"g":"a"}`); o.Decision != semel.Fresh {
		t.Errorf("%+v", o)
	}
	tr.at(60, 60, "2", `{"g":"a"}`)
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Minute))
	kafkatest.Must(t, err)
	if len(released) != 1 || !strings.Contains(string(released[0].Value), `"n":1`) {
		t.Errorf("%d results: %s", len(released), released[0].Value)
	}
}

// TestPartitionsThatAreNotUpToDateCloseNoWindows has one whose windows another process may
// have closed meanwhile.
func TestPartitionsThatAreNotUpToDateCloseNoWindows(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Idle = time.Second })
	for p := range int32(2) {
		for _, second := range []int{0, 60} {
			m := &semel.Message{RecordKey: fmt.Append(nil, second), Body: fmt.Appendf(nil, `{"g":"g%d"}`, p), Time: tr.base.Add(time.Duration(second) * time.Second), Origin: semel.Origin{Partition: p}}
			_, err := tr.Send(t.Context(), tr.base.Add(time.Minute), m)
			kafkatest.Must(t, err)
		}
	}
	behind := tr.s.parts[cluster.Partition{Topic: "in", Number: 1}]
	behind.ready = false
	before := behind.slot.windows.Watermark()
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Hour))
	kafkatest.Must(t, err)
	if len(released) != 2 || string(released[0].Key) != "g0" || string(released[1].Key) != "g0" {
		t.Errorf("%d results", len(released))
	}
	if after := behind.slot.windows.Watermark(); after != before {
		t.Errorf("the watermark moved by %d", after-before)
	}
}

func TestThePolicyDecidesWhatIsDoneWithLateMessages(t *testing.T) {
	t.Parallel()
	for then, kind := range map[pipeline.Then]pipeline.EventKind{pipeline.Park: pipeline.EventParked, pipeline.Drop: pipeline.EventDropped, pipeline.Stop: 0} {
		tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Late = then })
		tr.at(0, 0, "1", `{"g":"a"}`)
		tr.at(1, 120, "2", `{"g":"a"}`)
		o := tr.at(2, 0, "3", `{"g":"a"}`)
		if o.Reason != pipeline.ReasonLate || tr.aside.Kind != kind {
			t.Errorf("%v: %+v, and the event is %v", then, o, tr.aside.Kind)
		}
	}
}

func TestResultsAreInTheOrderOfTheirPartitions(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Idle = time.Second })
	want := ""
	for n := range int32(10) {
		m := &semel.Message{RecordKey: fmt.Append(nil, n), Body: fmt.Appendf(nil, `{"g":"g%d"}`, n), Time: tr.base, Origin: semel.Origin{Partition: n}}
		_, err := tr.Send(t.Context(), tr.base, m)
		kafkatest.Must(t, err)
		want += fmt.Sprint("g", n)
	}
	released, err := tr.Pass(t.Context(), tr.base.Add(time.Hour))
	kafkatest.Must(t, err)
	got := ""
	for _, r := range released {
		got += string(r.Key)
	}
	if got != want {
		t.Errorf("results %s, want %s", got, want)
	}
}

// TestOnlyAPartitionThatIsReadToItsEndIsQuiet has answers of brokers about its end.
func TestOnlyAPartitionThatIsReadToItsEndIsQuiet(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute); o.Aggregate.Idle = time.Second })
	tr.at(0, 0, "1", `{"g":"a"}`)
	for _, c := range []struct {
		name  string
		ends  kadm.ListedOffsets
		quiet bool
	}{
		{"no answer", kadm.ListedOffsets{}, false},
		{"an error", kadm.ListedOffsets{"in": {0: {Offset: -1, Err: kerr.NotLeaderForPartition}}}, false},
		{"a record that is not read", kadm.ListedOffsets{"in": {0: {Offset: 2}}}, false},
		{"the end", tr.listEnds(), true},
	} {
		for _, minute := range []int{5, 6} {
			tr.s.settleQuiet(tr.base.Add(time.Duration(minute)*time.Minute).UnixMilli(), c.ends)
		}
		if got := tr.s.parts[cluster.Partition{Topic: "in"}].slot.windows.Due(); got != c.quiet {
			t.Errorf("%s: the window is due: %t", c.name, got)
		}
	}
}

// TestForgottenWindowsCutNothing has a changelog that lost records. What counted before says
// nothing of the records that are written now.
func TestForgottenWindowsCutNothing(t *testing.T) {
	t.Parallel()
	tr := try(t, func(o *TransactorOptions) { countIn(t, o, time.Minute) })
	tr.at(0, 0, "1", `{"g":"a"}`)
	p := tr.s.parts[cluster.Partition{Topic: "in"}]
	p.slot.windowsCut.Store(7)
	kafkatest.Must(t, tr.s.t.forgetWindows(p))
	if cut, open := p.slot.windowsCut.Load(), p.slot.windows.Open(); cut != 0 || open != 0 {
		t.Errorf("the changelog is cut at %d, and %d windows are open", cut, open)
	}
}

// TestALostConnectionKeepsTheWindows that are in memory: their last record is still there.
func TestALostConnectionKeepsTheWindows(t *testing.T) {
	t.Parallel()
	inBubble(t, 1, func(b *bubble) {
		p := b.start(b.counting(10*time.Second, 0, 20*time.Second))
		b.Write(counted(0, "1", "a", 1, time.Now()))
		p.Wait(1, kafkatest.Settled)
		p.Line.On(kafkatest.Once(kmsg.EndTxn, 1), nil)
		b.Write(counted(0, "2", "a", 2, time.Now()))
		time.Sleep(time.Second) // in a bubble
		p.Line.On(nil, nil)
		p.Line.Mend()
		p.Wait(2, kafkatest.Settled)
		time.Sleep(2 * time.Minute) // in a bubble
		if got := b.finals(); got != "a n=2 s=3" {
			t.Errorf("results %s", got)
		}
		p.Stop()
		log := strings.Join(p.Events.Log, "\n")
		if !strings.Contains(log, "a member restarts") || strings.Contains(log, "another record than before") {
			t.Error("the member did not restart, or dropped its windows")
		}
	})
}
