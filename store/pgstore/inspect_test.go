package pgstore

import (
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestAuditLinesAreKeptAsWrittenInTheirOrder(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	p := pool(t, address)
	migrated(t, address, nil)
	s, err := New(t.Context(), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{`{"b":1,  "a":"\u0000"}`, `{"verb":"rm"}`}
	for _, line := range want {
		if err := s.Audit(t.Context(), []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	var got []string
	if err := p.QueryRow(t.Context(), "SELECT array_agg(line::text ORDER BY number) FROM semel_audit WHERE at <= now()").Scan(&got); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || got[0] != want[0] || got[1] != want[1] {
		t.Errorf("the log has %q", got)
	}
	for most, want := range map[int][]string{1: want[1:], 5: want} {
		lines, err := s.AuditTail(t.Context(), most)
		if err != nil || len(lines) != len(want) || string(lines[0]) != want[0] {
			t.Errorf("the last %d lines are %q, %v", most, lines, err)
		}
	}
	if _, err := p.Exec(t.Context(), "DROP TABLE semel_audit"); err != nil {
		t.Fatal(err)
	}
	if err := s.Audit(t.Context(), []byte("{}")); !errors.Is(err, ErrSchema) {
		t.Errorf("without a table: %v", err)
	}
}

func TestKeysOfAVersionWithoutScopeRulesAreFound(t *testing.T) {
	t.Parallel()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Partitions: 4})
	s, err := New(t.Context(), pool(t, address), nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string, want bool) {
		t.Helper()
		if got, err := s.KeysWithoutRule(t.Context()); got != want || err != nil {
			t.Errorf("%s: %t, %v", when, got, err)
		}
	}
	check("an empty store", false)
	claimed(t, s, []semel.ClaimRequest{{Key: semel.Key{Scope: "s", ID: "x"}, Owner: semel.Owner{Name: "w", Nonce: 1}, Lease: time.Minute, Window: time.Hour}}, semel.Fresh)
	check("a key", true)
	if _, err := s.BindScope(t.Context(), "another", ".id"); err != nil {
		t.Fatal(err)
	}
	check("a scope is bound", false)
}
