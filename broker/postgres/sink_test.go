package postgres_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services/servicestest"
)

func item(id, body string) *pipeline.Item {
	it := &pipeline.Item{Partition: pipeline.NewPartition("a"), Attempt: 1}
	it.Call.Key = semel.Key{Scope: "s", ID: id}
	it.Message.Body = []byte(body)
	it.Message.Origin = semel.Origin{Source: "topic", Partition: 3, Offset: 1 << 40}
	it.Message.Time = time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.FixedZone("", 3600))
	return it
}

func items(bodies ...string) (list []*pipeline.Item) {
	for i, body := range bodies {
		list = append(list, item(fmt.Sprint("k", i), body))
	}
	return list
}

// class says in a word what an error means.
func class(err error) string {
	var (
		away      *pipeline.UnavailableError
		permanent *semel.PermanentError
		store     *pipeline.StoreError
	)
	switch {
	case err == nil:
		return "delivered"
	case errors.As(err, &permanent):
		return "permanent"
	case errors.As(err, &away), errors.As(err, &store):
		return "unavailable"
	case errors.Is(err, semel.ErrOutcomeUnknown):
		return "unknown"
	}
	return "retry"
}

// way is one of those that write the same options.
type way struct {
	name    string
	process func(ctx context.Context, list []*pipeline.Item)
}

// ways opens a sink and two sessions on a database. The second session has seen new keys
// only, so that it sends keys and statements together.
func ways(t *testing.T, address string, pool *pgxpool.Pool, opts *postgres.Options) []way {
	t.Helper()
	sink, err := postgres.Open(t.Context(), address, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sink.Close(context.Background()) })
	session, err := postgres.NewSession(guard(t, pool), opts)
	if err != nil {
		t.Fatal(err)
	}
	hot := guardOf(t, pool, pgstore.Names{Prefix: "hot_"})
	for i := range 20 {
		if _, err := hot.DoTx(t.Context(), semel.Key{Scope: "new", ID: fmt.Sprint(t.Name(), i, time.Now().UnixNano())}, func(context.Context, pgx.Tx) ([]byte, error) { return nil, nil }); err != nil {
			t.Fatal(err)
		}
	}
	together, err := postgres.NewSession(hot, opts)
	if err != nil {
		t.Fatal(err)
	}
	return []way{{"sink", sink.Deliver}, {"session", session.Process}, {"session of new keys", together.Process}}
}

func wantClasses(t *testing.T, list []*pipeline.Item, want ...string) {
	t.Helper()
	for i, it := range list {
		if got := class(it.Err); got != want[i] {
			t.Errorf("message %d: %s (%v), want %s", i, got, it.Err, want[i])
		}
	}
}

func TestValuesKeepTheirDigitsAndBytes(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, `CREATE TABLE v (i int8, n numeric, j jsonb, doc jsonb, raw bytea, at timestamptz, tags text[], no text, yes bool,
		k text, attempt text, part text, off int8, sent timestamptz, sentence text, h text)`)
	opts := &postgres.Options{Table: "v", Columns: []postgres.Column{
		{"i", ".i"}, {"n", ".n"}, {"j", ".j"}, {"doc", "body"}, {"raw", "body"}, {"at", ".at"}, {"tags", ".tags"}, {"no", ".no"}, {"yes", ".yes"},
		{"k", "key"}, {"attempt", "attempt"}, {"part", "partition"}, {"off", "offset"}, {"sent", "time"}, {"sentence", "time"}, {"h", "header:h"},
	}}
	const body = `{"i":9223372036854775807,"n":123456789012345678901234567890.000000001,"j":{"a":[1,"ü\n"]},"at":"2026-01-02T03:04:05.123456Z","tags":"{a,\"b c\"}","no":null,"yes":true}`
	for _, w := range ways(t, address, pool, opts) {
		exec(t, pool, "DELETE FROM v")
		list := items(body)
		list[0].Message.Headers = []semel.Header{{Name: "h", Value: []byte("x'y")}}
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered")
		got := one[string](t, pool, `SELECT concat_ws('|', i, n, j->'a'->>1 = E'ü\n', doc->>'i', convert_from(raw, 'UTF8') = '`+body+`', at = '2026-01-02T03:04:05.123456Z', tags[2], no IS NULL, yes,
			k, attempt, part, off, sent = '2026-01-02T02:04:05.678Z', sentence, h) FROM v`)
		want := "9223372036854775807|123456789012345678901234567890.000000001|t|9223372036854775807|t|t|b c|t|t|k0|1|3|1099511627776|t|2026-01-02T02:04:05.678Z|x'y"
		if got != want {
			t.Errorf("%s:\n got %s\nwant %s", w.name, got, want)
		}
	}
}

// TestInvalidTextIsRefusedAndNotReplaced: a row must not have another value than
// its message.
func TestInvalidTextIsRefusedAndNotReplaced(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, `CREATE TABLE texts (s text)`)
	for _, w := range ways(t, address, pool, &postgres.Options{Table: "texts", Columns: []postgres.Column{{"s", ".s"}}}) {
		exec(t, pool, "DELETE FROM texts")
		list := items(`{"s":"\ud83d\ude00 \uFFFD \\ud83d"}`, `{"s":"half \ud83d"}`, `{"s":"\ude00\ud83d"}`, "{\"s\":\"\xff\"}")
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered", "permanent", "permanent", "permanent")
		if got, want := one[string](t, pool, `SELECT string_agg(s, ',') FROM texts`), "\U0001F600 \uFFFD \\ud83d"; got != want {
			t.Errorf("%s: %q, want %q", w.name, got, want)
		}
	}
}

func TestAFailingMessageFailsAlone(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, `CREATE TABLE parent (id int8 PRIMARY KEY);
		CREATE TABLE f (i int8 CHECK (i > 0), s text NOT NULL, d int8 UNIQUE DEFERRABLE INITIALLY DEFERRED, p int8 REFERENCES parent);
		INSERT INTO f VALUES (1, 'first', 1, NULL)`)
	opts := &postgres.Options{Table: "f", Columns: []postgres.Column{{"i", ".i"}, {"s", ".s"}, {"d", ".d"}, {"p", ".p"}}}
	for round, w := range ways(t, address, pool, opts) {
		exec(t, pool, "DELETE FROM f WHERE s <> 'first'")
		for _, c := range []struct{ name, bad, want string }{
			{"constraint", `{"i":-1,"s":"x"}`, "permanent"},
			{"type", `{"i":"one","s":"x"}`, "permanent"},
			{"range", `{"i":9223372036854775808,"s":"x"}`, "permanent"},
			{"null", `{"i":1}`, "permanent"},
			{"NUL", `{"i":1,"s":"a\u0000b"}`, "permanent"},
			{"no JSON", `{"i":`, "permanent"},
			{"deferred", `{"i":1,"s":"x","d":1}`, "permanent"},
			{"parent", `{"i":1,"s":"x","p":7}`, "retry"},
		} {
			before := one[int](t, pool, "SELECT count(*) FROM f")
			list := items(`{"i":1,"s":"a"}`, c.bad, `{"i":2,"s":"b"}`, `{"i":3,"s":"c"}`)
			for i, it := range list {
				it.Call.Key.ID = fmt.Sprint(round, c.name, i)
			}
			w.process(t.Context(), list)
			if list[1].Err == nil || class(list[1].Err) != c.want {
				t.Errorf("%s, %s: %s (%v), want %s", w.name, c.name, class(list[1].Err), list[1].Err, c.want)
			}
			list[1].Err = nil
			wantClasses(t, list, "delivered", "delivered", "delivered", "delivered")
			if n := one[int](t, pool, "SELECT count(*) FROM f") - before; n != 3 {
				t.Errorf("%s, %s: %d rows, want 3", w.name, c.name, n)
			}
		}
	}
}

// TestMismatchIsReportedThoughTheRowCannotBeWritten processes a message whose values cannot be
// written, and whose key the store does not give to it.
func TestMismatchIsReportedThoughTheRowCannotBeWritten(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE f (i int8)")
	for _, w := range ways(t, address, pool, &postgres.Options{Table: "f", Columns: []postgres.Column{{"i", ".i"}}})[1:] { // a sink has no store
		list := items(`{"i":1}`)
		list[0].Call.Key.ID, list[0].Call.Fingerprint = w.name, semel.Fingerprint{1}
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered")
		list = items(`{"i":`, `{"i":2}`)
		list[0].Call.Key.ID, list[0].Call.Fingerprint = w.name, semel.Fingerprint{2}
		list[1].Call.Key.ID = w.name + " new"
		w.process(t.Context(), list)
		if !errors.Is(list[0].Err, semel.ErrMismatch) || list[1].Err != nil {
			t.Errorf("%s: %s, %v; want a mismatch; and %v", w.name, list[0].Decision, list[0].Err, list[1].Err)
		}
	}
}

func TestMessagesUseNoAttemptsWhileTheTableIsMissing(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	for _, w := range ways(t, address, pool, &postgres.Options{Table: "out", Columns: []postgres.Column{{"body", "body"}}}) {
		list := items("a", "b", "c")
		w.process(t.Context(), list)
		wantClasses(t, list, "unavailable", "unavailable", "unavailable")
		exec(t, pool, outTable)
		w.process(t.Context(), list)
		wantClasses(t, list, "delivered", "delivered", "delivered")
		if n := one[int](t, pool, "SELECT count(*) FROM out"); n != 3 {
			t.Errorf("%d rows, want 3", n)
		}
		exec(t, pool, "DROP TABLE out")
	}
}

// TestARefusedStatementIsAnErrorOfTheSink lets the server refuse the sink's
// statement, and then the claim of the keys.
func TestARefusedStatementIsAnErrorOfTheSink(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	session, err := postgres.NewSession(guard(t, pool), &row)
	if err != nil {
		t.Fatal(err)
	}
	exec(t, pool, outTable)
	ofSink := func(code string) {
		t.Helper()
		for range 2 { // the second time, each statement has a round trip
			list := items("a", "b", "c")
			session.Process(t.Context(), list)
			var store *pipeline.StoreError
			var away *pipeline.UnavailableError
			var of *pgconn.PgError
			for _, it := range list {
				if errors.As(it.Err, &store) || !errors.As(it.Err, &away) || !errors.As(it.Err, &of) || of.Code != code || errors.Is(it.Err, pgstore.ErrSchema) {
					t.Errorf("%s: %v", code, it.Err)
				}
			}
		}
	}
	exec(t, pool, "ALTER TABLE out RENAME COLUMN body TO text")
	ofSink("42703")
	exec(t, pool, "ALTER TABLE out RENAME COLUMN text TO body; ALTER TABLE out RENAME TO moved")
	ofSink("42P01")
	exec(t, pool, "ALTER TABLE moved RENAME TO out")
	list := items("a", "b", "c")
	session.Process(t.Context(), list)
	wantClasses(t, list, "delivered", "delivered", "delivered")

	exec(t, pool, "ALTER TABLE semel_keys RENAME TO moved")
	list = items("d", "e", "f")
	list[0].Call.Key.ID, list[1].Call.Key.ID, list[2].Call.Key.ID = "d", "e", "f"
	session.Process(t.Context(), list)
	var store *pipeline.StoreError
	for _, it := range list {
		if !errors.As(it.Err, &store) || !errors.Is(it.Err, pgstore.ErrSchema) {
			t.Errorf("without the store's table: %v", it.Err)
		}
	}
}

func TestAnUpsertKeepsTheNewestVersion(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, `CREATE TABLE "Odd (name)" (id text PRIMARY KEY, v int8, "from" text)`)
	opts := &postgres.Options{
		Table: "Odd (name)", Key: []string{"id"}, Version: "v",
		Columns: []postgres.Column{{"id", ".id"}, {"v", ".v"}, {"from", ".w"}},
	}
	for round, w := range ways(t, address, pool, opts) {
		exec(t, pool, `DELETE FROM "Odd (name)"`)
		for i, c := range []struct{ body, result string }{
			{`{"id":"a","v":2,"w":"two"}`, postgres.Applied},
			{`{"id":"a","v":1,"w":"one"}`, postgres.Stale},
			{`{"id":"a","v":2,"w":"again"}`, postgres.Stale},
			{`{"id":"a","v":10,"w":"ten"}`, postgres.Applied},
		} {
			it := item(fmt.Sprint(round, i), c.body)
			w.process(t.Context(), []*pipeline.Item{it})
			if it.Err != nil || string(it.Result.Data) != c.result {
				t.Errorf("%s: %s: %q, %v; want %q", w.name, c.body, it.Result.Data, it.Err, c.result)
			}
		}
		if got := one[string](t, pool, `SELECT v || "from" FROM "Odd (name)"`); got != "10ten" {
			t.Errorf("%s: %s is kept", w.name, got)
		}
	}
}

// TestAnUpsertOfManyRowsKeepsTheNewestOfEach has several versions of a row in one
// batch, a unique key of two columns, and a row that has no version yet.
func TestAnUpsertOfManyRowsKeepsTheNewestOfEach(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE accounts (tenant text, id int8, revision int8, name text, PRIMARY KEY (tenant, id))")
	for _, w := range ways(t, address, pool, accounts()) {
		exec(t, pool, "TRUNCATE accounts")
		exec(t, pool, "INSERT INTO accounts VALUES ('a', 9, NULL, 'older than versions')")
		var list []*pipeline.Item
		for i, body := range []string{
			`{"t":"a","id":1,"v":5,"name":"five"}`, `{"t":"a","id":1,"v":4,"name":"four"}`, `{"t":"a","id":1,"v":7,"name":"seven"}`,
			`{"t":"b","id":1,"v":1,"name":"other"}`, `{"t":"a","id":9,"v":0,"name":"zero"}`,
		} {
			list = append(list, item(fmt.Sprint(w.name, i), body))
		}
		w.process(t.Context(), list)
		for i, want := range []string{postgres.Applied, postgres.Stale, postgres.Applied, postgres.Applied, postgres.Applied} {
			if it := list[i]; it.Err != nil || string(it.Result.Data) != want {
				t.Errorf("%s: message %d: %q, %v; want %q", w.name, i, it.Result.Data, it.Err, want)
			}
		}
		if got := one[string](t, pool, "SELECT string_agg(tenant || id || name, ' ' ORDER BY tenant, id) FROM accounts"); got != "a1seven a9zero b1other" {
			t.Errorf("%s: %s", w.name, got)
		}
	}
}

func accounts() *postgres.Options {
	return &postgres.Options{
		Table: "accounts", Key: []string{"tenant", "id"}, Version: "revision",
		Columns: []postgres.Column{{"tenant", ".t"}, {"id", ".id"}, {"revision", ".v"}, {"name", ".name"}},
	}
}

func TestConcurrentUpsertsLeaveTheNewest(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE accounts (tenant text, id int8, revision int8, name text, PRIMARY KEY (tenant, id))")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const versions = 200
	for _, w := range ways(t, address, pool, accounts()) {
		exec(t, pool, "TRUNCATE accounts")
		order := rand.New(rand.NewPCG(seed, 0)).Perm(versions)
		results := make([]string, versions)
		var all sync.WaitGroup
		for worker := range 8 {
			all.Go(func() {
				for i := worker; i < versions; i += 8 {
					version := order[i]
					it := item(fmt.Sprint(w.name, version), fmt.Sprintf(`{"t":"a","id":1,"v":%d,"name":"n"}`, version))
					for it.Err = errors.New("not sent yet"); it.Err != nil; {
						w.process(t.Context(), []*pipeline.Item{it})
						if c := class(it.Err); c != "delivered" && c != "retry" && c != "unavailable" {
							t.Errorf("%s: version %d: %v", w.name, version, it.Err)
							return
						}
					}
					results[version] = string(it.Result.Data)
				}
			})
		}
		all.Wait()
		if newest := one[int](t, pool, "SELECT revision FROM accounts"); newest != versions-1 {
			t.Errorf("%s: the row is at %d", w.name, newest)
		}
		for version, result := range results {
			if result != postgres.Applied && result != postgres.Stale || version == versions-1 && result != postgres.Applied {
				t.Errorf("%s: version %d is %q", w.name, version, result)
			}
		}
	}
}

func TestBatchesThatDeadlockAreRepeated(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE c (id text PRIMARY KEY, n int8 NOT NULL)")
	exec(t, pool, "INSERT INTO c SELECT 'r' || i, 0 FROM generate_series(0, 9) i")
	sink, err := postgres.Open(t.Context(), address, &postgres.Options{Statement: "UPDATE c SET n = n + 1 WHERE id = $1", Args: []string{".id"}})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close(context.Background())
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for range 10 {
				var list []*pipeline.Item
				for i := range 10 {
					list = append(list, item("k", fmt.Sprintf(`{"id":"r%d"}`, (i*(2*(w%2)-1)+10)%10))) // up or down
				}
				todo := list
				for len(todo) > 0 {
					sink.Deliver(t.Context(), todo)
					var again []*pipeline.Item
					for _, it := range todo {
						if it.Err != nil {
							if class(it.Err) != "retry" {
								t.Errorf("%v", it.Err)
								return
							}
							again = append(again, it)
						}
					}
					todo = again
				}
			}
		})
	}
	all.Wait()
	if n := one[int](t, pool, "SELECT sum(n) FROM c"); n != 400 {
		t.Errorf("%d effects, want 400", n)
	}
}

// TestTwoProcessesHaveEachEffectOnce races two sessions with pools of their own
// for the same messages, directly and through a pooler.
func TestTwoProcessesHaveEachEffectOnce(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	bouncer := servicestest.StartPgBouncer(t, server, nil)
	pool := open(t, server.URL())
	exec(t, pool, outTable)
	var sessions []*postgres.Session
	for range 2 {
		for _, g := range []*pgstore.Guard{guard(t, pool), connected(t, bouncer.URL())} {
			session, err := postgres.NewSession(g, &row)
			if err != nil {
				t.Fatal(err)
			}
			sessions = append(sessions, session)
		}
	}
	const n = 300
	var all sync.WaitGroup
	for _, session := range sessions {
		all.Go(func() {
			for from := 0; from < n; from += 20 {
				var todo []*pipeline.Item
				for i := from; i < from+20; i++ {
					todo = append(todo, item(fmt.Sprint("k", i), fmt.Sprint("m", i)))
				}
				for len(todo) > 0 && t.Context().Err() == nil {
					session.Process(t.Context(), todo)
					var again []*pipeline.Item
					for _, it := range todo {
						if it.Err != nil {
							again = append(again, it)
						}
						if isPrepared(it.Err) {
							t.Errorf("%s: %v", it.Call.Key, it.Err)
						}
					}
					todo = again
				}
			}
		})
	}
	all.Wait()
	if got := one[string](t, pool, "SELECT count(*) || ' ' || count(DISTINCT body) FROM out"); got != "300 300" {
		t.Errorf("rows and different rows: %s, want 300 300", got)
	}
	// The sink needs no mode: what it does fits a pooler.
	sink, err := postgres.Open(t.Context(), bouncer.URL(), &row)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close(context.Background())
	for i := range 50 {
		list := items(fmt.Sprint("sink ", i), "x", "y")
		sink.Deliver(t.Context(), list)
		wantClasses(t, list, "delivered", "delivered", "delivered")
	}
}

// connected opens a guard where the tables are, as a configuration does.
func connected(t testing.TB, address string) *pgstore.Guard {
	t.Helper()
	store, err := pgstore.Connect(t.Context(), address, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	g, err := pgstore.NewGuard(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// isPrepared reports whether an error is about the name of a prepared statement.
func isPrepared(err error) bool {
	var server *pgconn.PgError
	return errors.As(err, &server) && (server.Code == "26000" || server.Code == "42P05")
}

func TestMessagesUseNoAttemptsWhenAPoolerLosesAStatement(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	for _, code := range []string{"26000", "42P05"} {
		opts := &postgres.Options{Statement: "DO $$ BEGIN RAISE 'lost' USING ERRCODE = '" + code + "'; END $$"}
		for _, w := range ways(t, address, pool, opts) {
			list := items("a", "b")
			w.process(t.Context(), list)
			for _, it := range list {
				if !isPrepared(it.Err) || class(it.Err) != "unavailable" {
					t.Errorf("%s, %s: %s (%v)", w.name, code, class(it.Err), it.Err)
				}
			}
		}
	}
}

// TestErrorsAreClassifiedBySQLSTATE: only an error that may be the fault of a message
// counts as an attempt.
func TestErrorsAreClassifiedBySQLSTATE(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	for code, want := range map[string]string{
		"22003": "permanent", "23505": "permanent", "23514": "permanent",
		"23503": "retry", "P0001": "retry",
		"40001": "unavailable", "40P01": "unavailable", "55P03": "unavailable", "57014": "unavailable",
		"25006": "unavailable", "53100": "unavailable", "53300": "unavailable", "57P03": "unavailable", "42501": "unavailable",
	} {
		opts := &postgres.Options{Statement: "DO $$ BEGIN RAISE 'refused' USING ERRCODE = '" + code + "'; END $$"}
		for _, w := range ways(t, address, pool, opts) {
			list := items("{}")
			w.process(t.Context(), list)
			if got := class(list[0].Err); got != want {
				t.Errorf("%s, %s: %s (%v), want %s", w.name, code, got, list[0].Err, want)
			}
		}
	}
}

// TestLockedRowFailsItsMessageAndLockedTableFailsTheBatch locks one row, and then the table. A locked row fails
// its message alone, a locked table fails the batch after few waits. The error names the
// session.
func TestLockedRowFailsItsMessageAndLockedTableFailsTheBatch(t *testing.T) {
	t.Parallel()
	address := servers.Database(t) + "&application_name=writer&lock_timeout=2500"
	pool := open(t, address)
	const messages = 20 // which would wait for most of a minute, one after the other
	exec(t, pool, fmt.Sprintf(`CREATE TABLE amounts AS SELECT n::text AS id, 0 AS n FROM generate_series(1, %d) AS n; ALTER TABLE amounts ADD PRIMARY KEY (id)`, messages))
	statement := &postgres.Options{Statement: "UPDATE amounts SET n = n + 1 WHERE id = $1", Args: []string{".id"}}
	upsert := &postgres.Options{Table: "amounts", Key: []string{"id"}, Columns: []postgres.Column{{"id", ".id"}, {"n", ".n"}}} // of many rows
	other, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	pid := fmt.Sprint(other.Conn().PgConn().PID())
	var bodies []string
	for i := range messages {
		bodies = append(bodies, fmt.Sprintf(`{"id":"%d","n":1}`, i+1))
	}
	all := ways(t, address, pool, statement)
	for _, w := range ways(t, address, pool, upsert) {
		all = append(all, way{w.name + " of many rows", w.process})
	}
	for _, w := range all {
		exec(t, pool, "UPDATE amounts SET n = 0")
		for _, lock := range []string{"LOCK TABLE amounts", "SELECT FROM amounts WHERE id = '2' FOR UPDATE"} { // the first one also before the columns are known
			tx, err := other.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			list, began := items(bodies...), time.Now()
			for _, it := range list {
				it.Call.Key.ID += w.name + lock
			}
			w.process(t.Context(), list)
			took := time.Since(began)
			named := func() bool {
				held, ok := errors.AsType[*postgres.LockError](list[1].Err)
				return ok && strings.Contains(held.By, "session "+pid+" holds (writer")
			}
			for tries := 0; tries < 5 && !named(); tries++ { // a slow machine may not find it while the statement waits
				w.process(t.Context(), list[1:2])
			}
			if !named() {
				t.Errorf("%s, %s: the error does not name session %s: %v", w.name, lock, pid, list[1].Err)
			}
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			want := slices.Repeat([]string{"unavailable"}, messages)
			if lock != "LOCK TABLE amounts" {
				want = slices.Repeat([]string{"delivered"}, messages)
				want[1] = "unavailable"
			}
			wantClasses(t, list, want...)
			if took > messages*time.Second {
				t.Errorf("%s, %s: %v for one batch", w.name, lock, took)
			}
		}
		if got := one[string](t, pool, "SELECT string_agg(n::text, '' ORDER BY id::int) FROM amounts"); got != "10"+strings.Repeat("1", messages-2) {
			t.Errorf("%s: wrote %s", w.name, got)
		}
	}
}

// A key that is no text, such as a hash, is handed over as people write it.
func TestStatementGetsAKeyOfAnyTypeAsText(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, "CREATE TABLE k (key text, body jsonb)")
	content, err := key.Content([]byte(`{"a":1}`))
	if err != nil {
		t.Fatal(err)
	}
	ids := []string{
		"o-1", string(key.AppendNumber(nil, "7")), "\x00t", key.Action("charge", "t-1"), content,
		string(key.AppendBytes(nil, []byte("line"))), string(key.AppendString(nil, "7")),
	}
	want := []string{"o-1", "7", "true", `["charge","t-1"]`, hex.EncodeToString([]byte(content[2:])), hex.EncodeToString([]byte(ids[5][2:])), "7"}
	columns := &postgres.Options{Table: "k", Columns: []postgres.Column{{Name: "key", From: "key"}, {Name: "body", From: "body"}}}
	statement := &postgres.Options{Statement: "INSERT INTO k (key, body) VALUES ($1, $2)", Args: []string{"key", "body"}}
	for _, opts := range []*postgres.Options{columns, statement} {
		for _, w := range ways(t, address, pool, opts) {
			exec(t, pool, "DELETE FROM k")
			var list []*pipeline.Item
			for i, id := range ids {
				list = append(list, item(id, fmt.Sprint(i)))
				list[i].Call.Key.Scope = w.name + fmt.Sprint(opts == statement)
			}
			w.process(t.Context(), list)
			for i, it := range list {
				if it.Err != nil {
					t.Errorf("%s of %q: %v", w.name, ids[i], it.Err)
				}
			}
			if got := one[[]string](t, pool, "SELECT array_agg(key ORDER BY body::text::int) FROM k"); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", w.name, got, want)
			}
		}
	}
}
