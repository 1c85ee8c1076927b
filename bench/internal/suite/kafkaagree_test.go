package suite

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/bench/internal/outputs"
	"github.com/semel-dev/semel/bench/internal/records"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// besideStreams builds Semel and the programs of Kafka Streams.
func besideStreams(t *testing.T) Env {
	t.Helper()
	if testing.Short() {
		t.Skip("-short compares nothing with Kafka Streams: go test -C bench ./internal/suite -run KafkaStreams")
	}
	servicestest.Program(t, services.Kafka43)
	servicestest.Program(t, services.Maven)
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	e := Env{Root: root}
	if err := e.buildStreams(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := e.buildSemel(t.Context()); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestWindowsAgreeWithKafkaStreams runs Semel and Kafka Streams on the same records, on one
// broker, and compares every final result. The times of the records are random: in order,
// late within the grace, later than that, and after pauses of minutes.
//
// Both sides close a window when the greatest time of its partition, minus the grace, has
// reached its end. Late records are dropped by Kafka Streams and parked by Semel. One
// difference is allowed, and only where trace.lost expects it: emit-on-close reads the
// closed windows from a store that has already dropped them if time jumps.
func TestWindowsAgreeWithKafkaStreams(t *testing.T) {
	t.Parallel()
	e := besideStreams(t)
	for _, w := range []windowed{
		{name: "tumbling", over: "{ tumbling: 1m }", args: []string{"--size", "60000"}, size: time.Minute, every: time.Minute},
		{name: "hopping", over: "{ hopping: 1m, every: 20s }", args: []string{"--size", "60000", "--every", "20000"}, sum: true, size: time.Minute, every: 20 * time.Second},
		{name: "sessions", over: "{ session: 30s, max: 1d }", args: []string{"--gap", "30000"}},
	} {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			e.agree(t, &w)
		})
	}
}

// traceGroups is the number of groups in each partition.
const traceGroups = 20

// traced is a record of a trace.
type traced struct {
	group string
	time  int64 // milliseconds
	cents int
}

// newTrace returns random records of each partition, in order. Behind them, records of
// groups that begin with records.Closing close all windows.
func newTrace(random *rand.Rand, n int) (trace [kafkaPartitions][]traced) {
	for p := range trace {
		var times []time.Duration
		var at time.Duration
		for len(times) < n {
			switch random.IntN(200) {
			case 0: // a pause
				at += time.Duration(1+random.IntN(300)) * time.Second
			default:
				at += time.Duration(random.IntN(2000)) * time.Millisecond
			}
			late := time.Duration(0)
			switch random.IntN(10) {
			case 0, 1, 2: // within the grace
				late = time.Duration(random.Int64N(int64(windowGrace)))
			case 3: // or not
				late = time.Duration(random.Int64N(int64(4 * time.Minute)))
			}
			times = append(times, max(at-late, 0))
		}
		base := time.Now().Add(-at - 10*time.Minute)
		for _, when := range times {
			trace[p] = append(trace[p], traced{fmt.Sprintf("group-%d-%d", p, random.IntN(traceGroups)), base.Add(when).UnixMilli(), random.IntN(2000) - 1000})
		}
		for i := range 40 {
			at += 10 * time.Second
			trace[p] = append(trace[p], traced{fmt.Sprintf("%s%d-%02d", records.Closing, p, i), base.Add(at).UnixMilli(), 0})
		}
	}
	return trace
}

// agree compares the results of one kind of windows.
func (e Env) agree(t *testing.T, w *windowed) {
	seed := rand.Uint64()
	if text := os.Getenv("SEMEL_TEST_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("SEMEL_TEST_SEED=%d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	trace := newTrace(rand.New(rand.NewPCG(seed, 0)), 5000)
	c, err := startKafka(ctx, 1, kafkaPartitions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.close(); err != nil {
			t.Error(err)
		}
	})
	outs := map[string]kafkaProgram{kafkaOut: e.semelWindows(w)}
	finals := []string{"suppress"}
	if w.size > 0 {
		finals = append(finals, "close")
	}
	for _, final := range finals {
		s := streams{class: "Windows", commit: 100 * time.Millisecond, args: append([]string{
			"--grace", fmt.Sprint(windowGrace.Milliseconds()), "--value", w.value("count", "sum"), "--final", final, "--emit", "0", "--out", final, "--group", final}, w.args...)}
		outs[final] = e.streams(s)
		if _, err := c.client.CreateTopic(ctx, kafkaPartitions, 1, nil, final); err != nil {
			t.Fatal(err)
		}
	}
	fillTrace(t, c, trace)
	results := map[string]map[records.Result]int64{}
	for _, out := range slices.Sorted(maps.Keys(outs)) {
		results[out] = e.finals(ctx, t, c, out, outs[out])
	}
	ours := results[kafkaOut]
	if len(ours) < 100 {
		t.Fatalf("only %d results", len(ours))
	}
	compare(t, ours, results["suppress"], nil)
	if w.size > 0 {
		compare(t, ours, results["close"], w.lost(&trace))
	}
}

// fillTrace writes a trace to the input.
func fillTrace(t *testing.T, c *kafkaCluster, trace [kafkaPartitions][]traced) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(c.addrs...), kgo.DefaultProduceTopic(kafkaIn), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var list []*kgo.Record
	for p := range trace {
		for i, r := range trace[p] {
			list = append(list, &kgo.Record{Key: []byte(r.group), Timestamp: time.UnixMilli(r.time), Partition: int32(p),
				Value: fmt.Appendf(nil, `{"event_id":"%d-%d","cents":%d}`, p, i, r.cents)})
		}
	}
	if err := client.ProduceSync(t.Context(), list...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// finals runs a program until it has emitted the windows of the last closing groups but
// some, and returns its results without those of closing groups. Windows are emitted in
// the order of their ends.
func (e *Env) finals(ctx context.Context, t *testing.T, c *kafkaCluster, out string, program kafkaProgram) map[records.Result]int64 {
	t.Helper()
	reader, err := outputs.NewReader(ctx, c.addrs, out, true)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	r, err := startProgram(ctx, c, program, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer r.kill()
	if err := r.until(ctx, "the results of its last windows", func(context.Context) (bool, error) {
		bodies, err := reader.Bodies()
		var last [kafkaPartitions]bool
		for _, body := range bodies {
			for p := range last {
				last[p] = last[p] || strings.Contains(string(body), fmt.Sprintf(`"%s%d-25"`, records.Closing, p))
			}
		}
		return !slices.Contains(last[:], false), err
	}); err != nil {
		t.Fatal(err)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	got, err := reader.Finish(ctx)
	if err != nil {
		t.Fatal(err)
	}
	results := map[records.Result]int64{}
	for _, body := range got.Bodies {
		result, n, err := records.ParseResult(body)
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := results[result]; twice {
			t.Errorf("%s: two results of %+v", out, result)
		}
		if !strings.HasPrefix(result.Group, records.Closing) {
			results[result] = n
		}
	}
	return results
}

// compare compares results with those of Kafka Streams. All of lost must be missing there.
func compare(t *testing.T, ours, theirs map[records.Result]int64, lost map[records.Result]bool) {
	t.Helper()
	wrong := 0
	report := func(format string, args ...any) {
		if wrong++; wrong <= 20 {
			t.Errorf(format, args...)
		}
	}
	for r, n := range ours {
		their, ok := theirs[r]
		switch {
		case ok == lost[r]:
			report("%+v: Kafka Streams has it: %t", r, ok)
		case ok && n != their:
			report("%+v: %d, Kafka Streams has %d", r, n, their)
		}
	}
	for r, n := range theirs {
		if _, ok := ours[r]; !ok {
			report("%+v: only Kafka Streams has it, with %d", r, n)
		}
	}
	t.Logf("%d results, %d of them not in Kafka Streams, %d wrong", len(ours), len(lost), wrong)
}

// lost returns the results that emit-on-close of Kafka Streams loses: when the time of a
// partition jumps, the new record is stored first. The store then hides all windows whose
// start is older than its newest one by more than size and grace.
func (w *windowed) lost(trace *[kafkaPartitions][]traced) map[records.Result]bool {
	size, every, grace := w.size.Milliseconds(), w.every.Milliseconds(), windowGrace.Milliseconds()
	lost := map[records.Result]bool{}
	for p := range trace {
		open := map[records.Result]bool{}
		var newest, stored int64
		for _, r := range trace[p] {
			newest = max(newest, r.time)
			for start := r.time - r.time%every; start > r.time-size; start -= every {
				if start+size > newest-grace {
					open[records.Result{Group: r.group, Start: start, End: start + size}] = true
					stored = max(stored, start)
				}
			}
			for result := range open {
				if result.End > newest-grace {
					continue
				}
				delete(open, result)
				if result.Start <= stored-size-grace {
					lost[result] = true
				}
			}
		}
	}
	return lost
}
