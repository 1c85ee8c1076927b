package programtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/keyrecord"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// AdminConfig writes a configuration with an admin server and a pipeline with an embedded
// store. One of its messages is fresh, one is a duplicate, and one is parked.
func AdminConfig(t *testing.T, dir string) (file string) {
	t.Helper()
	WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":\"order-1\"}\n{\"id\":\"order-1\"}\n{\"x\":\"secret body\"}\n")
	return WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: keys } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl], follow: true } }, key: { id: .id, scope: orders }, store: keys, sink: { file: { path: out.jsonl } }, parked: { path: aside } }
admin: { listen: "`+servicestest.FreeAddr(t)+`", auth: { token: "secret-4d2f" } }
log: { duplicates: 1 }
`)
}

// ExampleDir creates a directory with all files that the examples mention, and a
// path with the program's name.
func ExampleDir(t *testing.T) (dir, binaries string) {
	t.Helper()
	dir, binaries = t.TempDir(), t.TempDir()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(program, filepath.Join(binaries, "semel")); err != nil {
		t.Fatal(err)
	}
	events, err := os.ReadFile(filepath.Join(Root(t), "examples", "events.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	const orders = `{"user":{"id":"u-1"},"order_id":7}` + "\n" + `{"user":{"id":"u-2"},"order_id":7}` + "\n"
	for name, content := range map[string][]byte{
		"events.jsonl":          events,
		"examples/events.jsonl": events,
		"day-1.jsonl":           events,
		"in.jsonl":              events,
		"day-2.jsonl":           events,
		"logs/app-1.gz":         Gzip(t, orders),
		"logs/app-2.gz":         Gzip(t, orders),
		"semel.yaml":            []byte("stores:\n  ledger: { embedded: { path: ./ledger } }\n  db: { postgres: { dsn: \"${env:DATABASE_URL:-host=localhost}\" } }\n"),
		"pipelines.yaml":        []byte(PipelinesExample),
		"backfill.yaml":         []byte(strings.ReplaceAll(PipelinesExample, "in.jsonl", "keys.jsonl")),
		"api.yaml":              []byte("stores:\n  keys: { embedded: { path: ./keys } }\nproxy: { listen: \"127.0.0.1:0\", upstream: \"http://127.0.0.1:9000\", store: keys, scope: basic }\nadmin: { listen: \"127.0.0.1:0\" }\n"),
		"cases.jsonl":           []byte(`{"name":"an order","body":{"id":"order-7"},"key":"order-7","decision":"fresh"}` + "\n"),
		"keys.jsonl":            []byte(`{"id":"order-40"}` + "\n"),
	} {
		name = filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, binaries
}

// PipelinesExample is the configuration that the pipeline examples use.
const PipelinesExample = `stores:
  ledger: { embedded: { path: ./ledger } }
pipelines:
  lines:
    source: { file: { paths: [in.jsonl] } }
    key: { id: .id }
    store: ledger
    sink: { file: { path: out.jsonl } }
`

// AddParked parks the messages that the parked examples mention.
func AddParked(t *testing.T, dir string) {
	t.Helper()
	letters, err := pipeline.OpenDeadLetterDir(filepath.Join(dir, "semel-parked"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-time.Hour)
	err = letters.Park(t.Context(), []pipeline.Parked{
		{ID: "9f2c41d07be35a1186c0de42", Pipeline: "lines", Key: semel.Key{Scope: "lines", ID: "order-7"}, Reason: "permanent", Error: "the target refused it", Attempts: 1, At: at,
			Message: semel.Message{Body: []byte(`{"id":"order-7"}`)}},
		{ID: "0c51aa7e9d3b4f62a8d17e05", Pipeline: "lines", Reason: "key-missing", Error: "key: .id is absent", At: at, Message: semel.Message{Body: []byte(`{"id":"order-9"}`)}},
		{ID: "77e0b5c2f14d4a9c83d6fb10", Pipeline: "lines", Key: semel.Key{Scope: "lines", ID: "order-8"}, Reason: "unknown", Error: "outcome unknown", Attempts: 2, At: at},
	})
	if err != nil {
		t.Fatal(err)
	}
}

// NewStore creates an embedded store that keeps ids, and passes it to use.
func NewStore(t *testing.T, use func(ctx context.Context, store *logstore.Store)) (dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "store")
	store, err := logstore.Open(dir, &logstore.Options{Fsync: logstore.Never, KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	use(t.Context(), store)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// Claim claims one key of the scope default and returns its token.
func Claim(t *testing.T, store *logstore.Store, request semel.ClaimRequest) semel.Token {
	t.Helper()
	request.Key.Scope = keyrecord.DefaultScope
	request.Owner = semel.Owner{Name: "worker-7", Nonce: uint64(time.Now().UnixNano())}
	request.Lease, request.Window = time.Hour, semel.Forever
	answers := make([]semel.ClaimAnswer, 1)
	if err := store.Claim(t.Context(), []semel.ClaimRequest{request}, answers); err != nil || answers[0].Decision != semel.Fresh {
		t.Fatalf("claim %s: %v, %+v", request.Key, err, answers[0])
	}
	return answers[0].Claim.Token
}

// AddUnknown adds a key whose outcome is unknown.
func AddUnknown(t *testing.T, store *logstore.Store, id string) {
	t.Helper()
	token := Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: id}, Hold: true})
	answers := make([]error, 1)
	release := []semel.ReleaseRequest{{Key: semel.Key{Scope: keyrecord.DefaultScope, ID: id}, Token: token, Unknown: true}}
	if err := store.Release(t.Context(), release, answers); err != nil || answers[0] != nil {
		t.Fatal(err, answers[0])
	}
}

// MixedStore has four keys. The string "42" and the number 42 are done, order-1
// is done with a result, and order-2 is unknown.
func MixedStore(t *testing.T) string {
	return NewStore(t, func(ctx context.Context, store *logstore.Store) {
		Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: "42"}, Done: true})
		Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: "\x00n42"}, Done: true})
		token := Claim(t, store, semel.ClaimRequest{Key: semel.Key{ID: "order-1"}, Fingerprint: semel.Fingerprint{1, 2, 3}})
		answers := make([]error, 1)
		complete := []semel.CompleteRequest{{
			Key: semel.Key{Scope: keyrecord.DefaultScope, ID: "order-1"}, Token: token, Window: semel.Forever,
			Result: semel.Result{Kind: semel.Value, Data: []byte("receipt")},
		}}
		if err := store.Complete(ctx, complete, answers); err != nil || answers[0] != nil {
			t.Fatal(err, answers[0])
		}
		AddUnknown(t, store, "order-2")
	})
}

// AuditLog reads the audit log of a store.
func AuditLog(t *testing.T, dir string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, logstore.AuditName))
	if err != nil {
		t.Fatal(err)
	}
	return JSONLines(t, string(text))
}

// CopyConfig writes a configuration with a pipeline from a file to a file. source and more
// are further settings of the source and of the pipeline.
func CopyConfig(t *testing.T, source, more string) string {
	t.Helper()
	dir := t.TempDir()
	WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n")
	return WriteFile(t, filepath.Join(dir, "c.yaml"), fmt.Sprintf(`
stores: { keys: { embedded: { path: keys } } }
pipelines:
  copy: { source: { file: { paths: [in.jsonl]%s } }, key: { id: .id }, store: keys, sink: { file: { path: out.jsonl } }%s }
`, source, more))
}

// JoinsConfig is a configuration of a pipeline from Kafka to Kafka that joins three tables, one
// of which no expression uses.
const JoinsConfig = `
pipelines:
  p:
    source: { kafka: { brokers: ["127.0.0.1:1"], topics: [in], group: g, retention: 1d } }
    key: { id: .id }
    window: 2d
    tables:
      people: { topic: people, by: .who, missing: drop }
      prices: { topic: prices, by: .item, read: local, as_of: record, history: 2h }
      unused: { topic: unused, by: .who }
    filter: 'value.paid && tables.people.active'
    map: '{"cents": tables.prices.cents}'
    sink: { kafka: { brokers: ["127.0.0.1:1"], topic: out } }
`

// PaidOnly has the key, the filter and the map of a pipeline.
const PaidOnly = `
    key: { id: .event_id }
    filter: 'value.status == "paid"'
    map: '{"customer": value.customer_id, "cents": value.cents}'
`

// PaidOrders are messages for PaidOnly: two are paid, one of them twice, one is open, also
// twice, and one has no status.
var PaidOrders = []string{
	`{"event_id":"e1","status":"paid","customer_id":7,"cents":9007199254740993}`,
	`{"event_id":"e2","status":"open","customer_id":7,"cents":5}`,
	`{"event_id":"e1","status":"paid","customer_id":7,"cents":9007199254740993}`,
	`{"event_id":"e3","customer_id":8,"cents":6}`,
	`{"event_id":"e2","status":"open","customer_id":7,"cents":5}`,
	`{"event_id":"e4","status":"paid","customer_id":9,"cents":1}`,
}
