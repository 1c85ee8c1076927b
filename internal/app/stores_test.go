package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/store/tiered"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// parse reads a configuration. Its relative paths start in a directory of the
// test.
func parse(t *testing.T, text string, values ...any) *config.File {
	t.Helper()
	f, err := kind.All().Parse(filepath.Join(t.TempDir(), "semel.yaml"), fmt.Appendf(nil, text, values...), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func open(t *testing.T, f *config.File, name string, opts *StoresOptions) semel.Store {
	t.Helper()
	store, opened, err := OpenStore(t.Context(), f, name, opts)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	t.Cleanup(func() {
		if err := errors.Join(opened.Close(), opened.Close()); err != nil {
			t.Errorf("close %s: %v", name, err)
		}
	})
	return store
}

// decide claims a key, marks it done and returns the decision.
func decide(t *testing.T, s semel.Store, id string) semel.Decision {
	t.Helper()
	key := semel.Key{Scope: "test", ID: id}
	claim := []semel.ClaimRequest{{Key: key, Owner: semel.Owner{Name: "test", Nonce: uint64(time.Now().UnixNano())}, Lease: time.Minute, Window: time.Hour}}
	answer := make([]semel.ClaimAnswer, 1)
	if err := s.Claim(t.Context(), claim, answer); err != nil || answer[0].Err != nil {
		t.Fatal(err, answer[0].Err)
	}
	if answer[0].Decision == semel.Fresh {
		done := make([]error, 1)
		if err := s.Complete(t.Context(), []semel.CompleteRequest{{Key: key, Token: answer[0].Claim.Token, Window: time.Hour}}, done); err != nil || done[0] != nil {
			t.Fatal(err, done[0])
		}
	}
	return answer[0].Decision
}

func TestSettingsReachTheStores(t *testing.T) {
	t.Parallel()
	cluster := servicestest.StartRedisCluster(t, nil)
	sentinel := servicestest.StartRedisSentinel(t, nil)
	f := parse(t, `
stores:
  mem:      { memory: {} }
  files:    { embedded: { path: ./files, fsync: never } }
  redis:    { redis: { url: %q, prefix: %q, timeout: 30s, persistence: synced, compact: { window: 1h } } }
  cluster:  { redis: { cluster: [%s], timeout: 30s } }
  sentinel: { redis: { sentinel: { addresses: [%s], master: semel }, timeout: 30s, persistence: logged } }
  db:       { postgres: { dsn: %q, schema: once, prefix: p_ } }
  ages:     { postgres: { dsn: %q, cleanup: message-time, message_age: 2d, keep_ids: true } }
  stack:    { tiered: { layers: [mem, files], max_age: 1m } }
`, servers.Redis(t), servicestest.Prefix(), quoted(cluster.Addrs()), quoted(sentinel.Addrs()), servers.Database(t)+"&default_query_exec_mode=cache_statement", servers.Database(t))
	for _, name := range []string{"db", "ages"} {
		schema, err := f.Tables(name, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := schema.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name  string
		check func(semel.Traits) bool
	}{
		{"mem", func(tr semel.Traits) bool { return !tr.Durable && tr.Exact }},
		{"files", func(tr semel.Traits) bool { return tr.Durable && !tr.PowerSafe }},
		{"redis", func(tr semel.Traits) bool {
			return tr.Durable && tr.PowerSafe && tr.Shared && !tr.Exact
		}},
		{"cluster", func(tr semel.Traits) bool { return !tr.Durable && tr.Shared && tr.Exact }},
		{"sentinel", func(tr semel.Traits) bool { return tr.Durable && !tr.PowerSafe }},
		{"db", func(tr semel.Traits) bool { return tr.PowerSafe && tr.Transactional }},
		{"ages", func(tr semel.Traits) bool { return tr.PowerSafe }},
		{"stack", func(tr semel.Traits) bool { return tr.Durable }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, f, c.name, nil)
			if !c.check(s.Traits()) {
				t.Errorf("traits %+v", s.Traits())
			}
			id := c.name
			if c.name == "ages" { // clean-up by message time needs ids that contain a time
				ms := time.Now().UnixMilli()
				id = fmt.Sprintf("%08x-%04x-7000-8000-000000000001", ms>>16, ms&0xffff)
			}
			if first, second := decide(t, s, id), decide(t, s, id); first != semel.Fresh || second != semel.Duplicate {
				t.Errorf("decided %s and %s", first, second)
			}
		})
	}
}

func quoted(addresses []string) string {
	list := make([]string, len(addresses))
	for i, address := range addresses {
		list[i] = fmt.Sprintf("%q", address)
	}
	return strings.Join(list, ", ")
}

// TestTieredStoreContinuesWithoutItsCache has a stack of Redis and a database, and stops and
// starts the cache.
func TestTieredStoreContinuesWithoutItsCache(t *testing.T) {
	t.Parallel()
	cache := servicestest.StartRedis(t, nil)
	f := parse(t, `
stores:
  cache: { redis: { url: %q, timeout: 300ms } }
  db:    { embedded: { path: ./db } }
  both:  { tiered: [cache, db] }
`, cache.URL())
	events := make(chan tiered.Event, 100)
	store := open(t, f, "both", &StoresOptions{OnLayer: func(stack string, event tiered.Event) {
		if stack == "both" {
			events <- event
		}
	}})
	if decision := decide(t, store, "before"); decision != semel.Fresh {
		t.Errorf("decided %s", decision)
	}
	if err := cache.Kill(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"before", "during"} {
		want := semel.Fresh
		if id == "before" {
			want = semel.Duplicate
		}
		if decision := decide(t, store, id); decision != want {
			t.Errorf("%s: decided %s without the cache", id, decision)
		}
	}
	select {
	case event := <-events:
		if event.Kind != tiered.EventDown || event.Layer != "cache" {
			t.Errorf("told of %+v", event)
		}
	default:
		t.Error("no event reports that the cache is down")
	}
}

// TestTieredStoreOpensWhileItsCacheAndFilterAreDown opens a stack while the
// server of its cache and its filter is down, and then starts that server.
func TestTieredStoreOpensWhileItsCacheAndFilterAreDown(t *testing.T) {
	t.Parallel()
	upper := servicestest.StartRedis(t, nil) // it accepts any password
	if err := upper.Kill(); err != nil {
		t.Fatal(err)
	}
	f := parse(t, `
stores:
  server: { redis: { url: "redis://:hidden-1@%s", timeout: 30s } }
  seen:   { filter: { redis: server, rate: 0.01, expect: 1000, window: 1h } }
  cache:  { redis: { url: "redis://:hidden-1@%s", timeout: 30s, prefix: "c:" } }
  db:     { postgres: { dsn: %q } }
  stack:  { tiered: { layers: [seen, cache, db], sees_every_writer: true } }
`, upper.Addr(), upper.Addr(), servers.Database(t))
	schema, err := f.Tables("stack", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := schema.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	events := make(chan tiered.Event, 100)
	store := open(t, f, "stack", &StoresOptions{OnLayer: func(_ string, event tiered.Event) { events <- event }})
	for _, layer := range []string{"seen", "cache"} {
		event := <-events
		if event.Layer != layer || event.Kind != tiered.EventDown || !errors.Is(event.Err, semel.ErrStoreUnavailable) || strings.Contains(event.Err.Error(), "hidden-") {
			t.Errorf("told of %+v", event)
		}
	}
	stack := store.(*tiered.Store)
	for _, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		if decision := decide(t, stack, "before"); decision != want {
			t.Errorf("decided %s without the layers above, want %s", decision, want)
		}
	}
	if err := upper.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	ids, deadline := 0, time.After(3*time.Minute)
	for filled := false; !filled; ids++ {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("no copy in three minutes: %+v", stack.Status())
		}
		if decision := decide(t, stack, fmt.Sprint("after ", ids)); decision != semel.Fresh {
			t.Fatalf("decided %s", decision)
		}
		filled = true
		for _, layer := range stack.Status().Layers {
			filled = filled && !layer.Down && layer.Filled > 0
		}
	}
	if decision := decide(t, stack, "before"); decision != semel.Duplicate {
		t.Errorf("what was done before the layers came is %s", decision)
	}
}

func TestTieredStoreDoesNotOpenWithoutItsDurableStore(t *testing.T) {
	t.Parallel()
	lower := servicestest.StartRedis(t, nil)
	f := parse(t, `
stores:
  mem:   { memory: {} }
  below: { redis: { url: %q } }
  stack: { tiered: [mem, below] }
`, lower.URL())
	if err := lower.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _, err := OpenStore(t.Context(), f, "stack", nil)
	if semel.Classify(err) != semel.ClassRetryable || !errors.Is(err, semel.ErrStoreUnavailable) || !strings.Contains(err.Error(), "its layer below: ") {
		t.Errorf("without the server that decides: %v", err)
	}
}

func TestFiltersStandAboveAnExactStoreOnly(t *testing.T) {
	t.Parallel()
	f := parse(t, `
stores:
  server: { redis: { url: %q, prefix: %q } }
  bits:   { filter: { redis: server, rate: 0.01, expect: 1000, window: 1h } }
  here:   { filter: { rate: 0.01, expect: 1000, window: 1h } }
  files:  { embedded: { path: ./files } }
  stack:  { tiered: { layers: [here, bits, files], sees_every_writer: true } }
`, servers.Redis(t), servicestest.Prefix())
	stack := open(t, f, "stack", nil)
	if first, second := decide(t, stack, "a"), decide(t, stack, "a"); first != semel.Fresh || second != semel.Duplicate {
		t.Errorf("decided %s and %s", first, second)
	}
	for _, name := range []string{"bits", "here"} {
		if _, _, err := OpenStore(t.Context(), f, name, nil); !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(err.Error(), "keeps no records") {
			t.Errorf("%s alone: %v", name, err)
		}
	}
}

func TestErrorsKeepTheirClassAndLoseTheirSecrets(t *testing.T) {
	t.Parallel()
	f := parse(t, `
stores:
  redis: { redis: { url: "redis://:hidden-1@127.0.0.1:1", timeout: 300ms } }
  db:    { postgres: { dsn: "postgres://u:hidden-2@127.0.0.1:1/x" } }
  mem:   { memory: {} }
  stack: { tiered: [mem, redis] }
  bad:   { postgres: { dsn: "host=127.0.0.1 port=bad password=hidden-3" } }
`)
	for name, want := range map[string]error{
		"redis": semel.ErrStoreUnavailable, "db": semel.ErrStoreUnavailable, "stack": semel.ErrStoreUnavailable,
		"bad": semel.ErrInvalidRequest, "none": semel.ErrInvalidRequest,
	} {
		_, opened, err := OpenStore(t.Context(), f, name, nil)
		if opened != nil || !errors.Is(err, want) || strings.Contains(err.Error(), "hidden-") {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
}

// If one store cannot be opened, the store opened before it must be closed again.
func TestAFailedOpenLeavesNothingOpen(t *testing.T) {
	t.Parallel()
	f := parse(t, `
stores:
  cache: { redis: { url: "redis://127.0.0.1:1", timeout: 300ms } }
  seen:  { filter: { rate: 0.9, expect: 1000, window: 1h } }
  files: { embedded: { path: ./files } }
  stack: { tiered: { layers: [cache, seen, files], sees_every_writer: true } }
`)
	for range 2 {
		if _, _, err := OpenStore(t.Context(), f, "stack", nil); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Fatalf("a stack whose filter has no such rate: %v", err)
		} else if holder, held := diagnose.Holder(err); held {
			t.Fatalf("the store below is still open, by %s", holder)
		}
	}
	open(t, f, "files", nil)
	_, _, err := OpenStore(t.Context(), f, "files", nil)
	if holder, held := diagnose.Holder(err); !held || !strings.Contains(holder, fmt.Sprint(os.Getpid())) {
		t.Errorf("a store in use: %v", err)
	}
}
