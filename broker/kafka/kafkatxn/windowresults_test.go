package kafkatxn

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/stream"
	"github.com/semel-dev/semel/test/kafkatest"
)

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

// TestATransactionWritesALimitedNumberOfResults for all partitions together, in the partitions
// of the input if that is asked for.
func TestATransactionWritesALimitedNumberOfResults(t *testing.T) {
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
	tr.s.t.hooks.results = 3
	total := 0
	for tr.s.due() {
		before, _ := tr.s.t.health.progress()
		kafkatest.Must(t, tr.transact(t.Context(), nil))
		out := tr.outputs()
		if after, _ := tr.s.t.health.progress(); after != before+uint64(len(out)) { // otherwise a long close counts as a stall
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
