package runcmd_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestTraceContextIsPropagatedUnchanged sends one message through HTTP to Kafka, Kafka to Kafka in a
// transaction and with a store, and Kafka to a webhook. Its trace context arrives
// unchanged everywhere.
func TestTraceContextIsPropagatedUnchanged(t *testing.T) {
	t.Parallel()
	const parent, state = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "vendor=1"
	topic, brokers, listen := servicestest.Topic(), programtest.Servers.Kafka(t), servicestest.FreeAddr(t)
	called := make(chan http.Header, 1)
	target := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { called <- r.Header }))
	t.Cleanup(target.Close)
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers), kgo.ConsumeTopics(topic+"-in", topic+"-txn", topic+"-store"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopics(t.Context(), 1, 1, nil, topic+"-in", topic+"-txn", topic+"-store"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "semel.yaml")
	programtest.WriteFile(t, file, strings.NewReplacer("TOPIC", topic, "BROKERS", brokers, "LISTEN", listen, "TARGET", target.URL, "DIR", t.TempDir()).Replace(`
stores:
  keys: { embedded: { path: DIR/keys } }
pipelines:
  intake:
    source: { http: { listen: LISTEN, path: /in } }
    key: { id: .id }
    store: keys
    sink: { kafka: { brokers: [BROKERS], topic: TOPIC-in } }
  txn:
    source: { kafka: { brokers: [BROKERS], topics: [TOPIC-in], group: TOPIC-txn } }
    key: { id: .id }
    sink: { kafka: { brokers: [BROKERS], topic: TOPIC-txn } }
  copies:
    source: { kafka: { brokers: [BROKERS], topics: [TOPIC-in], group: TOPIC-store } }
    key: { id: .id }
    store: keys
    sink: { kafka: { brokers: [BROKERS], topic: TOPIC-store } }
  calls:
    source: { kafka: { brokers: [BROKERS], topics: [TOPIC-in], group: TOPIC-calls } }
    key: { id: .id }
    store: keys
    sink: { webhook: { url: TARGET, allow_private: true } }
`))
	stop := programtest.BackgroundUntil(t, "pipeline=intake", programtest.NoEnv, "run", file, "--admin", "off", "--log-format", "text")
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+listen+"/in", strings.NewReader(`{"id":"1"}`))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("traceparent", parent)
	request.Header.Set("tracestate", state)
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err, stop())
	}
	answer.Body.Close()

	h := <-called
	if h.Get("traceparent") != parent || h.Get("tracestate") != state {
		t.Errorf("the webhook got %q", h)
	}
	var got []string
	for len(got) < 3 {
		fetches := client.PollFetches(t.Context())
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			line := strings.TrimPrefix(r.Topic, topic)
			for _, h := range r.Headers {
				if strings.HasPrefix(strings.ToLower(h.Key), "trace") {
					line += fmt.Sprintf(" %s=%s", h.Key, h.Value)
				}
			}
			got = append(got, line)
		})
	}
	slices.Sort(got)
	carried := " traceparent=" + parent + " tracestate=" + state
	if want := []string{"-in" + carried, "-store" + carried, "-txn" + carried}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	stop().Check(t, term.ExitDone, "running")
}
