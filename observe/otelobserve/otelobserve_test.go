package otelobserve_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/measure"
	"github.com/semel-dev/semel/observe/otelobserve"
	"github.com/semel-dev/semel/pipeline"
)

// collect returns the value, or count, of each series.
func collect(t *testing.T, reader *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	add := func(name string, set attribute.Set, v float64) {
		var labels []string
		for _, kv := range set.ToSlice() {
			labels = append(labels, string(kv.Key)+"="+kv.Value.AsString())
		}
		values[name+"{"+strings.Join(labels, ",")+"}"] = v
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					add(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				t.Errorf("%s is %T", m.Name, m.Data)
			}
		}
	}
	return values
}

func newMetrics(t *testing.T) (*otelobserve.Metrics, *sdk.ManualReader) {
	t.Helper()
	reader := sdk.NewManualReader()
	m, err := otelobserve.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("semel"))
	if err != nil {
		t.Fatal(err)
	}
	return m, reader
}

type amount struct{}

func (amount) UnderWay() (count int, bytes int64) { return 4, 400 }

func TestEverythingIsCounted(t *testing.T) {
	t.Setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "")
	m, reader := newMetrics(t)
	p, err := m.Pipeline("orders", &otelobserve.PipelineOptions{Store: "keys", Window: time.Hour, System: "kafka"})
	if err != nil {
		t.Fatal(err)
	}
	p.Observe(semel.Event{Kind: semel.EventDecided, Decision: semel.Duplicate, Reason: "completed before", Elapsed: time.Millisecond})
	p.Observe(semel.Event{Kind: semel.EventCompleted})
	for kind := pipeline.EventRead; kind <= pipeline.EventStandby; kind++ {
		p.ObservePipeline(pipeline.Event{Kind: kind, Count: 3, Bytes: 30, Reason: "sink"})
	}
	m.Counted("keys", semel.Counts{Done: 9, Oldest: time.Minute})
	m.Layer("keys", "cache", true)
	m.Filter("keys", "seen", 0.25, 2)
	m.Cleaning("keys")
	m.Cleaned("keys", 5, errors.New("no"))
	m.Lag("orders", []pipeline.Lag{{Messages: 1, Bytes: 2}})
	m.Gauges("orders", []pipeline.Gauge{{Name: "dedup.outbox.oldest", Labels: []string{"3"}, Value: 1.5}, {Name: "dedup.outbox.owner", Labels: []string{"3", "a"}, Value: 4},
		{Name: "dedup.outbox.slot.retained", Labels: []string{"reserved"}, Value: 8}, {Name: "dedup.outbox.slot.safe", Value: 9},
		{Name: "dedup.windows.open", Labels: []string{"clicks", "2"}, Value: 7}, {Name: "dedup.kept.open", Labels: []string{"clicks", "2"}, Value: 8}, {Name: "dedup.state.bytes", Labels: []string{"clicks", "2"}, Value: 9}, {Name: "dedup.windows.lag", Labels: []string{"clicks", "2"}, Value: 60},
		{Name: "dedup.table.rows", Labels: []string{"customers"}, Value: 5}, {Name: "dedup.table.lag", Labels: []string{"customers"}, Value: 6}})
	m.Waiting("orders", 0)
	m.Loss("orders", 0.01)
	stop, err := m.Watch("orders", amount{}.UnderWay)
	if err != nil {
		t.Fatal(err)
	}
	values := collect(t, reader)
	for series, want := range map[string]float64{
		"dedup.decisions{decision=duplicate,pipeline=orders,reason=completed before,store=keys}": 1,
		"dedup.claim.duration{pipeline=orders,store=keys}":                                       1,
		"dedup.messages.read{pipeline=orders}":                                                   3,
		"dedup.read.bytes{pipeline=orders}":                                                      30,
		"dedup.claims.taken_over{pipeline=orders,store=keys}":                                    0,
		"dedup.window.configured{pipeline=orders,store=keys}":                                    3600,
		"dedup.window.effective{store=keys}":                                                     60,
		"dedup.keys{state=done,store=keys}":                                                      9,
		"dedup.layer.down{layer=cache,store=keys}":                                               1,
		"dedup.bloom.fill{layer=seen,store=keys}":                                                0.25,
		"dedup.bloom.false_positives{layer=seen,store=keys}":                                     2,
		"dedup.cleanup.keys{store=keys}":                                                         5,
		"dedup.in_flight.messages{pipeline=orders}":                                              4,
		"dedup.in_flight.bytes{pipeline=orders}":                                                 400,
		"dedup.running{pipeline=orders}":                                                         1,
		"dedup.outbox.oldest{pipeline=orders,shard=3}":                                           1.5,
		"dedup.outbox.owner{owner=a,pipeline=orders,shard=3}":                                    4,
		"dedup.outbox.slot.retained{pipeline=orders,state=reserved}":                             8,
		"dedup.outbox.slot.safe{pipeline=orders}":                                                9,
		"dedup.windows.open{partition=2,pipeline=orders,source=clicks}":                          7,
		"dedup.kept.open{partition=2,pipeline=orders,source=clicks}":                             8,
		"dedup.state.bytes{partition=2,pipeline=orders,source=clicks}":                           9,
		"dedup.windows.lag{partition=2,pipeline=orders,source=clicks}":                           60,
		"dedup.table.rows{pipeline=orders,table=customers}":                                      5,
		"dedup.table.lag{pipeline=orders,table=customers}":                                       6,
		"dedup.paused{pipeline=orders,reason=sink}":                                              0,
	} {
		if got, there := values[series]; !there || got != want {
			t.Errorf("%s is %v (there: %t), want %v", series, got, there, want)
		}
	}
	for _, i := range measure.Table() {
		if !slices.ContainsFunc(slices.Collect(mapKeys(values)), func(s string) bool { return strings.HasPrefix(s, i.Name+"{") }) {
			t.Errorf("%s is missing", i.Name)
		}
	}
	for series := range values {
		if strings.HasPrefix(series, "messaging.") {
			t.Errorf("the unexpected series %s", series)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if values = collect(t, reader); values["dedup.running{pipeline=orders}"] != 0 {
		t.Error("the pipeline has ended and is shown all the same")
	}
}

func mapKeys(m map[string]float64) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func TestConventionsOfMessagingAreFollowedWhereAskedFor(t *testing.T) {
	for _, opt := range []string{"messaging", "http, messaging/dup"} {
		t.Setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt)
		m, reader := newMetrics(t)
		p, err := m.Pipeline("orders", &otelobserve.PipelineOptions{System: "kafka", Destination: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		p.ObservePipeline(pipeline.Event{Kind: pipeline.EventRead, Count: 3})
		p.ObservePipeline(pipeline.Event{Kind: pipeline.EventDelivered, Count: 2})
		p.ObservePipeline(pipeline.Event{Kind: pipeline.EventDelivered, Count: 1, Err: errors.New("no")})
		values := collect(t, reader)
		for series, want := range map[string]float64{
			"messaging.client.consumed.messages{messaging.destination.name=orders,messaging.operation.name=receive,messaging.system=kafka}":           3,
			"messaging.process.duration{messaging.destination.name=orders,messaging.operation.name=process,messaging.system=kafka}":                   1,
			"messaging.process.duration{error.type=_OTHER,messaging.destination.name=orders,messaging.operation.name=process,messaging.system=kafka}": 1,
			"dedup.messages.read{pipeline=orders}": 3,
		} {
			if values[series] != want {
				t.Errorf("%s: %s is %v, want %v", opt, series, values[series], want)
			}
		}
	}
}

func TestMessagesDoNotMakeSeries(t *testing.T) {
	t.Parallel()
	m, reader := newMetrics(t)
	p, err := m.Pipeline("orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	before := len(collect(t, reader))
	for i := range 500 {
		text := fmt.Sprint("hostile ", i)
		for kind := semel.EventDecided; kind <= semel.EventStoreError; kind++ {
			p.Observe(semel.Event{Kind: kind, Key: semel.Key{Scope: text, ID: text}, Decision: semel.Duplicate, Reason: text, Err: errors.New(text)})
		}
		for kind := pipeline.EventRead; kind <= pipeline.EventStandby; kind++ {
			p.ObservePipeline(pipeline.Event{Kind: kind, Pipeline: text, Count: 1, Reason: text, Err: errors.New(text)})
		}
	}
	after := collect(t, reader)
	for series := range after {
		if strings.Contains(series, "hostile") {
			t.Errorf("%s", series)
		}
	}
	// Histograms exist from their first value.
	if n := len(after) - before; n > 6 {
		t.Errorf("%d series, %d before", len(after), before)
	}
}

func ExampleMetrics_Guard() {
	meter := noop.NewMeterProvider().Meter("github.com/semel-dev/semel") // or otel.Meter
	metrics, err := otelobserve.New(meter)
	if err != nil {
		panic(err)
	}
	options := semel.GuardOptions{Observer: metrics.Guard("orders")}
	_ = options // semel.NewGuard(store, &options)
	// Output:
}

func TestLagShowsThePartitionsThatAreHeldNow(t *testing.T) {
	t.Parallel()
	reader := sdk.NewManualReader()
	m, err := otelobserve.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
	if err != nil {
		t.Fatal(err)
	}
	m.Lag("p", []pipeline.Lag{{Source: "t", Partition: 0, Messages: 7, Bytes: pipeline.UnknownLag}, {Source: "t", Partition: 1, Messages: 8, Bytes: pipeline.UnknownLag}})
	collect(t, reader)
	m.Lag("p", []pipeline.Lag{{Source: "t", Partition: 1, Messages: 5, Bytes: 6}})
	m.Gauges("p", []pipeline.Gauge{{Name: "dedup.outbox.owner", Labels: []string{"3", "a"}, Value: 4},
		{Name: "dedup.windows.open", Labels: []string{"clicks", "2"}, Value: 7}, {Name: "dedup.kept.open", Labels: []string{"clicks", "2"}, Value: 8}, {Name: "dedup.state.bytes", Labels: []string{"clicks", "2"}, Value: 9}, {Name: "dedup.windows.lag", Labels: []string{"clicks", "2"}, Value: 60},
		{Name: "dedup.table.rows", Labels: []string{"customers"}, Value: 5}, {Name: "dedup.table.lag", Labels: []string{"customers"}, Value: 6}})
	m.Gauges("p", nil)
	m.Waiting("p", 3)
	m.Loss("p", 0.25)
	got := collect(t, reader)
	for name, want := range map[string]float64{
		"dedup.source.lag.messages{partition=1,pipeline=p,source=t}": 5, "dedup.source.lag.bytes{partition=1,pipeline=p,source=t}": 6,
		"dedup.parked.waiting{pipeline=p}": 3, "dedup.loss.ratio{pipeline=p}": 0.25,
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, want %v", name, v, want)
		}
	}
	if _, still := got["dedup.outbox.owner{owner=a,pipeline=p,shard=3}"]; still {
		t.Error("a gauge is shown that was taken away")
	}
	if _, still := got["dedup.source.lag.messages{partition=0,pipeline=p,source=t}"]; still {
		t.Error("a partition is shown that was taken away")
	}
}
