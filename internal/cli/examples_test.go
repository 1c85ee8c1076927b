package cli

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestExamplePipelinesRun runs the pipelines of examples/pipelines: webhooks to Kafka,
// and Kafka to PostgreSQL. It sends each event twice, before and after a restart.
func TestExamplePipelinesRun(t *testing.T) {
	t.Parallel()
	topic := servicestest.Topic()
	env := map[string]string{
		"KAFKA_BROKERS": servers.Kafka(t), "DATABASE_URL": servers.Database(t),
		"LISTEN": servicestest.FreeAddr(t), "WEBHOOK_TOKEN": "secret",
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(env["KAFKA_BROKERS"]))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	open := func(name, promise string) *stage {
		t.Helper()
		s := &stage{t, filepath.Join(dir, name), env}
		text := readFile(t, filepath.Join("..", "..", "examples", "pipelines", name))
		// The servers are shared with other tests.
		text = strings.NewReplacer("[orders]", "["+topic+"]", "orders-to-postgres", topic, "topic: orders", "topic: "+topic).Replace(text)
		writeFile(t, s.file, text)
		if got := s.semel("lint", s.file); !strings.Contains(got.stderr, "0 to note, 0 with a warning, 0 broken") {
			t.Errorf("lint of %s: %s%s", name, got.stdout, got.stderr)
		}
		if got := s.semel("explain", s.file); !strings.Contains(got.stdout, promise) {
			t.Errorf("explain of %s: %s", name, got.stdout)
		}
		return s
	}
	intake := open("webhook-to-kafka.yaml", "nothing lost      yes")
	orders := open("kafka-to-postgres.yaml", "no second effect  yes")
	orders.query("CREATE TABLE orders (event_id text, customer text, amount numeric, at timestamptz)")
	orders.semel("migrate", "up", "--config", orders.file, "-q")

	for round, decision := range []string{"fresh", "duplicate"} {
		stop := backgroundIn(t, intake.getenv, "run", intake.file, "--admin", "off")
		for i := range distinct {
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+env["LISTEN"]+"/webhooks", strings.NewReader(eventText(i)))
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
		stop().check(t, term.ExitDone, "running")
		// A producer sends the events again, past the intake, and then a new one.
		for i := range distinct + round + 1 {
			if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(eventText(i))}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
		want := everyEvent("e")
		for i := range round + 1 {
			want = append(want, fmt.Sprint("e", distinct+i))
		}
		orders.until(func() []string { return orders.query("SELECT event_id FROM orders") }, want)
	}
}
