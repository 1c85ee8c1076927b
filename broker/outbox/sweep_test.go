package outbox

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestSweepFindsRowsMissingFromTheWAL removes the time of a row by hand, which the log
// has as an update.
func TestSweepFindsRowsMissingFromTheWAL(t *testing.T) {
	t.Parallel()
	server := servicestest.StartPostgres(t, &services.PostgresOptions{Settings: map[string]string{"wal_level": "logical"}})
	pool := Migrated(t, server.URL())
	s, err := OpenWAL(t.Context(), server.URL(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	now := func() *session {
		t.Helper()
		for late := time.Now().Add(2 * time.Minute); ; <-time.After(10 * time.Millisecond) {
			s.mu.Lock()
			of := s.session
			s.mu.Unlock()
			if of != nil {
				return of
			}
			if time.Now().After(late) {
				t.Fatal("no session")
			}
		}
	}
	of := now()
	exec := func(sql string) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	exec("INSERT INTO semel_outbox (deliver_at, created, payload) VALUES (now() + interval '1 hour', now() - interval '2 minutes', 'x')")
	of.swept = time.Time{}
	if err := of.sweep(t.Context()); err != nil {
		t.Fatalf("a row that waits for its time: %v", err)
	}
	exec("UPDATE semel_outbox SET deliver_at = NULL")
	if err := of.sweep(t.Context()); err != nil {
		t.Fatalf("it looks once a minute: %v", err)
	}
	of.swept = time.Time{}
	items, err := s.Read(t.Context())
	if err != nil || len(items) != 1 || string(items[0].Message.Body) != "x" {
		t.Fatalf("%d items, %v", len(items), err)
	}
	if again := now(); again == of {
		t.Error("the session was not replaced")
	}
	again := now()
	again.swept = time.Time{}
	if err := again.sweep(t.Context()); err != nil {
		t.Errorf("a row in flight: %v", err)
	}
}

func TestSilentReaderIsNamed(t *testing.T) {
	t.Parallel()
	if err := (&standby{pid: 7, silent: time.Second}).halfDead("s"); err != nil {
		t.Error(err)
	}
	wrong, ok := errors.AsType[*SlotError]((&standby{pid: 7, name: "relay/1", silent: time.Minute}).halfDead("s"))
	if !ok || !strings.Contains(wrong.Cause, "(pid 7, relay/1) has not answered the server for 1m0s") || !strings.Contains(wrong.Remedy, "SELECT pg_terminate_backend(7)") {
		t.Error(wrong)
	}
}
