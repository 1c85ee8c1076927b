package promobserve_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/observe/promobserve"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/memstore"
)

func registered(t testing.TB) (*promobserve.Metrics, func() string) {
	t.Helper()
	m, registry := promobserve.New(), prometheus.NewPedanticRegistry()
	if err := registry.Register(m); err != nil {
		t.Fatal(err)
	}
	handler := promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError})
	return m, func() string {
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		if answer.Code != http.StatusOK {
			t.Fatal(answer.Code, answer.Body)
		}
		return answer.Body.String()
	}
}

func samples(exposition string) (n int) {
	for line := range strings.Lines(exposition) {
		if !strings.HasPrefix(line, "#") {
			n++
		}
	}
	return n
}

// For any messages, the number of samples stays the same and no content of a
// message is in them.
func TestMessageContentCreatesNoMetricSeries(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("SEMEL_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	t.Logf("SEMEL_SEED=%d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	m, scrape := registered(t)
	p := m.Pipeline("orders", "keys", time.Hour)
	p.ObservePipeline(pipeline.Event{Kind: pipeline.EventStandby}) // a gauge exists from its first value
	before := samples(scrape())
	parts := []string{"hostile", "\"}", "\n", "\\", "\x00", "\xff\xfe", "{a=\"b\"}", "é", strings.Repeat("x", 5000), "# TYPE hostile counter\nhostile 1\n"}
	for i := range 3000 {
		text := fmt.Sprint(i) + parts[random.IntN(len(parts))] + parts[random.IntN(len(parts))]
		if i < len(parts) {
			text = parts[i]
		}
		p.Observe(semel.Event{
			Kind: semel.EventKind(random.IntN(12)), Key: semel.Key{Scope: text, ID: text}, Decision: semel.Decision(random.IntN(12)),
			Reason: text, Attempt: i, Elapsed: time.Duration(random.IntN(1e9)), Err: errors.New(text),
		})
		p.ObservePipeline(pipeline.Event{
			Kind: pipeline.EventKind(random.IntN(16)), Pipeline: text, Count: 1, Decision: semel.Decision(random.IntN(12)),
			Reason: text, Err: errors.New(text), Item: &pipeline.Item{Message: semel.Message{ID: text, Body: []byte(text), Origin: semel.Origin{Source: text}}},
		})
	}
	p.Observe(semel.Event{Kind: semel.EventWindowMeasured, Window: time.Hour, Elapsed: time.Minute})
	after := scrape()
	if n := samples(after); n != before && n != before+1 { // the window was measured
		t.Errorf("%d samples, %d before", n, before)
	}
	if strings.Contains(after, "hostile") || strings.Contains(after, "xxxx") {
		t.Error("what a message carried is in the exposition")
	}
}

func TestNamesThatAreNoUTF8DoNotBreakTheScrape(t *testing.T) {
	t.Parallel()
	m, scrape := registered(t)
	m.Pipeline("a\xffb", "c\"d\ne", 0)
	m.Layer("s", "\xfe", true)
	if text := scrape(); !strings.Contains(text, "a\uFFFDb") {
		t.Error("the pipeline is missing")
	}
}

func TestLagListsOnlyAssignedPartitions(t *testing.T) {
	t.Parallel()
	m, scrape := registered(t)
	m.Lag("p", []pipeline.Lag{{Source: "t\xff", Partition: 0, Messages: 7, Bytes: pipeline.UnknownLag}, {Source: "t\xff", Partition: 1, Messages: 8, Bytes: pipeline.UnknownLag}})
	m.Lag("q", []pipeline.Lag{{Messages: pipeline.UnknownLag, Bytes: 100}})
	m.Lag("p", []pipeline.Lag{{Source: "t\xff", Partition: 1, Messages: 0, Bytes: pipeline.UnknownLag}})
	m.Waiting("p", 3)
	m.Loss("p", 0.25)
	text := scrape()
	for _, want := range []string{
		`dedup_source_lag_messages{partition="1",pipeline="p",source="t�"} 0`,
		`dedup_source_lag_bytes{partition="0",pipeline="q",source=""} 100`, `dedup_parked_waiting{pipeline="p"} 3`, `dedup_loss_ratio{pipeline="p"} 0.25`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\ndedup_source_lag_"); n != 2 {
		t.Errorf("%d series of lag, want 2:\n%s", n, text)
	}
	m.Lag("p", nil)
	m.Lag("q", nil)
	if strings.Contains(scrape(), "\ndedup_source_lag_") {
		t.Error("lag is shown of what does not run")
	}
}

func TestNewGaugesReplaceTheEarlierOnesOfTheirSource(t *testing.T) {
	t.Parallel()
	m, scrape := registered(t)
	m.Gauges("p", []pipeline.Gauge{{Name: "dedup.outbox.owner", Labels: []string{"1", "a"}, Value: 3}, {Name: "dedup.outbox.oldest", Labels: []string{"1"}, Value: 1.5}})
	m.Gauges("q", []pipeline.Gauge{{Name: "dedup.outbox.owner", Labels: []string{"1", "b"}, Value: 7}})
	m.Gauges("p", []pipeline.Gauge{
		{Name: "dedup.outbox.owner", Labels: []string{"1", "b\xff"}, Value: 4}, {Name: "dedup.outbox.oldest", Labels: []string{"1"}, Value: 2.5},
		{Name: "dedup.outbox.owner", Labels: []string{"1"}}, {Name: "dedup.keys", Labels: []string{"claimed"}}, {Name: "other"}, // not instruments of a source, or with other labels
	})
	text := scrape()
	for _, want := range []string{`dedup_outbox_owner{owner="b�",pipeline="p",shard="1"} 4`, `dedup_outbox_owner{owner="b",pipeline="q",shard="1"} 7`, `dedup_outbox_oldest_seconds{pipeline="p",shard="1"} 2.5`} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if n := strings.Count(text, "\ndedup_outbox_"); n != 3 {
		t.Errorf("%d series, want 3:\n%s", n, text)
	}
	m.Gauges("p", nil)
	m.Gauges("q", nil)
	if strings.Contains(scrape(), "\ndedup_outbox_") {
		t.Error("gauges are shown of what does not run")
	}
}

func TestMetricsOfStoresAndWorkInProgress(t *testing.T) {
	t.Parallel()
	m, scrape := registered(t)
	m.Counted("keys", semel.Counts{Done: 3, Claimed: 2, Unknown: 1, MemoryBytes: 10, DiskBytes: 20, Oldest: time.Minute})
	m.Layer("keys", "cache", true)
	m.Filter("keys", "seen", 0.25, 2)
	m.Filter("keys", "seen", 0.5, 1)
	m.Filter("keys", "far", -1, 0)
	m.Passed("keys", 5)
	m.Cleaning("keys")
	m.Cleaned("keys", 7, nil)
	m.Cleaned("keys", 1, errors.New("no"))
	stop := m.Watch("orders", amount{}.UnderWay)
	text := scrape()
	for _, want := range []string{
		`dedup_keys{state="done",store="keys"} 3`, `dedup_keys{state="claimed",store="keys"} 2`, `dedup_keys{state="unknown",store="keys"} 1`,
		`dedup_store_bytes{medium="memory",store="keys"} 10`, `dedup_store_bytes{medium="disk",store="keys"} 20`,
		`dedup_window_effective_seconds{store="keys"} 60`, `dedup_layer_down{layer="cache",store="keys"} 1`,
		`dedup_bloom_fill{layer="seen",store="keys"} 0.5`, `dedup_bloom_false_positives_total{layer="seen",store="keys"} 3`, `dedup_bloom_false_positives_total{layer="far",store="keys"} 0`,
		`dedup_failopen_messages_total{pipeline="",store="keys"} 5`, `dedup_cleanup_keys_total{store="keys"} 8`,
		`dedup_cleanup_passes_total{outcome="error",store="keys"} 1`, `dedup_cleanup_passes_total{outcome="ok",store="keys"} 1`,
		`dedup_in_flight_messages{pipeline="orders"} 4`, `dedup_in_flight_bytes{pipeline="orders"} 400`, `dedup_running{pipeline="orders"} 1`,
	} {
		if !strings.Contains(text, want+"\n") {
			t.Errorf("%s is missing in\n%s", want, text)
		}
	}
	if strings.Contains(text, `dedup_bloom_fill{layer="far"`) {
		t.Error("it shows how full a filter is that does not tell")
	}
	stop()
	stop()
	if text := scrape(); !strings.Contains(text, `dedup_running{pipeline="orders"} 0`) || !strings.Contains(text, `dedup_in_flight_messages{pipeline="orders"} 0`) {
		t.Error("the pipeline has ended and is shown all the same")
	}
}

type amount struct{}

func (amount) UnderWay() (count int, bytes int64) { return 4, 400 }

func TestMetricsAreSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	m, scrape := registered(t)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			g := m.Guard("keys") // each guard belongs to the same store
			for range 1000 {
				g.Observe(semel.Event{Kind: semel.EventDecided, Decision: semel.Duplicate})
			}
			scrape()
		})
	}
	all.Wait()
	if text := scrape(); !strings.Contains(text, `dedup_duplicates_detected_total{pipeline="",reason="completed before",store="keys"} 4000`) {
		t.Error(text)
	}
}

func ExampleMetrics_Guard() {
	metrics := promobserve.New()
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics)

	store, err := memstore.New(nil)
	if err != nil {
		panic(err)
	}
	guard, err := semel.NewGuard(store, &semel.GuardOptions{Observer: metrics.Guard("orders")})
	if err != nil {
		panic(err)
	}
	_ = guard // guard.Do(…)
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	// Output:
}

func BenchmarkPipelineObserver(b *testing.B) {
	m, _ := registered(b)
	p := m.Pipeline("orders", "keys", time.Hour)
	b.ReportAllocs()
	for b.Loop() {
		p.Observe(semel.Event{Kind: semel.EventDecided, Decision: semel.Fresh, Reason: "no record", Elapsed: time.Millisecond})
		p.Observe(semel.Event{Kind: semel.EventCompleted, Elapsed: time.Millisecond})
	}
}
