package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/daemon"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// windowsOnKafka is a pipeline on a real broker whose input, output and parked topics
// have one partition each.
type windowsOnKafka struct {
	*testing.T
	brokers, topic, file string
	client               *kgo.Client
	sent                 int
	start                time.Time // of the first minute
}

// newWindows makes topics and a configuration with the rest of a pipeline.
func newWindows(t *testing.T, rest string) *windowsOnKafka {
	t.Helper()
	brokers, topic := servers.Kafka(t), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	adm, anyTime := kadm.NewClient(client), strconv.Itoa(math.MaxInt64)
	for name, settings := range map[string]map[string]*string{topic: {"message.timestamp.after.max.ms": &anyTime}, topic + "-out": nil, topic + "-parked": nil} {
		if _, err := adm.CreateTopic(t.Context(), 1, 1, settings, name); err != nil {
			t.Fatal(err)
		}
	}
	file := writeFile(t, filepath.Join(t.TempDir(), "semel.yaml"), strings.NewReplacer("TOPIC", topic, "BROKERS", brokers, "DIR", t.TempDir()).Replace(`
pipelines:
  p:
    source: { kafka: { brokers: [BROKERS], topics: [TOPIC], group: TOPIC } }
    sink: { kafka: { brokers: [BROKERS], topic: TOPIC-out } }
    parked: { topic: TOPIC-parked }
    transaction: { state: DIR, interval: 20ms }
    window: 2d
`+rest))
	return &windowsOnKafka{T: t, brokers: brokers, topic: topic, file: file, client: client, start: time.Now().Add(-time.Hour).Truncate(time.Minute).UTC()}
}

// at returns a time as text.
func (w *windowsOnKafka) at(second int) string {
	return w.start.Add(time.Duration(second) * time.Second).Format(time.RFC3339)
}

// send writes a message with a time.
func (w *windowsOnKafka) send(id, group string, second int) {
	w.Helper()
	body := fmt.Appendf(nil, `{"id":%q,"g":%q}`, id, group)
	if err := w.client.ProduceSync(w.Context(), &kgo.Record{Key: []byte(group), Value: body, Timestamp: w.start.Add(time.Duration(second) * time.Second)}).FirstErr(); err != nil {
		w.Fatal(err)
	}
	w.sent++
}

// settled waits until all messages are settled.
func (w *windowsOnKafka) settled(r *running) (now daemon.PipelineStatus) {
	w.Helper()
	for late := time.Now().Add(5 * time.Minute); ; <-time.After(20 * time.Millisecond) {
		got := run(w.T, "", "status", "--admin", r.address, "--json")
		if json.Unmarshal([]byte(got.stdout), &now) == nil && now.Settled == int64(w.sent) {
			return now
		}
		if time.Now().After(late) {
			w.Fatalf("%d messages were sent: %+v", w.sent, got)
		}
	}
}

// explain waits until the facts about the windows that have a time are these. Brokers
// show a transaction to readers a little after its commit.
func (w *windowsOnKafka) explain(key string, second int, facts ...string) {
	w.Helper()
	for late := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
		got := run(w.T, "", "explain", w.file, "--key", key, "--window", w.at(second))
		got.check(w.T, term.ExitDone)
		lacks := slices.DeleteFunc(slices.Clone(facts), func(fact string) bool { return strings.Contains(got.stdout, fact) })
		if len(lacks) == 0 {
			return
		}
		if time.Now().After(late) {
			w.Fatalf("%s at %d: lacks %q:\n%s", key, second, lacks, got.stdout)
		}
	}
}

// TestTheOutcomesOfMessagesBalance runs a pipeline of each kind.
func TestTheOutcomesOfMessagesBalance(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rest string
		send func(w *windowsOnKafka)
		want string // in status
		log  string // of the end
	}{
		"windows": {`
    filter: 'value.g != "none"'
    key: { id: .id }
    aggregate: { by: .g, over: { tumbling: 1m }, idle: forever, values: { n: count } }
`, func(w *windowsOnKafka) {
			w.send("1", "a", 1)
			w.send("2", "a", 2)
			w.send("2", "a", 2)
			w.send("3", "none", 3)
			w.send("4", "b", 60)
			w.send("5", "a", 5)      // late
			w.send("6", "a", 5*3600) // ahead of the clock, and of what the parked topic takes
		}, "7 settled = 3 fresh + 1 duplicate + 1 filtered + 2 parked", "read=7 fresh=3 duplicate=1 parked=2 filtered=1"},
		"late messages are dropped": {`
    key: { id: .id }
    aggregate: { by: .g, over: { tumbling: 1m }, late: drop, idle: forever, values: { n: count } }
`, func(w *windowsOnKafka) {
			w.send("1", "a", 60)
			w.send("2", "a", 2)
		}, "2 settled = 1 fresh + 1 dropped", "read=2 fresh=1 duplicate=0 parked=0 dropped=1"},
		"keep": {`
    filter: 'value.g != "none"'
    key: { id: .id, keep: { last: { tumbling: 1m }, idle: forever } }
`, func(w *windowsOnKafka) {
			w.send("1", "a", 1)
			w.send("1", "a", 2)
			w.send("2", "none", 3)
			w.send("3", "a", 60)
			w.send("4", "a", 4) // late
		}, "5 settled = 1 fresh + 1 superseded + 1 filtered + 1 parked + 1 held", "read=5 fresh=1 duplicate=0 parked=1 filtered=1 superseded=1 held=1"},
		"newest": {`
    key: { id: .g, keep: { newest: .id } }
`, func(w *windowsOnKafka) {
			w.send("2", "a", 1)
			w.send("1", "a", 2)
			w.send("3", "a", 3)
			w.send("x", "a", 3) // no number
		}, "4 settled = 2 fresh + 1 superseded + 1 parked", "read=4 fresh=2 duplicate=0 parked=1 superseded=1"},
		"filter": {`
    filter: 'value.g != "none"'
    key: { id: .id }
`, func(w *windowsOnKafka) {
			w.send("1", "a", 1)
			w.send("1", "a", 1)
			w.send("2", "none", 1)
		}, "3 settled = 1 fresh + 1 duplicate + 1 filtered", "read=3 fresh=1 duplicate=1 parked=0 filtered=1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWindows(t, c.rest)
			r := startRun(t, w.file)
			c.send(w)
			w.settled(r)
			// A held message that is due may be released by the next transaction.
			for late := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
				got := run(t, "", "status", "--admin", r.address)
				if strings.Contains(got.stdout, "\np: "+c.want+"\n") {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("want %s:\n%s", c.want, got.stdout)
				}
			}
			r.stop()
			r.line("msg=ended", c.log)
		})
	}
}

func TestExplainShowsAWindow(t *testing.T) {
	t.Parallel()
	w := newWindows(t, `
    key: { id: .id }
    aggregate: { by: .g, over: { tumbling: 1m }, grace: 30s, idle: 1d, values: { n: count } }
`)
	w.explain("a", 5, "not seen     p has never run: topic "+w.topic+"-state")
	r := startRun(t, w.file)
	w.send("1", "a", 1)
	w.send("2", "a", 62)
	w.send("2", "a", 63)
	w.settled(r)
	values := func(minute, n int) string {
		return fmt.Sprintf(`{"key":"a","start":"%s","end":"%s","values":{"n":%d}}`+"\n", w.at(60*minute), w.at(60*minute+60), n)
	}
	w.explain("a", 5,
		"pipeline     p\nkey          a\nwindow       "+w.at(0)+" to "+w.at(60)+"\n",
		"state        open in "+w.topic+"/0, where windows are closed up to "+w.at(33)+"\n",
		"so far       "+values(0, 1), "next message it counts, unless its key (.id) is known\n",
		"closes       when its partition has a message of "+w.at(90)+" or later (grace 30s), or without new messages at "+w.at(95+86400)+" (idle 1d)\n")
	w.explain("a", 60, "so far       "+values(1, 1)) // the second one is a duplicate
	w.explain("b", 5, "key          b\n", "state        open in ", "next message it counts")
	w.send("3", "c", 90)
	w.settled(r)
	w.explain("a", 59, "state        final in ", "closed up to "+w.at(60), "next message it is late, and parked\n", "result       "+w.topic+"-out 0/0, result: "+values(0, 1))
	w.explain("b", 59, "state        final in ", "next message it is late, and parked\n")
	got := run(t, "", "explain", "--config", w.file, "--key", "a", "--window", w.at(59), "--json")
	var answer struct {
		Partitions []struct{ State, Watermark, Next string }
		Results    []struct {
			Final bool
			Body  string
		}
	}
	if err := json.Unmarshal([]byte(got.stdout), &answer); err != nil || len(answer.Partitions) != 1 || answer.Partitions[0].State != "final" || answer.Partitions[0].Watermark != w.at(60) || len(answer.Results) != 1 || !answer.Results[0].Final {
		t.Errorf("%v: %s", err, got.stdout)
	}
	changed := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), strings.Replace(readFile(t, w.file), "tumbling: 1m", "tumbling: 2m", 1))
	run(t, "", "explain", changed, "--key", "a", "--window", w.at(1)).check(t, term.ExitFailed, "read the windows of p: kafka: "+w.topic+"-state/0 at ", "it was written with other settings than those of the configuration")
}

func TestExplainShowsOverlappingWindows(t *testing.T) {
	t.Parallel()
	w := newWindows(t, `
    key: { id: .id }
    aggregate: { by: .g, over: { hopping: 2m, every: 1m }, correct: 1m, late: drop, idle: forever, values: { n: count } }
`)
	r := startRun(t, w.file)
	w.send("1", "a", 1)
	w.send("2", "a", 70)
	w.settled(r)
	w.send("3", "a", 2) // corrects the first window
	w.settled(r)
	w.explain("a", 5,
		"window       "+w.at(-60)+" to "+w.at(60)+"\nstate        corrected in ", `"values":{"n":2}}`+"\nnext message it counts, unless its key (.id) is known, and the result is written again\n",
		"late         when its partition has a message of "+w.at(120)+" or later\n",
		"/0, result (revision 0): ", ", result (revision 1): ",
		"window       "+w.at(0)+" to "+w.at(120)+"\nstate        open in ", `"values":{"n":3}}`)
	w.send("4", "b", 130)
	w.settled(r)
	w.explain("a", 5, "state        final in ", "next message it does not count in this window; if all windows of its time are closed, it is late, and dropped\n", "state        corrected in ")
}

func TestExplainShowsASession(t *testing.T) {
	t.Parallel()
	w := newWindows(t, `
    key: { id: .id }
    aggregate: { by: .g, over: { session: 10s, max: 1m }, idle: forever, values: { n: count } }
`)
	r := startRun(t, w.file)
	w.send("1", "a", 1)
	w.send("2", "a", 9)
	w.settled(r)
	w.explain("a", 19, "window       "+w.at(1)+" to "+w.at(9)+"\nstate        open in ", `"values":{"n":2}}`)
	w.explain("a", 30, "window       "+w.at(30)+" to "+w.at(30)+"\nstate        open in ")
	w.send("3", "b", 100)
	w.settled(r)
	w.explain("a", 5, "window       "+w.at(1)+" to "+w.at(9)+"\nstate        final in ", "result       "+w.topic+"-out 0/0, result: {")
}

func TestExplainShowsAHeldMessage(t *testing.T) {
	t.Parallel()
	w := newWindows(t, `
    key: { id: .id, keep: { last: { tumbling: 1m }, late: drop, idle: forever } }
`)
	r := startRun(t, w.file)
	w.send("1", "a", 1)
	w.send("1", "a", 2)
	w.settled(r)
	w.explain("1", 5, "window       "+w.at(0)+" to "+w.at(60)+"\nstate        open in ", "held         "+w.topic+" 0/1\n",
		"next message it is held, and the last message of the window takes effect; the others are superseded\n", "closes       when its partition has a message of "+w.at(60)+" or later\n")
	w.send("2", "a", 61)
	w.settled(r)
	w.explain("1", 5, "state        final in ", "next message it is late, and dropped\n")
}

func TestExplainRefusesWindowsThatCannotBe(t *testing.T) {
	t.Parallel()
	file := writeFile(t, filepath.Join(t.TempDir(), "c.yaml"), kafkaExample)
	run(t, "", "explain", file, "--key", "a", "--window", "yesterday", "--scope", "s").check(t, term.ExitUsage,
		`--window "yesterday": expected a time as in RFC 3339`, "--window and --scope exclude each other", "no pipeline has windows")
	run(t, "", "explain", file, "--window", "2026-01-31T12:00:00Z").check(t, term.ExitUsage, "the ID of the key is missing")
}
