package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	relay "github.com/semel-dev/semel/broker/outbox"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/outbox"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// reasons notes the reasons of events.
type reasons struct {
	pipeline.Observer
	mu   sync.Mutex
	text string
}

func (r *reasons) ObservePipeline(e pipeline.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.text += e.Reason + "\n"
}

func (r *reasons) has(part string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Contains(r.text, part)
}

// damages are what may happen to the tables of an outbox, as by "truncate all tables" or a
// restore of a part of the database. Rows that are written afterwards are delivered.
var damages = []struct {
	name, sql string
	said      string // by an event
}{
	{"shards emptied", "TRUNCATE semel_outbox_shards", "64 of the 64 rows"},
	{"shards lost in part", "DELETE FROM semel_outbox_shards WHERE shard < 40", "40 of the 64 rows"},
	{"shards created again", "DROP TABLE semel_outbox_shards; CREATE TABLE semel_outbox_shards (shard smallint PRIMARY KEY, epoch bigint NOT NULL DEFAULT 0, until timestamptz NOT NULL DEFAULT '-infinity', owner text)", "64 of the 64 rows"},
	{"shards of yesterday", "UPDATE semel_outbox_shards SET owner = 'yesterday', epoch = 1, until = clock_timestamp() - interval '1 day'", ""},
	{"relays emptied", "TRUNCATE semel_outbox_relays", ""},
	{"pipeline emptied", "TRUNCATE semel_outbox_pipeline", ""},
	{"outbox emptied", "TRUNCATE semel_outbox", ""},
	{"outbox emptied, and its numbers begin again", "TRUNCATE semel_outbox RESTART IDENTITY", ""},
	{"numbers of yesterday", "ALTER TABLE semel_outbox ALTER COLUMN seq RESTART WITH 3", ""},
	{"all tables emptied", "TRUNCATE semel_outbox, semel_outbox_shards, semel_outbox_relays, semel_outbox_pipeline, semel_outbox_slots, semel_outbox_log RESTART IDENTITY", "64 of the 64 rows"},
}

// TestRelayRepairsItsTables damages the tables before a relay starts, and while it runs.
func TestRelayRepairsItsTables(t *testing.T) {
	t.Parallel()
	for _, d := range damages {
		for _, running := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, running %v", d.name, running), func(t *testing.T) {
				t.Parallel()
				address := servers.Database(t)
				pool := migrated(t, address)
				var said reasons
				opts := &relay.Options{Lease: time.Second, Pipeline: "events", Target: "there", Observer: &said}
				deliver := func(s *relay.Source, from, n int) {
					t.Helper()
					for i := range n {
						if err := write(t.Context(), pool, event(fmt.Sprint("a", i%8), fmt.Sprint(from+i))); err != nil {
							t.Fatal(err)
						}
					}
					// A row whose shard was lost before it was acknowledged comes again.
					seen, left := map[string]bool{}, 1
					for left > 0 {
						items, err := s.Read(t.Context())
						if err == nil {
							err = s.Ack(t.Context(), items)
						}
						if err == nil {
							err = pool.QueryRow(t.Context(), "SELECT count(*) FROM semel_outbox").Scan(&left)
						}
						if err != nil {
							t.Fatal(err)
						}
						for _, it := range items {
							seen[string(it.Message.Body)] = true
						}
					}
					for i := range n {
						if !seen[fmt.Sprint(from+i)] {
							t.Errorf("message %d is lost", from+i)
						}
					}
				}
				s := open(t, address, opts)
				deliver(s, 0, 50)
				if !running {
					if err := s.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				exec(t, pool, d.sql)
				if !running {
					s = open(t, address, opts)
				}
				closeAfter(t, s)
				began := time.Now()
				deliver(s, 100, 30)
				deliver(s, 200, 30)
				if took := time.Since(began); took > 45*time.Second {
					t.Errorf("it took %v", took)
				}
				eventually(t, pool, "SELECT count(*) = 64 AND count(owner) = 64 FROM semel_outbox_shards")
				eventually(t, pool, "SELECT count(*) = 1 FROM semel_outbox_pipeline WHERE pipeline = 'events' AND target = 'there'")
				if d.said != "" && !said.has(d.said) {
					t.Errorf("the log has %q, want %q", said.text, d.said)
				}
			})
		}
	}
}

// TestRowsWithoutAShardAreReported has no relay that could repair the table.
func TestRowsWithoutAShardAreReported(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	s := open(t, address, nil)
	closeAfter(t, s)
	for i := range 20 {
		if err := write(t.Context(), pool, event(fmt.Sprint("a", i), "x")); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, pool, "UPDATE semel_outbox SET created = created - interval '1 hour'; DROP TABLE semel_outbox_shards; CREATE TABLE semel_outbox_shards (shard smallint PRIMARY KEY, epoch bigint NOT NULL DEFAULT 0, until timestamptz NOT NULL DEFAULT '-infinity', owner text CHECK (false))")
	gauges, err := s.Gauges(t.Context())
	waits := 0
	for _, g := range gauges {
		if g.Name == "dedup.outbox.oldest" && g.Value > 3000 {
			waits++
		}
		if g.Name == "dedup.outbox.owner" {
			t.Errorf("%+v", g)
		}
	}
	if err != nil || waits == 0 || len(gauges) != 64 {
		t.Errorf("%d gauges, %d shards wait, %v", len(gauges), waits, err)
	}
	findings, err := relay.Examine(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if f := found(findings, "outbox.shards"); f.Severity != doctor.Warning || !strings.Contains(f.Found, "64 of 64 shards are missing") {
		t.Errorf("%+v", f)
	}
	var id string
	if err := pool.QueryRow(t.Context(), "SELECT id::text FROM semel_outbox LIMIT 1").Scan(&id); err != nil {
		t.Fatal(err)
	}
	if waiting, err := relay.Find(t.Context(), address, relay.Options{}.Names, []string{id}); err != nil || len(waiting) != 1 || waiting[0].Owner != "" {
		t.Error(waiting, err)
	}
}

func found(findings []doctor.Finding, subject string) doctor.Finding {
	for _, f := range findings {
		if f.Subject == subject {
			return f
		}
	}
	return doctor.Finding{}
}

// TestAcknowledgementDeletesItsOwnRow gives the number of a row in flight to another message.
func TestAcknowledgementDeletesItsOwnRow(t *testing.T) {
	t.Parallel()
	for _, keep := range []time.Duration{0, time.Hour} {
		address := servers.Database(t)
		pool := migrated(t, address)
		s := open(t, address, &relay.Options{Keep: keep})
		closeAfter(t, s)
		if err := write(t.Context(), pool, event("a", "old")); err != nil {
			t.Fatal(err)
		}
		items, _ := read(t, s, 1)
		exec(t, pool, "TRUNCATE semel_outbox RESTART IDENTITY")
		if err := write(t.Context(), pool, event("a", "new")); err != nil {
			t.Fatal(err)
		}
		if err := s.Ack(t.Context(), items); err != nil {
			t.Fatal(err)
		}
		items, bodies := read(t, s, 1)
		if bodies != "new" {
			t.Error(bodies)
		}
		if err := s.Ack(t.Context(), items); err != nil {
			t.Fatal(err)
		}
		eventually(t, pool, "SELECT count(*) = 0 FROM semel_outbox")
	}
}

// strange are rows that the checks of the table refuse now, and that an older table may
// have.
var strange = []struct{ name, column, value string }{
	{"created in the infinite future", "created", "'infinity'"},
	{"created in the infinite past", "created", "'-infinity'"},
	{"created in a year that RFC 3339 lacks", "created", "'12345-01-01'"},
	{"created before Christ", "created", "'0044-03-15 BC'"},
	{"never due", "deliver_at", "'infinity'"},
	{"always due", "deliver_at", "'-infinity'"},
	{"due in a year that RFC 3339 lacks", "deliver_at", "'12345-01-01'"},
	{"headers nested deeply", "headers", `('{"deep":' || repeat('[', 11000) || repeat(']', 11000) || ',"b":"2"}')::json`},
	{"a payload beyond the limit", "payload", "convert_to(repeat('x', 8388609), 'UTF8')"},
}

// unread is true when no slot of the database is read.
const unread = "SELECT NOT coalesce(bool_or(active), false) FROM pg_replication_slots WHERE database = current_database()"

// TestInvalidRowDelaysNoOtherRow writes one strange row before others.
func TestInvalidRowDelaysNoOtherRow(t *testing.T) {
	t.Parallel()
	server := logical(t)
	for i, of := range strange {
		t.Run(of.name, func(t *testing.T) {
			t.Parallel()
			address := servicestest.NewDatabase(t, server.URL())
			pool := migrated(t, address)
			insert := fmt.Sprintf("INSERT INTO semel_outbox (aggregate, topic, %s) VALUES ('a', 'strange', %s)", of.column, of.value)
			if _, err := pool.Exec(t.Context(), insert); err == nil || !strings.Contains(err.Error(), "violates check constraint") {
				t.Errorf("the table takes it: %v", err)
			}
			exec(t, pool, "ALTER TABLE semel_outbox DROP CONSTRAINT size_limit, DROP CONSTRAINT created_range, DROP CONSTRAINT deliver_at_range, DROP CONSTRAINT headers_depth")
			exec(t, pool, insert)
			for i := range 5 {
				if err := write(t.Context(), pool, event(fmt.Sprint("b", i), "x")); err != nil {
					t.Fatal(err)
				}
			}
			check := func(s pipeline.Source) {
				t.Helper()
				want := 6
				if of.column == "deliver_at" && of.value != "'-infinity'" {
					want = 5
				}
				var items []*pipeline.Item
				for len(items) < want {
					list, err := s.Read(t.Context())
					if err != nil {
						t.Fatal(err)
					}
					items = append(items, list...)
				}
				for _, it := range items {
					if _, err := it.Message.Time.MarshalJSON(); err != nil {
						t.Error(err)
					}
					if it.Message.Origin.Source == "strange" && of.column == "headers" && (len(it.Message.Headers) != 2 || len(it.Message.Headers[0].Value) != 22000) {
						t.Errorf("%d headers", len(it.Message.Headers))
					}
				}
				if err := s.(doctor.Readier).Ready(t.Context()); err != nil {
					t.Error(err)
				}
				if gauges, err := s.Traits().Gauges(t.Context()); err != nil || len(gauges) == 0 {
					t.Error(gauges, err)
				}
			}
			s := open(t, address, nil)
			check(s)
			if err := s.Close(t.Context()); err != nil {
				t.Error(err)
			}
			if _, err := relay.Examine(t.Context(), address, nil); err != nil {
				t.Error(err)
			}
			if err := relay.Sample(t.Context(), address, relay.Options{}.Names, func(*semel.Message) bool { return true }); err != nil {
				t.Error(err)
			}
			var id string
			if err := pool.QueryRow(t.Context(), "SELECT id::text FROM semel_outbox WHERE topic = 'strange'").Scan(&id); err != nil {
				t.Fatal(err)
			}
			if list, err := relay.Find(t.Context(), address, relay.Options{}.Names, []string{id}); err != nil || len(list) != 1 {
				t.Error(list, err)
			}
			wal := openWAL(t, address, &relay.WALOptions{Slot: fmt.Sprint("strange", i)})
			defer func() {
				closeWAL(t, wal)
				eventually(t, pool, unread) // otherwise the database cannot be dropped
			}()
			check(wal)
			exec(t, pool, insert) // this time from the log
			for i := range 5 {
				if err := write(t.Context(), pool, event(fmt.Sprint("c", i), "x")); err != nil {
					t.Fatal(err)
				}
			}
			check(wal)
		})
	}
}

// TestOutboxBelongsToOnePipeline starts relays of several pipelines on one outbox, by reading
// the table and by reading the log.
func TestOutboxBelongsToOnePipeline(t *testing.T) {
	t.Parallel()
	server := logical(t)
	type starts func(pipeline, target string) (pipeline.Source, error)
	for name, of := range map[string]func(address string) starts{
		"table": func(address string) starts {
			return func(pipeline, target string) (pipeline.Source, error) {
				s, err := relay.Open(t.Context(), address, &relay.Options{Pipeline: pipeline, Target: target})
				if err != nil {
					return nil, err
				}
				return s, nil
			}
		},
		"wal": func(address string) starts {
			return func(pipeline, target string) (pipeline.Source, error) {
				s, err := relay.OpenWAL(t.Context(), address, &relay.WALOptions{Pipeline: pipeline, Target: target})
				if err != nil {
					return nil, err
				}
				return s, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := servicestest.NewDatabase(t, server.URL())
			pool := migrated(t, address)
			start := of(address)
			must := func(s pipeline.Source, err error) pipeline.Source {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
				return s
			}
			ends := func(s pipeline.Source) {
				t.Helper()
				if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
					t.Error(err)
				}
			}
			a := must(start("a", "x"))
			requireDelivery(t, a, pool)
			var other *relay.PipelineError
			if _, err := start("b", "x"); !errors.As(err, &other) || !errors.Is(err, semel.ErrInvalidRequest) || other.Bound != "a" || !strings.Contains(err.Error(), `DELETE FROM "public"."semel_outbox_pipeline"`) {
				t.Errorf("another pipeline: %v", err)
			}
			var target *relay.TargetError
			if _, err := start("a", "y"); !errors.As(err, &target) || !errors.Is(err, semel.ErrStoreUnavailable) || target.Other != "x" {
				t.Errorf("another target: %v", err)
			}
			second := must(start("a", "x"))
			ends(second)
			requireDelivery(t, a, pool)
			ends(a)
			if _, err := start("b", "x"); !errors.As(err, &other) {
				t.Errorf("another pipeline, after the first ended: %v", err)
			}
			if name == "wal" { // the server frees the slot a moment later
				eventually(t, pool, unread)
			}
			a = must(start("a", "y")) // the target of the pipeline was changed
			requireDelivery(t, a, pool)
			ends(a)
			exec(t, pool, "DELETE FROM semel_outbox_pipeline")
			b := must(start("b", "y"))
			requireDelivery(t, b, pool)
			ends(b)
			ends(must(start("", ""))) // a program that names no pipeline
			eventually(t, pool, unread)
		})
	}
}

// requireDelivery delivers a row.
func requireDelivery(t *testing.T, s pipeline.Source, pool *pgxpool.Pool) {
	t.Helper()
	if err := write(t.Context(), pool, outbox.Message{Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	items, err := s.Read(t.Context())
	if err == nil {
		err = s.Ack(t.Context(), items)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestRelayStopsForAnotherPipeline changes the pipeline of an outbox under a relay.
func TestRelayStopsForAnotherPipeline(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := migrated(t, address)
	// It gives its shards back. Those of a lease that ended, because a slow machine stood still,
	// it leaves to others: this one is longer.
	s := open(t, address, &relay.Options{Lease: 10 * time.Second, Pipeline: "a"})
	closeAfter(t, s)
	requireDelivery(t, s, pool)
	exec(t, pool, "UPDATE semel_outbox_pipeline SET pipeline = 'b'")
	eventually(t, pool, "SELECT count(owner) = 0 FROM semel_outbox_shards")
	becomes(t, s, "another pipeline", func(err error) bool { return errors.As(err, new(*relay.PipelineError)) })
	exec(t, pool, "UPDATE semel_outbox_pipeline SET pipeline = 'a'")
	requireDelivery(t, s, pool)
}
