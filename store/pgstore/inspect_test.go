package pgstore

import (
	"errors"
	"testing"
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
	if _, err := p.Exec(t.Context(), "DROP TABLE semel_audit"); err != nil {
		t.Fatal(err)
	}
	if err := s.Audit(t.Context(), []byte("{}")); !errors.Is(err, ErrSchema) {
		t.Errorf("without a table: %v", err)
	}
}
