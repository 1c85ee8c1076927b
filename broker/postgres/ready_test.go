package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestSessionsAreReadyIfTheirStoreIs kills the server of the keys while nothing
// is written.
func TestSessionsAreReadyIfTheirStoreIs(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, nil)
	keys := open(t, server.URL())
	exec(t, keys, "CREATE TABLE out (body text)")
	g := guard(t, keys)
	same, err := postgres.NewSession(g, &row)
	if err != nil {
		t.Fatal(err)
	}
	sessions := map[string]doctor.Readier{"same transaction": same}
	for name, opts := range map[string]*pipeline.TwoPhaseOptions{"two phases": nil, "passing": {Pass: true}} {
		address := servers.Database(t)
		exec(t, open(t, address), "CREATE TABLE out (body text)")
		sink, err := postgres.Open(t.Context(), address, &row)
		if err != nil {
			t.Fatal(err)
		}
		session, err := pipeline.NewTwoPhase(g.Store(), sink, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = session.Close(context.Background()) })
		sessions[name] = session
	}
	for name, session := range sessions {
		if err := session.Ready(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	for name, session := range sessions {
		err := session.Ready(t.Context())
		if name == "passing" && err != nil || name != "passing" && (!errors.Is(err, semel.ErrStoreUnavailable) || !strings.HasPrefix(err.Error(), "store: ")) {
			t.Errorf("%s, without the server of the keys: %v", name, err)
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for name, session := range sessions {
		for err := session.Ready(t.Context()); err != nil; err = session.Ready(t.Context()) {
			select {
			case <-tick.C:
			case <-time.After(time.Minute): // only what hangs needs it
				t.Fatalf("%s, with the server back: %v", name, err)
			}
		}
	}
}

// TestATargetThatTheServerRefusesIsNotReady changes the table while nothing is written.
func TestATargetThatTheServerRefusesIsNotReady(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	g := guard(t, pool)
	upsert := postgres.Options{Table: "amounts", Columns: []postgres.Column{{Name: "id", From: ".id"}, {Name: "amount", From: ".amount"}}, Key: []string{"id"}}
	statement := postgres.Options{Statement: "INSERT INTO amounts (id, amount) VALUES ($1, 7)", Args: []string{".id"}}
	type target struct {
		doctor.Readier
		statement bool
	}
	targets := map[string]target{}
	for name, opts := range map[string]*postgres.Options{"row": &upsert, "statement": &statement} {
		session, err := postgres.NewSession(g, opts)
		if err != nil {
			t.Fatal(err)
		}
		sink, err := postgres.Open(t.Context(), address, opts)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sink.Close(context.Background()) })
		targets[name+" of a session"] = target{session, opts == &statement}
		targets[name+" of a sink"] = target{sink, opts == &statement}
	}
	for _, c := range []struct {
		name, sql string
		row, plan string // of the errors of rows and statements; "" if they are ready
	}{
		{"no table", "SELECT", `relation "amounts" does not exist`, `relation "amounts" does not exist`},
		{"no column", "CREATE TABLE amounts (id text)", `column "amount" of relation "amounts" does not exist`, `column "amount" of relation "amounts" does not exist`},
		{"no unique index", "ALTER TABLE amounts ADD amount int8", "no unique or exclusion constraint", ""},
		{"all of it", "ALTER TABLE amounts ADD PRIMARY KEY (id)", "", ""},
	} {
		exec(t, pool, c.sql)
		for name, of := range targets {
			want := c.row
			if of.statement {
				want = c.plan
			}
			err := of.Ready(t.Context())
			if _, away := errors.AsType[*pipeline.UnavailableError](err); (err == nil) != (want == "") || err != nil && (!away || !strings.Contains(err.Error(), want)) {
				t.Errorf("%s, %s: %v", c.name, name, err)
			}
		}
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), "LOCK TABLE amounts IN ACCESS EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	for name, of := range targets {
		if err := of.Ready(t.Context()); err != nil {
			t.Errorf("while another session has locked the table, %s: %v", name, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Error(err)
	}
}
