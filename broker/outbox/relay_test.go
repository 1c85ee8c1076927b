package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// open opens a source that the test closes.
func open(t *testing.T, address string, opts *relay.Options) *relay.Source {
	t.Helper()
	s, err := relay.Open(t.Context(), address, opts)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// closeAfter closes a source when the test ends.
func closeAfter(t *testing.T, s *relay.Source) {
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
}

// read reads until there are n messages, and returns their bodies too.
func read(t *testing.T, s *relay.Source, n int) (items []*pipeline.Item, bodies string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for len(items) < n {
		list, err := s.Read(ctx)
		if err != nil {
			t.Fatalf("%v, with %d messages", err, len(items))
		}
		items = append(items, list...)
	}
	var all []string
	for _, it := range items {
		all = append(all, string(it.Message.Body))
	}
	return items, strings.Join(all, " ")
}

// eventually waits until a statement is true.
func eventually(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; <-time.After(10 * time.Millisecond) {
		var yes bool
		if err := pool.QueryRow(t.Context(), sql).Scan(&yes); err != nil {
			t.Fatal(err)
		}
		if yes {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", sql)
		}
	}
}

func exec(t *testing.T, pool *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func event(aggregate, body string) outbox.Message {
	return outbox.Message{Aggregate: aggregate, Topic: "events", Payload: []byte(body)}
}

func TestOpenTransactionDelaysOnlyItsOwnRows(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s := open(t, address, nil)
	closeAfter(t, s)
	var open []pgx.Tx
	for i := range 3 { // each has lower numbers than all that is committed below
		tx, err := pool.Begin(t.Context())
		if err == nil {
			err = outbox.Write(t.Context(), tx, event("late", fmt.Sprint("late", i)))
		}
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, tx)
	}
	for i := range 3 {
		if err := write(t.Context(), pool, event("a", fmt.Sprint("a", i))); err != nil {
			t.Fatal(err)
		}
		items, got := read(t, s, 1)
		if got != fmt.Sprint("a", i) {
			t.Fatalf("read %s", got)
		}
		if err := s.Ack(t.Context(), items); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(open[0].Commit(t.Context()), open[1].Rollback(t.Context())); err != nil {
		t.Fatal(err)
	}
	if err := write(t.Context(), pool, event("late", "behind")); err != nil {
		t.Fatal(err)
	}
	if _, got := read(t, s, 2); got != "late0 behind" {
		t.Errorf("read %s: the row that was committed first comes first", got)
	}
	if err := open[2].Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if items, got := read(t, s, 1); got != "late2" || items[0].Message.ID == "" || string(items[0].Message.RecordKey) != "late" {
		t.Errorf("read %s: %+v", got, items[0].Message)
	}
}

// TestALongLagIsALowerBound has more rows in a shard than Lag counts.
func TestALongLagIsALowerBound(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s := open(t, address, nil)
	closeAfter(t, s)
	for rows, want := range map[int]pipeline.Lag{
		1999: {Source: "outbox", Messages: 1999, Bytes: pipeline.UnknownLag},
		2001: {Source: "outbox", Messages: 2000, Bytes: pipeline.UnknownLag, More: true},
	} {
		exec(t, pool, "DELETE FROM semel_outbox")
		list := make([]outbox.Message, rows)
		for i := range list {
			list[i] = event("a", "x")
		}
		if err := write(t.Context(), pool, list...); err != nil {
			t.Fatal(err)
		}
		read(t, s, 1) // it owns the shard then
		if got, err := s.Lag(t.Context()); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%d rows: the lag is %+v, %v; want %+v", rows, got, err, want)
		}
	}
}

func TestScheduledRowsAreDeliveredAtTheirTime(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s := open(t, address, nil)
	closeAfter(t, s)
	later := event("a", "later")
	later.DeliverAt = time.Now().Add(time.Hour)
	later.Headers = []semel.Header{{Name: "b", Value: []byte("ä\x00")}, {Name: "a", Value: []byte("1")}, {Name: "b"}}
	if err := write(t.Context(), pool, later, event("a", "now")); err != nil {
		t.Fatal(err)
	}
	if _, got := read(t, s, 1); got != "now" {
		t.Errorf("read %s", got)
	}
	exec(t, pool, "UPDATE semel_outbox SET deliver_at = now() WHERE deliver_at IS NOT NULL")
	lag := func(want int64) {
		t.Helper()
		if got, err := s.Lag(t.Context()); err != nil || len(got) != 1 || got[0] != (pipeline.Lag{Source: "outbox", Messages: want, Bytes: pipeline.UnknownLag}) {
			t.Errorf("the lag is %+v, %v; want %d", got, err, want)
		}
	}
	lag(1) // rows with a time are not counted
	items, got := read(t, s, 1)
	if got != "later" || fmt.Sprintf("%q", items[0].Message.Headers) != `[{"b" "ä\x00"} {"a" "1"} {"b" ""}]` {
		t.Errorf("read %s with %q", got, items[0].Message.Headers)
	}
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT count(*) = 1 FROM semel_outbox")
}

// TestRelayThatLostAShardDeletesNoRows has another process take all shards over while messages
// are being delivered.
func TestRelayThatLostAShardDeletesNoRows(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s := open(t, address, nil)
	closeAfter(t, s)
	if err := write(t.Context(), pool, event("a", "1"), event("b", "2")); err != nil {
		t.Fatal(err)
	}
	items, _ := read(t, s, 2)
	exec(t, pool, "UPDATE semel_outbox_shards SET owner = 'another', epoch = epoch + 1, until = now() + interval '1 hour' WHERE shard = $1", items[0].Message.Origin.Partition)
	if err := s.Ack(t.Context(), items); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT string_agg(convert_from(payload, 'UTF8'), ' ') = '"+string(items[0].Message.Body)+"' FROM semel_outbox")
}

func TestRelaysShareTheShards(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	opts := relay.Named(relay.Options{Lease: time.Second}, "first")
	first := open(t, address, opts)
	closeAfter(t, first)
	eventually(t, pool, "SELECT count(*) = 64 FROM semel_outbox_shards WHERE owner LIKE 'first/%' AND epoch >= 1 AND until > now()")
	second := open(t, address, relay.Named(relay.Options{Lease: time.Second}, "second"))
	eventually(t, pool, "SELECT count(*) = 32 FROM semel_outbox_shards WHERE owner LIKE 'second/%' AND epoch >= 2 AND until > now()")
	if err := second.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, pool, "SELECT count(*) = 64 FROM semel_outbox_shards WHERE owner LIKE 'first/%' AND until > now()")
	eventually(t, pool, "SELECT count(*) = 1 FROM semel_outbox_relays")
}

// TestEachRelayReportsAllShards has a relay that may take no shard.
func TestEachRelayReportsAllShards(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	exec(t, pool, "UPDATE semel_outbox_shards SET until = 'infinity', epoch = 7, owner = 'dead' WHERE shard < 60")
	if err := write(t.Context(), pool, event("a", "1"), outbox.Message{Aggregate: "b", DeliverAt: time.Now().Add(-time.Hour)}, outbox.Message{Aggregate: "c", DeliverAt: time.Now().Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	exec(t, pool, "UPDATE semel_outbox SET created = created - interval '2 hours' WHERE aggregate = 'a'")
	s := open(t, address, relay.Named(relay.Options{}, "late"))
	closeAfter(t, s)
	eventually(t, pool, "SELECT count(*) = 4 FROM semel_outbox_shards WHERE owner LIKE 'late/%'")
	shardOf := func(aggregate string) string {
		return text(t, pool, "SELECT shard::text FROM semel_outbox WHERE aggregate = '"+aggregate+"'")
	}
	gauges, err := s.Gauges(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	owners, oldest := map[string]float64{}, map[string]float64{}
	for _, g := range gauges {
		switch g.Name {
		case "dedup.outbox.owner":
			if g.Labels[1] == "dead" && g.Value != 7 || strings.HasPrefix(g.Labels[1], "late/") && g.Value != 1 {
				t.Errorf("%+v", g)
			}
			owners[g.Labels[0]] = g.Value
		case "dedup.outbox.oldest":
			oldest[g.Labels[0]] = g.Value
		}
	}
	if len(owners) != 64 || len(oldest) != 64 {
		t.Errorf("%d owners and %d ages", len(owners), len(oldest))
	}
	waits := 0
	for _, seconds := range oldest {
		if seconds > 0 {
			waits++
		}
	}
	if a, b := oldest[shardOf("a")], oldest[shardOf("b")]; a < 7200 || a > 7300 || b < 3600 || b > 3700 || waits != 2 {
		t.Errorf("a waits for %v s, b for %v s; %d shards have rows that wait", a, b, waits)
	}
	exec(t, pool, "UPDATE semel_outbox_shards SET until = now() - interval '1 second' WHERE owner = 'dead'")
	if gauges, err = s.Gauges(t.Context()); err != nil || len(gauges) > 64+64 {
		t.Errorf("%d gauges, %v", len(gauges), err)
	}
	for _, g := range gauges {
		if g.Name == "dedup.outbox.owner" && g.Labels[1] == "dead" {
			t.Errorf("the lease of %+v has ended", g)
		}
	}
}

func TestMissingTablesAndBadOptionsAreNamed(t *testing.T) {
	t.Parallel()
	if _, err := relay.Open(t.Context(), servers.Database(t), nil); !errors.Is(err, pgstore.ErrSchema) || !strings.Contains(err.Error(), "semel migrate up") {
		t.Error(err)
	}
	for _, opts := range []*relay.Options{{Lease: time.Millisecond}, {Batch: -1}, {Names: pgstore.Names{Prefix: "a b"}}} {
		if _, err := relay.Open(t.Context(), "postgres://", opts); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
}

// TestRelayWithoutATableIsNotReady takes a table away at the start, and while a relay runs.
func TestRelayWithoutATableIsNotReady(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	exec(t, pool, "ALTER TABLE semel_outbox_relays RENAME TO away")
	if _, err := relay.Open(t.Context(), address, nil); !errors.Is(err, pgstore.ErrSchema) || !strings.Contains(err.Error(), "semel_outbox_relays") {
		t.Error(err)
	}
	exec(t, pool, "ALTER TABLE away RENAME TO semel_outbox_relays")
	s := open(t, address, &relay.Options{Lease: time.Second})
	exec(t, pool, "ALTER TABLE semel_outbox_relays RENAME TO away")
	reading, stop := context.WithCancel(t.Context())
	read := make(chan error, 1)
	go func() { // it has no shard, and must not hide why
		_, err := s.Read(reading)
		read <- err
	}()
	becomes(t, s, "semel_outbox_relays", func(err error) bool { return err != nil && strings.Contains(err.Error(), "semel_outbox_relays") })
	exec(t, pool, "ALTER TABLE away RENAME TO semel_outbox_relays")
	becomes(t, s, "ready", func(err error) bool { return err == nil })
	stop()
	if err := errors.Join(s.Close(t.Context()), <-read); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// becomes waits until a relay says this of itself. On a slow machine it may first say that its
// database did not answer in time.
func becomes(t *testing.T, s *relay.Source, what string, so func(error) bool) {
	t.Helper()
	for late := time.Now().Add(2 * time.Minute); ; <-time.After(10 * time.Millisecond) {
		err := s.Ready(t.Context())
		if so(err) {
			return
		}
		if time.Now().After(late) {
			t.Fatalf("it never says %q: %v", what, err)
		}
	}
}

// shop is a table of aggregates. Each has a number that its transactions increase, so
// that the events of an aggregate tell their order.
type shop struct {
	t    *testing.T
	pool *pgxpool.Pool

	mu        sync.Mutex
	committed map[string]bool     // events
	delivered map[string][]string // events of each aggregate, with repeats
	count     int                 // of all different events that were delivered
}

const aggregates = 12

// transact changes an aggregate and writes an event, in one transaction that may be
// long, and that may be rolled back.
func (s *shop) transact(ctx context.Context, random *rand.Rand) error {
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback(ctx) }() // no effect after a commit
	var list []outbox.Message
	var events []string
	id := random.IntN(aggregates)
	for range 1 + random.IntN(3) {
		var n int
		if err := tx.QueryRow(ctx, "UPDATE aggregates SET n = n + 1 WHERE id = $1 RETURNING n", id).Scan(&n); err != nil {
			return err
		}
		e := fmt.Sprintf("%d/%d/%x", id, n, random.Uint64())
		events, list = append(events, e), append(list, event(fmt.Sprint("aggregate-", id), e))
	}
	if err := outbox.Write(ctx, tx, list...); err != nil {
		return err
	}
	if random.IntN(8) == 0 { // the server holds it open for up to a third of a second
		if _, err := tx.Exec(ctx, "SELECT pg_sleep($1)", random.Float64()/3); err != nil {
			return err
		}
	}
	if random.IntN(8) == 0 {
		return tx.Rollback(ctx)
	}
	if err := tx.Commit(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		s.committed[e] = true
	}
	return nil
}

// few reports whether too few events were committed yet, as on a slow machine.
func (s *shop) few() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.committed) < 100
}

// deliver is the handler of the relays. Some deliveries fail.
func (s *shop) deliver(_ context.Context, d pipeline.Delivery) (semel.Result, error) {
	e := string(d.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch of := string(d.RecordKey); {
	case d.Attempt == 1 && len(e)%17 == 0:
		return semel.Result{}, errors.New("not at first")
	case !strings.Contains(strings.Join(s.delivered[of], " ")+" ", e+" "):
		s.count++
		fallthrough
	default:
		s.delivered[of] = append(s.delivered[of], e)
	}
	return semel.Result{}, nil
}

// relay runs a pipeline until ctx ends.
func (s *shop) relay(ctx context.Context, address string) error {
	source, err := relay.Open(context.WithoutCancel(ctx), address, &relay.Options{Lease: time.Second, Batch: 64}) // which may take longer than the relay is there
	if err != nil {
		return err
	}
	rule, err := key.ParseRule("property:message-id")
	if err != nil {
		return err
	}
	letters, err := pipeline.OpenDeadLetterDir(s.t.TempDir())
	if err != nil {
		return err
	}
	runner, err := pipeline.NewRunner(source, pipeline.NewDirect(pipeline.NewHandler(s.deliver), nil), &pipeline.Options{Key: rule, DeadLetters: letters, Failure: pipeline.Failure{From: time.Millisecond}})
	if err != nil {
		return err
	}
	return runner.Run(ctx)
}

// TestEveryCommittedEventIsDeliveredInOrder compares what relays behind a pooler deliver
// with what writers committed. Relays come and go.
func TestEveryCommittedEventIsDeliveredInOrder(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	pooler := servicestest.StartPgBouncer(t, server, nil)
	s := &shop{t: t, pool: migrated(t, server.URL()), committed: map[string]bool{}, delivered: map[string][]string{}}
	exec(t, s.pool, fmt.Sprintf("CREATE TABLE aggregates AS SELECT id, 0 AS n FROM generate_series(0, %d) AS id", aggregates))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	until := time.Now().Add(3 * time.Second)
	var writers, relays sync.WaitGroup
	for i := range 8 {
		random := rand.New(rand.NewPCG(seed, uint64(i)))
		writers.Go(func() {
			for time.Now().Before(until) || s.few() {
				if err := s.transact(t.Context(), random); err != nil {
					t.Errorf("write: %v", err)
					return
				}
			}
		})
	}
	all, stop := context.WithCancel(t.Context())
	defer stop()
	run := func(ctx context.Context) {
		relays.Go(func() {
			if err := s.relay(ctx, pooler.URL()); err != nil {
				t.Errorf("relay: %v", err)
			}
		})
	}
	run(all)
	for i := range 4 { // others join it for a part of the time
		some, end := context.WithTimeout(all, time.Duration(1+i%3)*700*time.Millisecond)
		defer end()
		run(some)
	}
	writers.Wait()
	eventually(t, s.pool, "SELECT count(*) = 0 FROM semel_outbox")
	stop()
	relays.Wait()
	if s.count != len(s.committed) || s.count < 100 {
		t.Errorf("%d events were delivered, and %d committed", s.count, len(s.committed))
	}
	for of, list := range s.delivered {
		last, seen := 0, map[string]bool{}
		for _, e := range list {
			var id, n int
			if _, err := fmt.Sscanf(e, "%d/%d/", &id, &n); err != nil || !s.committed[e] {
				t.Errorf("%s was delivered and not committed (%v)", e, err)
			}
			if !seen[e] && n != last+1 {
				t.Errorf("%s: event %d comes after event %d", of, n, last)
			}
			if !seen[e] {
				last = n
			}
			seen[e] = true
		}
	}
}
