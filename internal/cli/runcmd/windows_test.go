package runcmd_test

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/test/programtest"
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
	brokers, topic := programtest.Servers.Kafka(t), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.DefaultProduceTopic(topic), kgo.UnknownTopicRetries(-1))
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
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "semel.yaml"), strings.NewReplacer("TOPIC", topic, "BROKERS", brokers, "DIR", t.TempDir()).Replace(`
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
func (w *windowsOnKafka) settled(r *programtest.Running) (now admin.PipelineStatus) {
	w.Helper()
	for late := time.Now().Add(5 * time.Minute); ; <-time.After(20 * time.Millisecond) {
		got := programtest.Run(w.T, "", "status", "--admin", r.Address, "--json")
		if json.Unmarshal([]byte(got.Stdout), &now) == nil && now.Settled == int64(w.sent) {
			return now
		}
		if time.Now().After(late) {
			w.Fatalf("%d messages were sent: %+v", w.sent, got)
		}
	}
}

// TestOutcomesAddUpToTheMessagesThatWereSettled runs a pipeline of each kind.
func TestOutcomesAddUpToTheMessagesThatWereSettled(t *testing.T) {
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
			w.send("6", "a", 5*3600) // ahead of the clock, and of the times that the parked topic takes
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
			r := programtest.StartRun(t, w.file)
			c.send(w)
			w.settled(r)
			// A held message that is due may be released by the next transaction.
			for late := time.Now().Add(time.Minute); ; <-time.After(20 * time.Millisecond) {
				got := programtest.Run(t, "", "status", "--admin", r.Address)
				if strings.Contains(got.Stdout, "\np: "+c.want+"\n") {
					break
				}
				if time.Now().After(late) {
					t.Fatalf("want %s:\n%s", c.want, got.Stdout)
				}
			}
			r.Stop()
			r.Line("msg=ended", c.log)
		})
	}
}
