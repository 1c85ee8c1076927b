package redisstore

import (
	"slices"
	"testing"

	"github.com/semel-dev/semel"
)

func TestAuditLinesAreKeptInTheirOrderAndAreNoKeys(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	want := []string{"{\"verb\":\"rm\"}", "\xff\x00"}
	for _, line := range want {
		if err := s.Audit(t.Context(), []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	list := s.client.B().Lrange().Key(s.opts.Prefix + auditName).Start(0).Stop(-1).Build()
	if got, err := s.client.Do(t.Context(), list).AsStrSlice(); err != nil || !slices.Equal(got, want) {
		t.Errorf("the log has %q, %v", got, err)
	}
	if got, err := s.AuditTail(t.Context(), 1); err != nil || len(got) != 1 || string(got[0]) != want[1] {
		t.Errorf("the log ends with %q, %v", got, err)
	}
	for record, err := range s.List(t.Context(), semel.ListOptions{}) {
		t.Errorf("listed as a key: %+v, %v", record, err)
	}
}
