package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// live is a daemon with three pipelines. orders follows a file, uses a stack and
// delivers to a webhook. lines copies from file to file. clicks has a filter that
// decides alone.
type live struct {
	address string
	dir     string
	log     *shown
	ended   chan error
}

// shown is a log that a test can read.
type shown struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *shown) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *shown) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

var servers servicestest.Pool

func TestMain(m *testing.M) { os.Exit(servers.Run(m)) }

// start runs a daemon over this input until the test ends. The webhook answers
// 400 to bodies with "poison" and accepts all others. With a database there are
// three more pipelines: rows, whose keys are in the database, topic, which reads
// from Kafka, and events, which reads an outbox.
func start(t *testing.T, input, database string) *live {
	t.Helper()
	l := &live{dir: t.TempDir(), log: &shown{}, ended: make(chan error, 1)}
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		if bytes.Contains(body, []byte("poison")) {
			http.Error(w, "no", http.StatusBadRequest)
		}
	}))
	t.Cleanup(target.Close)
	for _, name := range []string{"orders.jsonl", "lines.jsonl", "rows.jsonl"} {
		if err := os.WriteFile(filepath.Join(l.dir, name), []byte(input), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	name := filepath.Join(l.dir, "semel.yaml")
	text := "stores:\n"
	if database != "" {
		migrate(t, database)
		text += fmt.Sprintf("  db: { postgres: { dsn: %q } }\n", database)
	}
	text += fmt.Sprintf(`
  mem:   { memory: {} }
  disk:  { embedded: { path: %[1]s/disk } }
  own:   { embedded: { path: %[1]s/own } }
  sift:  { filter: { rate: 0.01, expect: 1000, window: 1d } }
  stack: { tiered: { layers: [sift, mem, disk], sees_every_writer: true } }
  seen:  { filter: { rate: 0.01, expect: 1000, window: 1d } }
pipelines:
  clicks: { source: { file: { paths: [%[1]s/lines.jsonl], follow: true } }, key: { id: .id }, window: 1d, store: seen, lossy: true, sink: { file: { path: %[1]s/clicks.jsonl } } }
  orders:
    source: { file: { paths: [%[1]s/orders.jsonl], follow: true, state: %[1]s/state } }
    key: { id: .id }
    window: 1d
    store: stack
    sink: { webhook: { url: %[2]q, allow_private: true } }
    on_failure: { attempts: 2, backoff: 2ms }
    parked: { path: %[1]s/parked }
  lines:
    source: { file: { paths: [%[1]s/lines.jsonl], follow: true } }
    key: { id: .id }
    window: forever
    store: own
    sink: { file: { path: %[1]s/out.jsonl } }
    parked: { path: %[1]s/parked }
`, l.dir, target.URL)
	if database != "" {
		text += fmt.Sprintf(`
  topic:
    source: { kafka: { brokers: [%q], topics: [in], group: g } }
    key: { id: .id }
    store: db
    sink: { webhook: { url: %q, allow_private: true } }
    parked: { path: %s/parked }
`, broker(t, input), target.URL, l.dir)
		text += fmt.Sprintf(`
  events: { source: { outbox: { store: db } }, key: { id: property:message-id }, sink: { webhook: { url: %[2]q, allow_private: true } }, parked: { path: %[1]s/parked } }
  rows:
    source: { file: { paths: [%[1]s/rows.jsonl], follow: true, state: %[1]s/rows-state } }
    key: { id: .id }
    store: db
    sink: { webhook: { url: %[2]q, allow_private: true } }
    parked: { path: %[1]s/parked }
`, l.dir, target.URL)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := kind.All().Read(name, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	log := slog.New(slog.NewJSONHandler(l.log, nil))
	go func() { l.ended <- Run(ctx, file, &RunOptions{Log: log, Admin: "127.0.0.1:0"}) }()
	t.Cleanup(func() {
		stop()
		if err := <-l.ended; err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(l.log)
		}
	})
	listens := regexp.MustCompile(`"msg":"admin server","address":"([^"]+)"`)
	waitFor(t, "the admin server", func() bool {
		found := listens.FindStringSubmatch(l.log.String())
		if found != nil {
			l.address = found[1]
		}
		return found != nil
	})
	return l
}

// broker starts a Kafka in this process whose topic in holds these lines. It
// returns the address.
func broker(t *testing.T, lines string) string {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "in"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic("in"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var records []*kgo.Record
	for line := range strings.Lines(lines) {
		records = append(records, &kgo.Record{Value: []byte(strings.TrimSpace(line))})
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return cluster.ListenAddrs()[0]
}

func migrate(t *testing.T, database string) {
	t.Helper()
	db, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close(t.Context()) }()
	if _, err := pgstore.Migrate(t.Context(), db, nil); err != nil {
		t.Fatal(err)
	}
}

// waitFor polls until a condition holds.
func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(5 * time.Minute)
	for !so() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// scrape returns the metrics exposition.
func (l *live) scrape(t *testing.T) string {
	t.Helper()
	answer, err := http.Get("http://" + l.address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		t.Fatal(answer.Status, err)
	}
	return string(body)
}

// value returns a sample of an exposition, or -1.
func value(exposition, series string) float64 {
	for line := range strings.Lines(exposition) {
		if rest, ok := strings.CutPrefix(line, series+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err == nil {
				return v
			}
		}
	}
	return -1
}

// input returns n messages. Each tenth repeats the one before.
func input(n int, more ...string) string {
	var b strings.Builder
	for i := range n {
		id := i
		if i%10 == 9 {
			id = i - 1
		}
		fmt.Fprintf(&b, "{\"id\":\"m-%d\"}\n", id)
	}
	for _, line := range more {
		b.WriteString(line + "\n")
	}
	return b.String()
}

func TestMetricsOfARunningDaemonAgreeWithItsWork(t *testing.T) {
	t.Parallel()
	l := start(t, input(100, `{"id":"poison"}`, `{"none":1}`), "")
	want := map[string]float64{
		`dedup_messages_read_total{pipeline="orders"}`:                                                          102,
		`dedup_messages_settled_total{pipeline="orders"}`:                                                       102,
		`dedup_messages_delivered_total{outcome="ok",pipeline="orders"}`:                                        90,
		`dedup_decisions_total{decision="duplicate",pipeline="orders",reason="completed before",store="stack"}`: 10,
		`dedup_duplicates_detected_total{pipeline="orders",reason="completed before",store="stack"}`:            10,
		`dedup_events_processed_total{pipeline="orders",store="stack"}`:                                         90,
		`dedup_effect_duration_seconds_count{pipeline="orders",store="stack"}`:                                  90,
		`dedup_claim_duration_seconds_count{pipeline="orders",store="stack"}`:                                   101,
		`dedup_check_duration_seconds_count{pipeline="orders",store="stack"}`:                                   101,
		`dedup_parked_total{pipeline="orders",reason="permanent"}`:                                              1,
		`dedup_parked_total{pipeline="orders",reason="key-missing"}`:                                            1,
		`dedup_failopen_messages_total{pipeline="orders",store="stack"}`:                                        0,
		`dedup_in_flight_messages{pipeline="orders"}`:                                                           0,
		`dedup_in_flight_bytes{pipeline="orders"}`:                                                              0,
		`dedup_running{pipeline="orders"}`:                                                                      1,
		`dedup_paused{pipeline="orders",reason="sink"}`:                                                         0,
		`dedup_window_configured_seconds{pipeline="orders",store="stack"}`:                                      86400,
		`dedup_layer_down{layer="mem",store="stack"}`:                                                           0,
		`dedup_messages_settled_total{pipeline="lines"}`:                                                        102,
		`dedup_events_processed_total{pipeline="lines",store="own"}`:                                            91,
		`dedup_decisions_total{decision="duplicate",pipeline="lines",reason="completed before",store="own"}`:    10,
		`dedup_decisions_total{decision="fresh",pipeline="lines",reason="no record",store="own"}`:               91,
		`dedup_store_errors_total{class="unknown outcome",pipeline="orders",store="stack"}`:                     0,
		`dedup_decisions_total{decision="unknown",pipeline="orders",reason="other",store="stack"}`:              0,
		`dedup_messages_retried_total{pipeline="orders",reason="failed"}`:                                       0,
		`dedup_parked_total{pipeline="lines",reason="key-missing"}`:                                             1,
		`dedup_pauses_total{pipeline="lines",reason="parking"}`:                                                 0,
	}
	var last string
	waitFor(t, "both pipelines", func() bool {
		last = l.scrape(t)
		return value(last, `dedup_messages_settled_total{pipeline="orders"}`) == 102 && value(last, `dedup_messages_settled_total{pipeline="lines"}`) == 102 &&
			value(last, `dedup_store_measured_timestamp_seconds{store="own"}`) > 0 && value(last, `dedup_store_measured_timestamp_seconds{store="stack"}`) > 0 &&
			value(last, `dedup_source_lag_bytes{partition="0",pipeline="orders",source=""}`) == 0 && value(last, `dedup_parked_waiting{pipeline="orders"}`) == 2 && value(last, `dedup_parked_waiting{pipeline="lines"}`) == 1 &&
			value(last, `dedup_messages_settled_total{pipeline="clicks"}`) == 102 && value(last, `dedup_loss_ratio{pipeline="clicks"}`) >= 0 &&
			value(last, `dedup_bloom_fill{layer="sift",store="stack"}`) > 0 && value(last, `dedup_bloom_false_positives_total{layer="sift",store="stack"}`) >= 0 &&
			value(last, `dedup_in_flight_messages{pipeline="orders"}`) == 0 // decremented after a message is settled
	})
	last = l.scrape(t) // one after all work: a scrape reads one number after the other, some before the last messages
	for series, want := range want {
		if got := value(last, series); got != want {
			t.Errorf("%s is %v, want %v", series, got, want)
		}
	}
	if ratio := value(last, `dedup_loss_ratio{pipeline="clicks"}`); ratio >= 0.01 || value(last, `dedup_loss_ratio{pipeline="lines"}`) >= 0 {
		t.Errorf("clicks says that it drops %v, and lines drops nothing", ratio)
	}
	for _, series := range []string{"go_goroutines", "process_open_fds", `dedup_window_effective_seconds{store="own"}`, `dedup_keys{state="done",store="stack"}`, `dedup_store_bytes{medium="disk",store="stack"}`} {
		if value(last, series) < 0 {
			t.Errorf("%s is missing", series)
		}
	}
	if t.Failed() {
		t.Log(last)
	}
}
