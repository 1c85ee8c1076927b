package pgstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// originOf returns the origin that the record of a key shows.
func originOf(t *testing.T, s *Store, key semel.Key) string {
	t.Helper()
	var records [1]semel.Record
	if err := s.Look(t.Context(), []semel.Key{key}, records[:]); err != nil {
		t.Fatal(err)
	}
	if records[0].State != semel.Done && records[0].State != semel.Claimed {
		t.Fatalf("%s is %s", key, records[0].State)
	}
	return records[0].Origin
}

func TestMigrationAddsOriginsLater(t *testing.T) {
	t.Parallel()
	without := opened(t, nil)
	claim := func(b *bundle, n int, want semel.Decision) {
		t.Helper()
		req := request(keyOf(n))
		req.Origin = "orders 2/17"
		answers := make([]semel.ClaimAnswer, 1)
		if err := b.Claim(t.Context(), []semel.ClaimRequest{req}, answers); err != nil || answers[0].Decision != want {
			t.Fatalf("claim of key %d is answered %+v, %v, want %s", n, answers[0], err, want)
		}
	}
	claim(without, 1, semel.Fresh)
	if got := originOf(t, without.Store, keyOf(1)); got != "" || without.Traits().Origins {
		t.Errorf("a store without the column keeps origins: %t, %q", without.Traits().Origins, got)
	}
	if _, err := New(t.Context(), without.pool, &Options{KeepOrigins: true}); !errors.Is(err, ErrSchema) {
		t.Errorf("open with origins without their column: %v", err)
	}
	for want := range 2 {
		if applied, err := Migrate(t.Context(), without.pool, &MigrateOptions{KeepOrigins: true}); err != nil || len(applied) != 1-want {
			t.Fatalf("add the column: %v, %v", applied, err)
		}
	}
	s, err := New(t.Context(), without.pool, nil)
	if err != nil {
		t.Fatal(err)
	}
	with := &bundle{s, t}
	claim(with, 1, semel.InFlight)
	claim(with, 2, semel.Fresh)
	claim(without, 2, semel.InFlight) // processes that run without the column continue
	claim(without, 3, semel.Fresh)
	if first, second, third := originOf(t, s, keyOf(1)), originOf(t, s, keyOf(2)), originOf(t, s, keyOf(3)); first != "" || second != "orders 2/17" || third != "" || !s.Traits().Origins {
		t.Errorf("the origins are %q, %q and %q", first, second, third)
	}
	if was, err := s.Remove(t.Context(), keyOf(2)); err != nil || !was || with.number("SELECT count(origin) FROM semel_keys") != 0 {
		t.Errorf("the origin of a key that was removed is still there: %t, %v", was, err)
	}
}

func TestGuardsKeepOrigins(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{KeepOrigins: true})
	d := deskAt(t, address, nil, nil)
	check := func(when string) {
		t.Helper()
		for name, do := range optimisticWays {
			call := semel.Call{Key: key(name + when), Window: time.Hour, Origin: strings.Repeat("o", 2*semel.MaxOriginBytes) + name}
			if out, err := do(t.Context(), d, call); err != nil || out.Decision != semel.Fresh {
				t.Fatalf("%s: %s, %v", name, out.Decision, err)
			}
			if got := originOf(t, d.store, call.Key); len(got) != semel.MaxOriginBytes || !strings.HasSuffix(got, "oo"+name) {
				t.Errorf("%s, %s: the origin is %q", name, when, got)
			}
		}
	}
	check("before the guard is optimistic")
	d.optimism.streak.Store(optimisticAfter)
	check("while the guard is optimistic")
	for name, begin := range libraries(d) {
		tx := begin(t, "")
		call := semel.Call{Key: key("in a transaction of " + name), Origin: "file, line 7"}
		if out, err := tx.tx.Claim(t.Context(), call); err != nil || out.Decision != semel.Fresh {
			t.Fatalf("%s: %s, %v", name, out.Decision, err)
		}
		if err := tx.commit(); err != nil {
			t.Fatal(err)
		}
		if got := originOf(t, d.store, call.Key); got != call.Origin {
			t.Errorf("%s: the origin is %q", name, got)
		}
	}
}

func TestOriginsAreKeptByTheOptionsOfAStore(t *testing.T) {
	t.Parallel()
	s, err := Connect(t.Context(), shared.Database(t), &Options{Migrate: true, KeepOrigins: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	guard, err := NewGuard(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	call := semel.Call{Key: keyOf(1), Origin: "orders 2/17"}
	if _, err := guard.DoCall(t.Context(), call, func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil {
		t.Fatal(err)
	}
	if got := originOf(t, s, keyOf(1)); got != "orders 2/17" {
		t.Errorf("the origin is %q", got)
	}
}
