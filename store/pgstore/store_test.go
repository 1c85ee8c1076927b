package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/test/services/servicestest"
)

type readier interface {
	Ready(ctx context.Context) error
}

func TestReadyReportsAnUnreachableDatabase(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	b := openedAt(t, server.URL(), nil)
	ready, ok := semel.As[readier](semel.Join(b.Store, 0))
	if !ok {
		t.Fatal("a joined store does not say whether it is ready")
	}
	if err := ready.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	// The first call may find that an open connection was closed.
	eventually(t, "the error names the server", func() bool {
		err := ready.Ready(t.Context())
		if !errors.Is(err, semel.ErrStoreUnavailable) {
			t.Fatalf("without the server: %v", err)
		}
		return strings.Contains(err.Error(), server.Addr())
	})
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the store is ready again", func() bool { return ready.Ready(t.Context()) == nil })
}

func TestReadyReportsAReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	b := openedAt(t, address, nil)
	s := openSame(t, b)
	s.pool = pool(t, address+"&default_transaction_read_only=on")
	if err := s.Ready(t.Context()); !errors.Is(err, semel.ErrStoreUnavailable) || !errors.Is(err, errReadOnly) {
		t.Errorf("where nothing can be written: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.Ready(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: %v", err)
	}
	if err := b.Store.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Ready(t.Context()); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("after it was closed: %v", err)
	}
}

// TestTheLossOfAllRowsIsNoticed empties and rewrites tables of each form.
func TestTheLossOfAllRowsIsNoticed(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*MigrateOptions{"plain": nil, "partitions": {Partitions: 4}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := shared.Database(t)
			migrated(t, address, opts)
			b := openAt(t, address, nil)
			look := func(when string, want ...string) {
				t.Helper()
				got, err := b.Emptied(t.Context())
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("%s: %q, %v, want %q", when, got, err, want)
				}
			}
			found := func() (f doctor.Finding) {
				t.Helper()
				all, err := b.Examine(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				i := slices.IndexFunc(all, func(f doctor.Finding) bool { return f.Subject == "emptied tables" })
				return all[i]
			}
			look("new")
			b.exec("TRUNCATE semel_keys")
			look("it had no rows")
			b.want(semel.Fresh, 1)
			look("a row")
			b.exec("VACUUM FULL semel_keys")
			look("rewritten")
			if f := found(); f.Severity != doctor.Fine {
				t.Errorf("%+v", f)
			}
			b.exec("TRUNCATE semel_keys")
			b.want(semel.Fresh, 1) // a new row before the next look
			look("emptied", `"public"."semel_keys"`)
			look("once")
			if f := found(); f.Severity != doctor.Broken || !strings.HasPrefix(f.Found, "keys before ") {
				t.Errorf("%+v", f)
			}
			b.exec("DELETE FROM semel_meta WHERE name LIKE 'emptied %'; INSERT INTO semel_outbox (payload) VALUES ('x')")
			look("an outbox with a row")
			b.exec("TRUNCATE semel_outbox")
			look("emptied outbox", `"public"."semel_outbox"`)
		})
	}
}

// TestEmptiedSettingsAreRestored empties, drops and replaces the table of settings under a
// store.
func TestEmptiedSettingsAreRestored(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	b.want(semel.Fresh, 1)
	another, err := New(t.Context(), b.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := another.BindScope(t.Context(), "found", ".id"); err != nil {
		t.Fatal(err)
	}
	for _, scope := range []string{"found", "bound"} {
		if err := semel.BindScope(t.Context(), b.Store, scope, semel.ScopeOwner{Rule: ".id"}); err != nil {
			t.Fatal(err)
		}
	}
	restarted := func() error {
		s, err := New(t.Context(), b.pool, nil)
		if err != nil {
			return err
		}
		(&bundle{s, t}).want(semel.InFlight, 1) // it finds the claim
		for _, scope := range []string{"found", "bound"} {
			var other *semel.ScopeError
			if err := semel.BindScope(t.Context(), s, scope, semel.ScopeOwner{Rule: ".other"}); !errors.As(err, &other) {
				t.Errorf("the scope %q is bound to another rule, error %v", scope, err)
			}
		}
		return nil
	}
	b.exec("TRUNCATE semel_meta")
	if err := restarted(); !errors.Is(err, semel.ErrCorrupt) || !strings.Contains(err.Error(), "was emptied") {
		t.Errorf("a start with an empty table: %v", err)
	}
	if err := b.Ready(t.Context()); err != nil {
		t.Errorf("ready: %v", err)
	}
	if err := restarted(); err != nil {
		t.Error(err)
	}
	if _, err := b.Examine(t.Context()); err != nil {
		t.Error(err)
	}
	b.exec("UPDATE semel_meta SET value = decode(repeat('ab', 16), 'hex') WHERE name = 'secret'")
	if err := b.Ready(t.Context()); !errors.Is(err, semel.ErrCorrupt) || !strings.Contains(err.Error(), "was replaced") {
		t.Errorf("ready with another secret: %v", err)
	}
	b.exec("DROP TABLE semel_meta")
	if err := b.Ready(t.Context()); !errors.Is(err, ErrSchema) {
		t.Errorf("ready without the table: %v", err)
	}
	var missing *MissingError
	if err := restarted(); !errors.As(err, &missing) {
		t.Errorf("a start without the table: %v", err)
	}
}

// TestPlansGrowWithTheTable looks at the plans of prepared statements that were first used
// when the table was empty.
func TestPlansGrowWithTheTable(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{})
	one := pool(t, address+"&pool_max_conns=1") // whose plans the test can see
	if _, err := one.Exec(t.Context(), "ALTER TABLE semel_keys SET (autovacuum_enabled = false)"); err != nil {
		t.Fatal(err)
	}
	s, err := New(t.Context(), one, &Options{Prepare: true})
	if err != nil {
		t.Fatal(err)
	}
	// The server decides on a plan to keep at the sixth use.
	const keys, power = 64, firstPlans + 3
	for round := range 1<<power/(2*keys) + 8 {
		reqs, answers := make([]semel.ClaimRequest, keys), make([]semel.ClaimAnswer, keys)
		for i := range reqs {
			reqs[i] = request(key(fmt.Sprint(round, " ", i)))
		}
		if err := s.Claim(t.Context(), reqs, answers); err != nil {
			t.Fatal(err)
		}
		done, errs := make([]semel.CompleteRequest, keys), make([]error, keys)
		for i := range done {
			done[i] = semel.CompleteRequest{Key: reqs[i].Key, Token: answers[i].Claim.Token, Window: time.Hour}
		}
		if err := s.Complete(t.Context(), done, errs); err != nil || errs[0] != nil {
			t.Fatal(err, errs[0])
		}
		if err := s.Claim(t.Context(), reqs, answers); err != nil || answers[0].Decision != semel.Duplicate {
			t.Fatal(answers[0].Decision, err)
		}
	}
	rows, err := one.Query(t.Context(), "SELECT name, statement, cardinality(parameter_types) FROM pg_prepared_statements WHERE statement LIKE '%t.key = r.key%/* plan ' || $1 || ' */'", pgx.QueryExecModeExec, fmt.Sprint(power+1))
	if err != nil {
		t.Fatal(err)
	}
	var name, statement string
	var params int
	explain := map[string]string{}
	if _, err := pgx.ForEachRow(rows, []any{&name, &statement, &params}, func() error {
		explain[fmt.Sprintf("EXPLAIN EXECUTE %s (%s)", name, strings.TrimSuffix(strings.Repeat("NULL, ", params), ", "))] = statement
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(explain) < 2 {
		t.Fatalf("%d statements, want those that read and complete", len(explain))
	}
	for sql, statement := range explain {
		rows, err := one.Query(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			t.Fatal(err)
		}
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		if plan := strings.Join(lines, "\n"); strings.Contains(plan, "Seq Scan on semel_keys") {
			t.Errorf("the plan reads the whole table:\n%s\n%s", statement, plan)
		}
	}
}
