package outbox

import (
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestReplicationSlotThatIsBeingCreatedDoesNotExistYet has two relays that begin together. A snapshot
// that the second one takes before the slot is complete would miss the transactions that
// commit in between, because the slot does not return them either.
func TestReplicationSlotThatIsBeingCreatedDoesNotExistYet(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"wal_level": "logical"}})
	pool := Migrated(t, server.URL())
	s, err := newSlot(pool, pgstore.Names{}, "")
	if err != nil {
		t.Fatal(err)
	}
	st, err := s.setUp(t.Context())
	if err != nil || st.exists {
		t.Fatalf("%+v, %v", st, err)
	}
	open, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.Exec(t.Context(), "SELECT pg_current_xact_id()"); err != nil {
		t.Fatal(err)
	}
	created := make(chan error, 1)
	go func() { created <- s.create(t.Context(), st) }() // it waits for the open transaction
	for late := time.Now().Add(2 * time.Minute); ; <-time.After(10 * time.Millisecond) {
		if now, err := s.state(t.Context()); err != nil || time.Now().After(late) {
			t.Fatalf("the slot is not being created: %v", err)
		} else if now.exists {
			break
		}
	}
	switch err := s.create(t.Context(), st); { // by another relay, which saw no slot before
	case err == nil:
		t.Error("a slot that is not complete is there")
	default:
		if wrong, ok := errors.AsType[*SlotError](err); ok {
			t.Errorf("an operator must act: %v", wrong)
		}
	}
	if err := open.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-created; err != nil {
		t.Fatal(err)
	}
	if st, err = s.setUp(t.Context()); err != nil || !st.exists || st.pid != 0 {
		t.Fatalf("%+v, %v", st, err)
	}
	if err := s.create(t.Context(), st); err != nil {
		t.Error(err)
	}
}
