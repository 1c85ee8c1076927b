package pgstore

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
)

func TestMigrationsAreAppliedOnceByManyRunners(t *testing.T) {
	t.Parallel()
	p := pool(t, shared.Database(t))
	opts := &MigrateOptions{Names: Names{Schema: "keys", Prefix: "x_"}, KeepIDs: true}
	var applied atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			done, err := Migrate(context.Background(), p, opts)
			if err != nil {
				t.Errorf("migrate: %v", err)
			}
			applied.Add(int32(len(done)))
		})
	}
	group.Wait()
	status, err := Status(t.Context(), p, opts)
	if err != nil || int(applied.Load()) != len(status)+1 {
		t.Fatalf("%d steps were applied, want %d and the columns, %v", applied.Load(), len(status), err)
	}
	for i, m := range status {
		if m.Version != i+1 || m.Name == "" || time.Since(m.Applied) > time.Hour || time.Since(m.Applied) < -time.Hour {
			t.Errorf("step %d is %+v", i+1, m)
		}
	}
	if _, err := New(t.Context(), p, &Options{Names: opts.Names, KeepIDs: true}); err != nil {
		t.Errorf("open what was migrated: %v", err)
	}
}

// TestConnectMakesAFreshDatabaseReady has several processes connect to a database
// without tables.
func TestConnectMakesAFreshDatabaseReady(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	if _, err := Connect(t.Context(), address, nil); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "Options.Migrate") {
		t.Errorf("connect without tables: %v", err)
	}
	connect := func(address string, opts *Options) *bundle {
		t.Helper()
		s, err := Connect(t.Context(), address, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return &bundle{s, t}
	}
	names := Names{Schema: "fresh", Prefix: "x_"}
	var group sync.WaitGroup
	for n := range 4 {
		group.Go(func() {
			s, err := Connect(t.Context(), address, &Options{Names: names, Migrate: true})
			if err != nil {
				t.Error(err)
				return
			}
			(&bundle{s, t}).want(semel.Fresh, n)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	// Existing tables stay, and get the additional parts that the options need.
	b := connect(address, &Options{Names: names, Migrate: true, KeepIDs: true})
	b.want(semel.InFlight, 0, 1, 2, 3)
	b.want(semel.Fresh, 4)
	scope := "test"
	for r, err := range b.List(t.Context(), semel.ListOptions{Scope: &scope}) {
		if err != nil || r.Key != keyOf(4) {
			t.Errorf("listed %v, %v", r.Key, err)
		}
	}
	// If nothing is missing, nothing is created, so that no privilege is needed.
	user := newRole(t, b)
	b.exec("GRANT USAGE ON SCHEMA fresh TO " + user)
	b.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA fresh TO " + user)
	b.exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA fresh TO " + user)
	connect(as(address, user), &Options{Names: names, Migrate: true, KeepIDs: true}).want(semel.InFlight, 4)
	// Tables of one form are not converted to another.
	if _, err := Connect(t.Context(), address, &Options{Names: names, Migrate: true, Cleanup: CleanupMessageTime}); !errors.Is(err, ErrSchema) {
		t.Errorf("connect with another form: %v", err)
	}
	timed := connect(address, &Options{Names: Names{Prefix: "timed_"}, Migrate: true, Cleanup: CleanupMessageTime})
	wantDecision(t, timed.Store, semel.Fresh, uuid7(time.Now(), 1))
}

// TestDatabaseOfAnOlderVersionGivesTheSameAnswers uses a database from before rows recorded
// which owner made a key done in one step.
func TestDatabaseOfAnOlderVersionGivesTheSameAnswers(t *testing.T) {
	t.Parallel()
	b := &bundle{&Store{pool: pool(t, shared.Database(t))}, t}
	o, err := (*MigrateOptions)(nil).checked()
	if err != nil {
		t.Fatal(err)
	}
	steps, err := o.layout().Steps()
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range steps[:3] {
		if _, err := o.apply(t.Context(), b.pool, step); err != nil {
			t.Fatal(err)
		}
	}
	old, later := request(keyOf(1)), request(keyOf(2))
	old.Done, later.Done = true, true
	decisions := func(want ...semel.Decision) {
		t.Helper()
		s, err := New(t.Context(), b.pool, nil)
		if err != nil {
			t.Fatal(err)
		}
		answers := make([]semel.ClaimAnswer, 2)
		if err := s.Claim(t.Context(), []semel.ClaimRequest{old, later}, answers); err != nil || answers[0].Decision != want[0] || answers[1].Decision != want[1] {
			t.Errorf("answered %+v, %v, want %s", answers, err, want)
		}
	}
	decisions(semel.Fresh, semel.Fresh)
	s, err := New(t.Context(), b.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	digest := s.hasher.Key(old.Key)
	b.exec("UPDATE semel_keys SET token = NULL WHERE key = $1", [16]byte(digest)) // as it was written then
	decisions(semel.Duplicate, semel.Fresh)
	if applied, err := Migrate(t.Context(), b.pool, nil); err != nil || len(applied) != len(steps)-3 {
		t.Errorf("the migration applies %v, %v", applied, err)
	}
	decisions(semel.Duplicate, semel.Fresh)
	if n := b.number("SELECT count(*) FROM pg_description WHERE description LIKE '%who made the key done%' AND objoid = 'semel_keys'::regclass"); n != 1 {
		t.Errorf("%d comments say so", n)
	}
}

func TestStatusOfAnEmptyDatabaseShowsAllStepsAsNotApplied(t *testing.T) {
	t.Parallel()
	p := pool(t, shared.Database(t))
	status, err := Status(t.Context(), p, nil)
	if err != nil || len(status) < schemaVersion || !status[0].Applied.IsZero() {
		t.Errorf("status is %+v, %v", status, err)
	}
	_, err = New(t.Context(), p, nil)
	if !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "semel migrate up") || semel.Classify(err) != semel.ClassPermanent {
		t.Errorf("open without tables: %v", err)
	}
}

// TestMigrationThatIsCutOffLeavesNothing ends the context in the middle of the
// step, while it waits for a lock.
func TestMigrationThatIsCutOffLeavesNothing(t *testing.T) {
	t.Parallel()
	b := &bundle{&Store{pool: pool(t, shared.Database(t))}, t}
	tx := b.begin()
	if _, err := tx.Exec(t.Context(), "CREATE SEQUENCE semel_tokens"); err != nil { // the step will wait for this name
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, err := Migrate(ctx, b.pool, nil)
		failed <- err
	}()
	eventually(t, "the migration waits", func() bool { return waiting(t, b.pool) == 1 })
	cancel()
	if err := <-failed; err == nil {
		t.Error("a migration that was cut off reports success")
	}
	rollback(t.Context(), tx)
	eventually(t, "the cut off transaction ended", func() bool {
		return b.number("SELECT count(*) FROM pg_class WHERE relname LIKE 'semel%'") == 0
	})
	if applied, err := Migrate(t.Context(), b.pool, nil); err != nil || len(applied) < schemaVersion {
		t.Errorf("the next run applies %v, %v", applied, err)
	}
}

func TestPrintedSQLMakesTheSameTables(t *testing.T) {
	t.Parallel()
	describe := func(printed bool) (columns []string) {
		p := pool(t, shared.Database(t))
		opts := &MigrateOptions{Names: Names{Schema: "s", Prefix: "k_"}, Partitions: 3, KeepIDs: true, FillFactor: 70}
		if printed {
			script, err := SQL(opts)
			if err != nil {
				t.Fatal(err)
			}
			conn, err := p.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			if _, err := conn.Conn().PgConn().Exec(t.Context(), script).ReadAll(); err != nil {
				t.Fatalf("%v in\n%s", err, script)
			}
		} else if _, err := Migrate(t.Context(), p, opts); err != nil {
			t.Fatal(err)
		}
		if _, err := New(t.Context(), p, &Options{Names: opts.Names, KeepIDs: true}); err != nil {
			t.Errorf("open (printed: %t): %v", printed, err)
		}
		if again, err := Migrate(t.Context(), p, opts); err != nil || len(again) > 0 {
			t.Errorf("migrate again (printed: %t) applies %v, %v", printed, again, err)
		}
		rows, err := p.Query(t.Context(), `SELECT concat_ws(' ', c.relname, c.relkind, c.reloptions::text, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull)
			FROM pg_class AS c LEFT JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
			WHERE c.relnamespace = 's'::regnamespace ORDER BY c.relname, a.attnum`)
		if err == nil {
			columns, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		if err != nil {
			t.Fatal(err)
		}
		return columns
	}
	run, printed := strings.Join(describe(false), "\n"), strings.Join(describe(true), "\n")
	if run != printed || !strings.Contains(run, "k_keys_2") || !strings.Contains(run, "fillfactor=70") {
		t.Errorf("run:\n%s\nprinted:\n%s", run, printed)
	}
}

func TestMigrationAddsReadableKeysLater(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	b.want(semel.Fresh, 1)
	if _, err := New(t.Context(), b.pool, &Options{KeepIDs: true}); !errors.Is(err, ErrSchema) {
		t.Errorf("open with readable keys without their columns: %v", err)
	}
	if applied, err := Migrate(t.Context(), b.pool, &MigrateOptions{KeepIDs: true}); err != nil || len(applied) != 1 || applied[0].Name != "columns scope and id" || applied[0].Applied.IsZero() {
		t.Fatalf("add the columns: %v, %v", applied, err)
	}
	s, err := New(t.Context(), b.pool, &Options{KeepIDs: true})
	if err != nil {
		t.Fatal(err)
	}
	keeping := &bundle{s, t}
	keeping.want(semel.InFlight, 1)
	keeping.want(semel.Fresh, 2)
	b.want(semel.InFlight, 2)
	ids := map[string]bool{}
	for r, err := range s.List(t.Context(), semel.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		ids[r.Key.ID] = true
	}
	if len(ids) != 2 || !ids[""] || !ids["key-2"] {
		t.Errorf("list yields %v, want one key that is readable and one that is not", ids)
	}
}

// TestRoleOfTheStoreNeedsNoRightToCreate runs all methods as a role with the
// privileges that the package documents. It runs the migration as a role that
// owns only the schema.
func TestRoleOfTheStoreNeedsNoRightToCreate(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	b := &bundle{&Store{pool: pool(t, address)}, t}
	owner, user := newRole(t, b), newRole(t, b)
	b.exec("CREATE SCHEMA keys AUTHORIZATION " + owner)
	names := Names{Schema: "keys"}
	if _, err := Migrate(t.Context(), pool(t, as(address, owner)), &MigrateOptions{Names: names, Partitions: 2}); err != nil {
		t.Fatalf("migrate as the owner of the schema: %v", err)
	}
	used := pool(t, as(address, user))
	if _, err := Migrate(t.Context(), used, &MigrateOptions{Names: Names{Schema: "others"}}); semel.Classify(err) != semel.ClassPermanent {
		t.Errorf("migrate without the right: %v", err)
	}
	if _, err := New(t.Context(), used, &Options{Names: names}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("open without rights: %v", err)
	}
	b.exec("GRANT USAGE ON SCHEMA keys TO " + user)
	b.exec("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA keys TO " + user)
	b.exec("GRANT USAGE ON ALL SEQUENCES IN SCHEMA keys TO " + user)
	s, err := New(t.Context(), used, &Options{Names: names})
	if err != nil {
		t.Fatalf("open with the rights: %v", err)
	}
	u := &bundle{s, t}
	a := u.want(semel.Fresh, 1, 2, 3)
	u.complete(1, a[0], time.Hour)
	u.release(2, a[1], false)
	u.release(3, a[2], true)
	u.want(semel.Fresh, 2)
	if err := s.Resolve(t.Context(), semel.ResolveRequest{Key: keyOf(3), As: semel.Absent}); err != nil {
		t.Errorf("resolve: %v", err)
	}
	if _, err := s.Remove(t.Context(), keyOf(1)); err != nil {
		t.Errorf("remove: %v", err)
	}
	if _, err := s.Purge(t.Context()); err != nil {
		t.Errorf("purge: %v", err)
	}
	if _, err := s.Count(t.Context()); err != nil {
		t.Errorf("count: %v", err)
	}
	if _, _, err := s.pass(t.Context(), &MaintainOptions{Every: time.Minute}); err != nil {
		t.Errorf("clean up: %v", err)
	}
	if f := finding(t, s, "privileges"); f.Severity != doctor.Fine {
		t.Errorf("the examination says %+v", f)
	}
	if f := finding(t, s, "audit log"); f.Severity != doctor.Fine {
		t.Errorf("the examination says %+v", f)
	}
	b.exec("REVOKE INSERT ON keys.semel_audit FROM " + user)
	if f := finding(t, s, "audit log"); f.Severity != doctor.Notice {
		t.Errorf("without the right to write the audit log the examination says %+v", f)
	}
	b.exec("REVOKE DELETE ON keys.semel_keys FROM " + user)
	if f := finding(t, s, "privileges"); f.Severity != doctor.Broken || !strings.Contains(f.Found, "DELETE") {
		t.Errorf("without one right the examination says %+v", f)
	}
}

// TestMissingTableIsNamed renames each table, sequence and function that the steps have
// created. Status and Migrate name it, and so does what needs it.
func TestMissingTableIsNamed(t *testing.T) {
	t.Parallel()
	p := pool(t, shared.Database(t))
	names := Names{Schema: "app", Prefix: "x_"}
	opts := &MigrateOptions{Names: names}
	if _, err := Migrate(t.Context(), p, opts); err != nil {
		t.Fatal(err)
	}
	exec := func(sql string) {
		t.Helper()
		if _, err := p.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	rows, err := p.Query(t.Context(), `SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.relname FROM pg_class AS c
		WHERE c.relnamespace = 'app'::regnamespace AND (c.relkind IN ('r', 'p') OR c.relkind = 'S' AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'i'))
		UNION ALL SELECT 'FUNCTION', proname FROM pg_proc WHERE pronamespace = 'app'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := pgx.CollectRows(rows, pgx.RowToStructByPos[struct{ Kind, Name string }])
	if err != nil || len(objects) < 14 {
		t.Fatal(objects, err)
	}
	for _, o := range objects {
		exec("ALTER " + o.Kind + " app." + o.Name + " RENAME TO away")
		quoted := `"app"."` + o.Name + `"`
		var missing *MissingError
		if _, err := Migrate(t.Context(), p, opts); !errors.As(err, &missing) || missing.Name != quoted || !errors.Is(err, ErrSchema) {
			t.Errorf("migrate without %s: %v", o.Name, err)
		}
		if o.Name != "x_migrations" {
			status, err := Status(t.Context(), p, opts)
			var all []string
			for _, m := range status {
				all = append(all, m.Missing...)
			}
			if err != nil || len(all) != 1 || all[0] != quoted {
				t.Errorf("the status without %s: %v, %v", o.Name, all, err)
			}
			if err := names.Check(t.Context(), p, strings.TrimPrefix(o.Name, "x_")); !errors.As(err, &missing) || missing.Name != quoted {
				t.Errorf("a check of %s: %v", o.Name, err)
			}
		}
		if _, err := New(t.Context(), p, &Options{Names: names}); slices.Contains([]string{"x_keys", "x_meta", "x_tokens", "x_migrations"}, o.Name) == (err == nil) {
			t.Errorf("open without %s: %v", o.Name, err)
		}
		exec("ALTER " + o.Kind + " app.away RENAME TO " + o.Name)
	}
	if applied, err := Migrate(t.Context(), p, opts); err != nil || len(applied) > 0 {
		t.Error(applied, err)
	}
	if err := (Names{Prefix: "y_"}).Check(t.Context(), p, "parked"); !errors.Is(err, ErrSchema) || !strings.Contains(err.Error(), "run semel migrate up") {
		t.Error(err)
	}
}
