package cli_test

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestExamplePipelinesRun runs the pipelines of examples/pipelines: webhooks to Kafka,
// and Kafka to PostgreSQL. It sends each event twice, before and after a restart.
func TestExamplePipelinesRun(t *testing.T) {
	t.Parallel()
	topic := servicestest.Topic()
	env := map[string]string{
		"KAFKA_BROKERS": programtest.Servers.Kafka(t), "DATABASE_URL": programtest.Servers.Database(t),
		"LISTEN": servicestest.FreeAddr(t), "WEBHOOK_TOKEN": "secret",
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(env["KAFKA_BROKERS"]), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open := func(name, promise string) *programtest.Scenario {
		t.Helper()
		s := &programtest.Scenario{T: t, File: filepath.Join(dir, name), Env: env}
		text := programtest.ReadFile(t, filepath.Join("..", "..", "examples", "pipelines", name))
		// The servers are shared with other tests.
		text = strings.NewReplacer("[orders]", "["+topic+"]", "orders-to-postgres", topic, "topic: orders", "topic: "+topic).Replace(text)
		programtest.WriteFile(t, s.File, text)
		if got := s.Semel("lint", s.File); !strings.Contains(got.Stderr, "0 to note, 0 with a warning, 0 broken") {
			t.Errorf("lint of %s: %s%s", name, got.Stdout, got.Stderr)
		}
		if got := s.Semel("explain", s.File); !strings.Contains(got.Stdout, promise) {
			t.Errorf("explain of %s: %s", name, got.Stdout)
		}
		return s
	}
	intake := open("webhook-to-kafka.yaml", "nothing lost      yes")
	orders := open("kafka-to-postgres.yaml", "no second effect  yes")
	orders.Query("CREATE TABLE orders (event_id text, customer text, amount numeric, at timestamptz)")
	orders.Semel("migrate", "up", "--config", orders.File, "-q")

	for round, decision := range []string{"fresh", "duplicate"} {
		stop := programtest.BackgroundIn(t, intake.Getenv, "run", intake.File, "--admin", "off")
		for i := range programtest.Distinct {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+env["LISTEN"]+"/webhooks", strings.NewReader(programtest.EventText(i)))
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer secret")
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				t.Fatal(err, stop())
			}
			answer.Body.Close()
			if got := fmt.Sprint(answer.StatusCode, " ", answer.Header.Get("Semel-Decision")); got != "200 "+decision {
				t.Errorf("event %d: %s, want 200 %s", i, got, decision)
			}
		}
		stop().Check(t, term.ExitDone, "running")
		// A producer sends the events again, past the intake, and then a new one.
		for i := range programtest.Distinct + round + 1 {
			if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(programtest.EventText(i))}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		want := programtest.EveryEvent("e")
		for i := range round + 1 {
			want = append(want, fmt.Sprint("e", programtest.Distinct+i))
		}
		orders.Until(func() []string { return orders.Query("SELECT event_id FROM orders") }, want)
	}
}
