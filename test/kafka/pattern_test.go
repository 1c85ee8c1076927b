package kafka

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestNoRecordOfANewTopicIsMissed creates topics while a program that reads all of a pattern runs,
// and while it was killed. Each record is in the file once, because keys, lines and positions are
// one checkpoint.
func TestNoRecordOfANewTopicIsMissed(t *testing.T) {
	t.Parallel()
	program := built(t)
	addr, name := servers.Kafka(t), servicestest.Topic()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.UnknownTopicRetries(-1))
	must(t, err)
	defer client.Close()
	d := newDaemon(t, program, fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  orders:
    source: { kafka: { brokers: [%[1]q], topics: { pattern: '%[2]s-.*' }, group: %[2]s, session_timeout: 3s } }
    key: { id: .id }
    window: 1h
    store: keys
    sink: { file: { path: out.jsonl } }
`, addr, name))
	adm, n := kadm.NewClient(client), 0
	write := func(topic string) {
		t.Helper()
		for range 10 {
			must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, `{"id":%d}`, n)}, &kgo.Record{Topic: topic, Value: fmt.Appendf(nil, `{"id":%d}`, n)}).FirstErr())
			n++
		}
	}
	create := func(topic string) {
		t.Helper()
		_, err := adm.CreateTopic(t.Context(), 3, 1, nil, topic)
		must(t, err)
		write(topic)
	}
	lines := func() []string {
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(d.config), "out.jsonl")) // it may not be there yet
		return strings.Fields(string(text))
	}
	arrive := func(most time.Duration) {
		t.Helper()
		if !within(most, func() bool { return len(lines()) >= n }) {
			t.Fatalf("%d of %d records after %v", len(lines()), n, most)
		}
	}
	create(name + "-0")
	_, err = adm.CreateTopic(t.Context(), 1, 1, nil, "my-"+name+"-0")
	must(t, err)
	must(t, client.ProduceSync(t.Context(), &kgo.Record{Topic: "my-" + name + "-0", Value: []byte(`{"id":"not read"}`)}).FirstErr()) // its name only ends like those
	d.start(t)
	for i := 1; i <= 3; i++ {
		create(fmt.Sprintf("%s-%d", name, i))
		arrive(time.Minute)
		d.end(t, syscall.SIGKILL)
		create(fmt.Sprintf("%s-killed-%d", name, i))
		write(name + "-0")
		d.start(t)
		write(fmt.Sprintf("%s-%d", name, i))
		arrive(time.Minute)
	}
	d.end(t, syscall.SIGTERM)
	seen := map[string]int{}
	for _, line := range lines() {
		seen[line]++
	}
	for line, times := range seen {
		if times != 1 {
			t.Errorf("%s is there %d times", line, times)
		}
	}
	if len(seen) != n {
		t.Errorf("%d of %d records", len(seen), n)
	}
}
