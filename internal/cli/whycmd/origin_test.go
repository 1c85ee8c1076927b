package whycmd_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

// wantOrigin asks for a key, and expects the answer to name its first place.
func wantOrigin(t *testing.T, file, id, place string) {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	origin := ""
	if place != "" {
		origin = fmt.Sprintf("origin       %s by %s:%d\n", place, host, os.Getpid())
	}
	got := programtest.Run(t, "", "why", id, "--config", file)
	got.Check(t, term.ExitDone)
	for _, want := range []string{"state        done\nfirst seen   ", origin, "next time    it is a duplicate: it is acknowledged without effect", "to process its message again:\n  semel keys rm " + id} {
		if !strings.Contains(got.Stdout, want) {
			t.Errorf("%q is missing in:\n%s", want, got.Stdout)
		}
	}
	if origin == "" && strings.Contains(got.Stdout, "\norigin ") {
		t.Errorf("no origin was kept:\n%s", got.Stdout)
	}
}

func TestWhyNamesTheFileAndByteOfALine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := programtest.Servers.Database(t)
	conn, err := pgx.Connect(t.Context(), address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), "CREATE TABLE orders (id text PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), `{"id":"a"}`+"\n"+`{"id":"b"}`+"\n"+`{"id":"b"}`+"\n")
	pipeline := func(name, source, store, sink string) string {
		return fmt.Sprintf("  %s: { source: { file: { paths: [%s], state: %s } }, key: { id: .id }, store: %s, sink: %s, parked: { path: %s } }\n",
			name, source, filepath.Join(dir, name+"-state"), store, sink, filepath.Join(dir, name+"-parked"))
	}
	config := func(keep string) string {
		return programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf("stores:\n  db: { postgres: { dsn: %q%s } }\n  dir: { embedded: { path: %s%s } }\npipelines:\n",
			address, keep, filepath.Join(dir, "keys"), keep)+
			pipeline("rows", in, "db", "{ postgres: { store: db, table: orders, columns: { id: .id } } }")+
			pipeline("lines", in, "dir", "{ file: { path: "+filepath.Join(dir, "out.jsonl")+" } }"))
	}
	file := config("")
	programtest.Run(t, "", "migrate", "up", "--config", file, "--store-name", "db").Check(t, term.ExitDone, "applied 1: keys")
	programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitDone, "ended")
	wantOrigin(t, file, "a", in+", byte 0")
	wantOrigin(t, file, "b", in+", byte 11")

	// A table from before origins, and a new line.
	if _, err := conn.Exec(t.Context(), "ALTER TABLE semel_keys DROP COLUMN origin"); err != nil {
		t.Fatal(err)
	}
	const remedy = "semel migrate up --config"
	if got := programtest.Run(t, "", "doctor", file, "db"); !strings.Contains(got.Stdout, "the table of keys has no column for them") || !strings.Contains(got.Stdout, remedy) {
		t.Errorf("doctor: %+v", got)
	}
	file = config(", keep_origin: false")
	if got := programtest.Run(t, "", "doctor", file, "db"); strings.Contains(got.Stdout, remedy) {
		t.Errorf("doctor: %+v", got)
	}
	programtest.WriteFile(t, in, programtest.ReadFile(t, in)+`{"id":"c"}`+"\n")
	programtest.Run(t, "", "run", file, "--admin", "off").Check(t, term.ExitDone, "ended")
	wantOrigin(t, file, "c", "")
}

func TestWhyNamesThePartitionAndOffsetOfARecord(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	addr := cluster.ListenAddrs()[0]
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.DefaultProduceTopic("orders"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, key := range []string{"order-6", "order-7", "order-7"} {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Key: []byte(key), Value: []byte("{}"), Partition: 1}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(dir, "out.jsonl")
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`stores:
  keys: { embedded: { path: %s } }
pipelines:
  orders:
    source: { kafka: { brokers: [%q], topics: [orders], group: orders-once } }
    key: { id: record-key }
    store: keys
    sink: { file: { path: %s } }
    parked: { path: %s }
`, filepath.Join(dir, "keys"), addr, out, filepath.Join(dir, "parked")))
	stop := programtest.Background(t, "run", file, "--admin", "off")
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		if lines, _ := os.ReadFile(out); strings.Count(string(lines), "\n") == 2 {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	stop().Check(t, term.ExitDone, `"ended"`)
	wantOrigin(t, file, "order-7", "orders 1/1")
	if got := programtest.Run(t, "", "keys", "ls", "--config", file, "--json"); strings.Count(got.Stdout, `"origin":"orders 1/`) != 2 {
		t.Errorf("keys ls: %+v", got)
	}
}
