package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestFailingAggregateDelaysNoOther fills the limits of a pipeline with messages of an
// aggregate that fails. All others must arrive in the meantime, and those of the aggregate later, in
// their order.
func TestFailingAggregateDelaysNoOther(t *testing.T) {
	t.Parallel()
	server := logical(t)
	for _, c := range []struct {
		name       string
		bytes, due bool // few large messages; messages whose time has come
	}{{name: "count"}, {name: "bytes", bytes: true}, {name: "due", due: true}} {
		for _, mode := range []string{"table", "wal"} {
			t.Run(c.name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				failing, others, size := 700, 10, 10
				opts := pipeline.Options{MaxItems: 200, MaxBytes: 64 << 20, Failure: pipeline.Failure{Attempts: 1 << 30, From: 5 * time.Millisecond, To: 10 * time.Millisecond}}
				if c.bytes {
					failing, size = 100, 32<<10
					opts.MaxItems, opts.MaxBytes = 10_000, 1<<20
				}
				address := servicestest.NewDatabase(t, server.URL())
				pool := migrated(t, address)
				var sent []outbox.Message
				for i := range failing {
					m := event("bad", fmt.Sprintf("%d %s", i, strings.Repeat("x", size)))
					if c.due {
						m.DeliverAt = time.Now().Add(time.Duration(i-failing) * time.Second)
					}
					sent = append(sent, m)
				}
				for n, i := 0, 0; n < others; i++ { // of the same shard, and of the same partition
					of := fmt.Sprintf("good-%d", i)
					if mode == "table" && text(t, pool, "SELECT (hashtext('"+of+"') & 63 = hashtext('bad') & 63)::text") == "true" || mode == "wal" && partition(of) == partition("bad") {
						sent = append(sent, event(of, "good"))
						n++
					}
				}
				var healed atomic.Bool
				var full sync.Once
				var running atomic.Pointer[pipeline.Runner]
				good, bad := make(chan struct{}, others), make(chan string, 2*failing)
				deliver := func(_ context.Context, d pipeline.Delivery) (semel.Result, error) {
					switch number, _, _ := strings.Cut(string(d.Body), " "); {
					case number == "good":
						good <- struct{}{}
					case !healed.Load():
						full.Do(func() { // until the source has nothing more to read
							for limit := time.Now().Add(10 * time.Second); time.Now().Before(limit); <-time.After(5 * time.Millisecond) {
								if n, bytes := running.Load().UnderWay(); n > opts.MaxItems/2 || bytes > opts.MaxBytes/2 {
									break
								}
							}
						})
						return semel.Result{}, errors.New("refused")
					default:
						bad <- number
					}
					return semel.Result{}, nil
				}
				if err := write(t.Context(), pool, sent[:failing]...); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				var source pipeline.Source
				if mode == "wal" {
					source = openWAL(t, address, &relay.WALOptions{Batch: 64, Slot: slotName(t)})
				} else {
					source = open(t, address, &relay.Options{Batch: 64})
				}
				var err error
				if opts.Key, err = key.ParseRule("property:message-id"); err != nil {
					t.Fatal(err)
				}
				if opts.DeadLetters, err = pipeline.OpenDeadLetterDir(t.TempDir()); err != nil {
					t.Fatal(err)
				}
				runner, err := pipeline.NewRunner(source, pipeline.NewDirect(pipeline.NewHandler(deliver), nil), &opts)
				if err != nil {
					t.Fatal(err)
				}
				running.Store(runner)
				ran := make(chan error, 1)
				go func() { ran <- runner.Run(ctx) }()
				// In the write-ahead log they are behind the others.
				if err := write(ctx, pool, sent[failing:]...); err != nil {
					t.Fatal(err)
				}
				limit := time.After(5 * time.Minute)
				for i := range others {
					select {
					case <-good:
					case <-limit:
						t.Fatalf("%d of %d messages of the other aggregates were delivered", i, others)
					}
				}
				healed.Store(true)
				for i := range failing {
					select {
					case number := <-bad:
						if number != fmt.Sprint(i) {
							t.Fatalf("message %s of the aggregate came as number %d", number, i)
						}
					case <-limit:
						t.Fatalf("%d of %d messages of the aggregate were delivered", i, failing)
					}
				}
				eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
				stop()
				if err := <-ran; err != nil {
					t.Error(err)
				}
				eventually(t, pool, "SELECT count(*) = 0 FROM pg_replication_slots WHERE database = current_database() AND active")
				if len(bad) > 0 {
					t.Errorf("%d messages came twice", len(bad))
				}
			})
		}
	}
}

// partition returns the partition of an aggregate in the write-ahead log.
func partition(aggregate string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(aggregate))
	return h.Sum32() % 64
}

// slotName returns a name that no other test of the server has.
func slotName(t *testing.T) string {
	return strings.ToLower(strings.NewReplacer("/", "_", "-", "_").Replace(t.Name()))[len("Test"):]
}
