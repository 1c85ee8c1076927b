package runcmd_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka"
	"github.com/semel-dev/semel/test/programtest"
)

// TestChangelogOfAnOpenWindowStaysShort changes most of 1,000 groups of 1 kB in one open window,
// until much more was written than the state has.
func TestChangelogOfAnOpenWindowStaysShort(t *testing.T) {
	t.Parallel()
	w := newWindows(t, `
    key: { id: .id }
    aggregate: { by: .g, over: { tumbling: 1m }, idle: forever, values: { n: count, pad: last .pad } }
`)
	r := programtest.StartRun(t, w.file)
	const groups, most = 1000, 8<<20 + 4*1200*1000 + 2<<20 // the slack, four times the state, and a transaction
	pad := strings.Repeat("x", 1000)
	rounds := 40
	if testing.Short() {
		rounds = 24 // almost twice as much as may be left
	}
	for round := range rounds {
		var list []*kgo.Record
		for g := min(10*round, 10); g < groups; g++ { // ten do not change again
			body := fmt.Appendf(nil, `{"id":%d,"g":"g%d","pad":%q}`, w.sent+g, g, pad)
			list = append(list, &kgo.Record{Key: fmt.Append(nil, g), Value: body, Timestamp: w.start})
		}
		if err := w.client.ProduceSync(t.Context(), list...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		w.sent += len(list)
		w.settled(r)
	}
	state := w.topic + "-state"
	first, size := int64(0), 0
	for late := time.Now().Add(time.Minute); ; <-time.After(100 * time.Millisecond) {
		starts, err := kadm.NewClient(w.client).ListStartOffsets(t.Context(), state)
		if err != nil {
			t.Fatal(err)
		}
		at, _ := starts.Lookup(state, 0)
		first, size = at.Offset, 0
		if err := kafka.ReadAll(t.Context(), []kgo.Opt{kgo.SeedBrokers(w.brokers)}, []string{state}, func(r *kgo.Record) bool {
			size += len(r.Value)
			return true
		}); errors.Is(err, kerr.OffsetOutOfRange) {
			continue // the topic was cut off between the two questions
		} else if err != nil {
			t.Fatal(err)
		}
		if first > 0 && size <= most {
			break
		}
		if time.Now().After(late) {
			t.Fatalf("%s begins at %d and has %d bytes, want at most %d", state, first, size, most)
		}
	}
	t.Logf("%s begins at %d and has %d bytes", state, first, size)
	// A process without a local state restores the windows from the topic, and closes them.
	r.Stop()
	_, after, _ := strings.Cut(programtest.ReadFile(t, w.file), "state: ")
	dir, _, _ := strings.Cut(after, ",")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	r, w.sent = programtest.StartRun(t, w.file), 0
	w.send("last", "end", 120)
	w.settled(r)
	want := map[string]string{"g7": `"n":1,`, "g10": fmt.Sprintf(`"n":%d,`, rounds)}
	for late := time.Now().Add(time.Minute); len(want) > 0; <-time.After(100 * time.Millisecond) {
		if err := kafka.ReadAll(t.Context(), []kgo.Opt{kgo.SeedBrokers(w.brokers)}, []string{w.topic + "-out"}, func(r *kgo.Record) bool {
			if n, ok := want[string(r.Key)]; ok && strings.Contains(string(r.Value), n) {
				delete(want, string(r.Key))
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(late) {
			t.Fatalf("no results %q", want)
		}
	}
}
