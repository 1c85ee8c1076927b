package runcmd_test

import (
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestRunNamesAServerThatIsDownUntilItIsBack stops servers under a pipeline with messages.
// Each answer of /readyz, from the first one, names a cause and a remedy.
func TestRunNamesAServerThatIsDownUntilItIsBack(t *testing.T) {
	t.Parallel()
	database, redis, queue := servicestest.StartPostgres(t, nil), servicestest.StartRedis(t, nil), servicestest.StartNATS(t, nil)
	if _, err := programtest.Connect(t, database.URL())(t).Exec(t.Context(), "CREATE TABLE rows (id text)"); err != nil {
		t.Fatal(err)
	}
	if _, err := programtest.ConnectJetStream(t, queue.URL()).CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, store, sink string
		server            *services.Server
	}{
		{"store redis", fmt.Sprintf("redis: { url: %q }", redis.URL()), "file: { path: out.jsonl }", redis},
		{"sink postgres", "memory: {}", fmt.Sprintf("postgres: { dsn: %q, table: rows, columns: { id: .id } }", database.URL()), database},
		{"sink nats", "memory: {}", fmt.Sprintf("nats: { servers: [%q], subject: s }", queue.Addr()), queue},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"0\"}\n")
			r := programtest.StartRun(t, programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { %s } }
pipelines: { orders: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id }, store: keys, sink: { %s }, parked: { path: parked } } }
`, c.store, c.sink)))
			r.Probe(http.StatusOK, "orders: ready")
			stopped := make(chan error, 1)
			go func() { stopped <- c.server.Stop() }()
			seen := map[string]bool{}
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			for n, down := 1, time.Now().Add(programtest.TroubleWithin); time.Now().Before(down); n++ {
				if n%20 == 0 {
					programtest.AppendFile(t, in, fmt.Sprintf("{\"id\":\"%d\"}\n", n))
				}
				answer, err := http.Get("http://" + r.Address + "/readyz")
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				if answer.StatusCode != http.StatusOK && !seen[string(body)] {
					seen[string(body)] = true
					down = time.Now().Add(5 * time.Second) // as long as it says something new
				}
				<-tick.C
			}
			if err := <-stopped; err != nil {
				t.Error(err)
			}
			if len(seen) == 0 {
				t.Error("the pipeline is ready without its server")
			}
			for text := range seen {
				if strings.Contains(text, "the log has the error\n") || !strings.Contains(text, "?") && !strings.Contains(text, ": wait for it") {
					t.Errorf("no cause or no remedy: %s", text)
				}
				t.Log(text)
			}
		})
	}
}
