package keyscmd_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestRemovalWarnsThatTheBrokerDropsTheSameIDAgain also shows that the warning is true:
// NATS drops the message of a removed key, and the pipeline counts it as delivered.
func TestRemovalWarnsThatTheBrokerDropsTheSameIDAgain(t *testing.T) {
	t.Parallel()
	server := servicestest.StartNATS(t, nil)
	js := programtest.ConnectJetStream(t, server.URL())
	streams := map[string]jetstream.Stream{}
	for _, name := range []string{"in", "out"} {
		stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name}})
		if err != nil {
			t.Fatal(err)
		}
		streams[name] = stream
	}
	file := filepath.Join(t.TempDir(), "semel.yaml")
	programtest.WriteFile(t, file, fmt.Sprintf(`stores: { keys: { embedded: { path: ./keys } } }
pipelines:
  orders:
    source: { nats: { servers: [%[1]q], stream: in, consumer: orders, create: true } }
    key: { id: .id, on_missing: drop }
    window: 1h
    store: keys
    sink: { nats: { servers: [%[1]q], subject: out } }
    on_failure: { then: stop }
`, server.Addr()))
	published := 0
	process := func() {
		t.Helper()
		if _, err := js.Publish(t.Context(), "in", []byte(`{"id":"order-1"}`)); err != nil {
			t.Fatal(err)
		}
		published++
		stop := programtest.Background(t, "run", file, "--admin", "off")
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); <-time.After(10 * time.Millisecond) {
			if c, err := streams["in"].Consumer(t.Context(), "orders"); err == nil && c.CachedInfo().AckFloor.Stream == uint64(published) {
				break
			}
		}
		stop().Check(t, term.ExitDone, "running")
		if info, err := streams["out"].Info(t.Context()); err != nil || info.State.Msgs != 1 {
			t.Errorf("after %d messages with one key, the target has %+v, %v; want one message", published, info.State, err)
		}
	}
	process()
	got := programtest.Run(t, "", "keys", "rm", "order-1", "--config", file, "--reason", "lost downstream")
	got.Check(t, term.ExitDone, "forgot order-1, which was done",
		"warning: the source of orders drops a message that its producer publishes again with the same id, until ")
	warning := regexp.MustCompile(`warning: the sink of orders drops a message that has the id of this key, until (.+ UTC) \(NATS keeps ids for 2m, or for the duplicate_window of the stream\), and reports success: let the message come again after that`)
	said := warning.FindStringSubmatch(got.Stderr)
	if said == nil {
		t.Fatalf("%q has not %s", got.Stderr, warning)
	}
	until, err := time.Parse("2006-01-02 15:04:05 MST", said[1])
	if left := time.Until(until); err != nil || left < time.Minute || left > 2*time.Minute+time.Second {
		t.Errorf("until %v, in %v: %v", until, left, err)
	}
	process()
	if got := programtest.Run(t, "", "keys", "show", "order-1", "--config", file); !strings.Contains(got.Stdout, "done") {
		t.Errorf("the pipeline did not take the dropped message for delivered: %+v", got)
	}
}

func TestRemovalWarnsOfAFIFOQueueOnly(t *testing.T) {
	t.Parallel()
	const queue = "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
	for suffix, warned := range map[string]bool{".fifo": true, "": false} {
		file := filepath.Join(t.TempDir(), "semel.yaml")
		programtest.WriteFile(t, file, `stores: { keys: { embedded: { path: ./keys } } }
pipelines:
  orders:
    source: { file: { paths: ["./in.jsonl"] } }
    key: { id: .id, on_missing: drop }
    window: 1h
    store: keys
    sink: { sqs: { queue: "`+queue+suffix+`" } }
    on_failure: { then: stop }
`)
		programtest.Run(t, `{"id":"a","scope":"orders"}`, "keys", "import", "--config", file, "--window", "1h").Check(t, term.ExitDone, "imported 1")
		got := programtest.Run(t, "", "keys", "rm", "a", "--config", file, "--reason", "x")
		got.Check(t, term.ExitDone, "forgot a, which was done")
		if said := regexp.MustCompile(`the sink of orders drops .*\(SQS keeps ids for 5m\)`).MatchString(got.Stderr); said != warned {
			t.Errorf("%s%s: %q", queue, suffix, got.Stderr)
		}
	}
}
