package pgstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/pgstore/internal/pgschema"
)

// uuid7 returns the n-th id of a moment.
func uuid7(at time.Time, n int) string {
	ms := at.UnixMilli()
	return fmt.Sprintf("%08x-%04x-7000-8000-%012x", ms>>16, ms&0xffff, n)
}

func TestIDTimeReadsTheTimeOfAnID(t *testing.T) {
	t.Parallel()
	at := time.UnixMilli(1645557742000)
	for id, want := range map[string]bool{
		"017f22e2-79b0-7cc3-98c4-dc0c0c07398f": true, // RFC 9562, appendix A.6
		"017f22e279b07cc398c4dc0c0c07398f":     true,
		"017F22E2-79B0-7CC3-98C4-DC0C0C07398F": true,
		"01FWHE4YDGFK1SHH6W1G60EECF":           true, // the same bits as a ULID
		"01fwhe4ydgfk1shh6w1g60eecf":           true,
		"81FWHE4YDGFK1SHH6W1G60EECF":           false, // beyond 128 bits
		"01FWHE4YDGFK1SHH6W1G60EECU":           false, // not a digit
		"919108f7-52d1-4320-9bac-f847db4148a8": false, // version 4
		"017f22e2-79b0-7cc3-18c4-dc0c0c07398f": false, // another variant
		"017f22e2079b0-7cc3-98c4-dc0c0c07398f": false,
		"order-17":                             false,
		"":                                     false,
	} {
		got, ok := idTime(semel.Key{ID: id})
		if ok != want || ok && !got.Equal(at) {
			t.Errorf("%q: %v, %t, want %t", id, got.UTC(), ok, want)
		}
	}
}

// timed is a store by message time, for messages up to 8 hours old, in slots of
// two hours.
func timed(t *testing.T) (*Store, *pgxpool.Pool) {
	t.Helper()
	address := shared.Database(t)
	migrated(t, address, &MigrateOptions{Cleanup: CleanupMessageTime, Partitions: 8, MessageAge: 8 * time.Hour})
	p := pool(t, address)
	s, err := New(t.Context(), p, &Options{Cleanup: CleanupMessageTime})
	if err != nil {
		t.Fatal(err)
	}
	return s, p
}

// decide claims ids in one step.
func decide(t *testing.T, s *Store, window time.Duration, ids ...string) []semel.ClaimAnswer {
	t.Helper()
	reqs := make([]semel.ClaimRequest, len(ids))
	for i, id := range ids {
		reqs[i] = semel.ClaimRequest{Key: semel.Key{ID: id}, Window: window, Done: true}
	}
	answers := make([]semel.ClaimAnswer, len(ids))
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	return answers
}

func wantDecision(t *testing.T, s *Store, want semel.Decision, ids ...string) {
	t.Helper()
	for i, a := range decide(t, s, time.Hour, ids...) {
		if a.Decision != want || a.Err != nil {
			t.Errorf("%s is %s (%v), want %s", ids[i], a.Decision, a.Err, want)
		}
	}
}

// pass lets time pass for the store. It moves the floor on which the store's
// clock is based.
func pass(t *testing.T, s *Store, d time.Duration) {
	t.Helper()
	_, err := s.pool.Exec(t.Context(), "UPDATE "+s.opts.quoted("times")+
		" SET floor = greatest(floor, clock_timestamp() - age * interval '1 microsecond') + $1::bigint * interval '1 microsecond'", d.Microseconds())
	if err != nil {
		t.Fatal(err)
	}
}

func purged(t *testing.T, s *Store) {
	t.Helper()
	if _, err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func sizeOf(t *testing.T, s *Store, at time.Time) int64 {
	t.Helper()
	pages, err := s.pages(t.Context(), s.opts.quoted(pgschema.Partition(s.hasher.times.slot(at))))
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

func TestMessageTimeAnswersLateForKeysItMayHaveForgotten(t *testing.T) {
	t.Parallel()
	s, _ := timed(t)
	now := time.Now()
	old, edge, young := uuid7(now.Add(-9*time.Hour), 1), uuid7(now.Add(-7*time.Hour), 2), uuid7(now, 3)
	wantDecision(t, s, semel.Late, old)
	for _, a := range decide(t, s, time.Millisecond, edge, young) {
		if a.Decision != semel.Fresh {
			t.Fatalf("%s, want fresh", a.Decision)
		}
	}
	kept := uuid7(now.Add(-7*time.Hour), 4)
	decide(t, s, semel.Forever, kept)
	between := now.Add(-210 * time.Minute)
	decide(t, s, time.Millisecond, uuid7(between, 6))
	// The slot of edge and kept ends while the message is young.
	pass(t, s, 7*time.Hour)
	purged(t, s)
	wantDecision(t, s, semel.Late, old, edge)
	wantDecision(t, s, semel.Duplicate, kept)
	wantDecision(t, s, semel.Fresh, young) // its own window is over
	if sizeOf(t, s, now.Add(-7*time.Hour)) == 0 {
		t.Error("the partition of a key that is kept forever was truncated")
	}
	if pages := sizeOf(t, s, between); pages != 0 {
		t.Errorf("the partition of keys that are over has %d pages", pages)
	}
	// One ring length later, the same partition takes new keys next to the old one.
	ring := 8 * s.hasher.times.width()
	pass(t, s, ring-7*time.Hour)
	again := uuid7(now.Add(-7*time.Hour).Add(ring), 5)
	wantDecision(t, s, semel.Fresh, again)
	purged(t, s)
	wantDecision(t, s, semel.Duplicate, again, kept)
	wantDecision(t, s, semel.Late, edge, young)
}

func TestMessageTimeRefusesToRunLateMessages(t *testing.T) {
	t.Parallel()
	s, _ := timed(t)
	if _, err := NewGuard(s, &semel.GuardOptions{OnLate: semel.LateRun}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("got %v, want an ErrInvalidRequest", err)
	}
}

func TestMessageTimeRefusesIDsWithoutTime(t *testing.T) {
	t.Parallel()
	s, _ := timed(t)
	answers := decide(t, s, time.Hour, "order-17", uuid7(time.Now(), 1), uuid7(time.Now().Add(26*time.Hour), 2), uuid7(time.Now().Add(30*time.Minute), 3))
	for i, want := range []struct {
		decision semel.Decision
		err      error
	}{{semel.Undecided, semel.ErrInvalidKey}, {semel.Fresh, nil}, {semel.Undecided, semel.ErrInvalidRequest}, {semel.Fresh, nil}} {
		if a := answers[i]; a.Decision != want.decision || !errors.Is(a.Err, want.err) {
			t.Errorf("request %d: %s (%v), want %s (%v)", i, a.Decision, a.Err, want.decision, want.err)
		}
	}
	finished := make([]error, 1)
	if err := s.Complete(t.Context(), []semel.CompleteRequest{{Key: semel.Key{ID: "order-17"}, Token: 1, Window: time.Hour}}, finished); err != nil || !errors.Is(finished[0], semel.ErrInvalidKey) {
		t.Errorf("complete: %v, %v", err, finished[0])
	}
	if _, err := s.Remove(t.Context(), semel.Key{ID: "order-17"}); !errors.Is(err, semel.ErrInvalidKey) {
		t.Errorf("remove: %v", err)
	}
}

// A transaction that began before the floor was raised may still write a key
// below it, with its own window.
func TestMessageTimeKeepsKeysOfALongTransaction(t *testing.T) {
	t.Parallel()
	s, p := timed(t)
	at := time.Now().Add(-7 * time.Hour)
	over, written := uuid7(at, 1), uuid7(at, 2)
	decide(t, s, time.Millisecond, over)
	tx, err := p.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer rollback(context.Background(), tx)
	g, err := NewGuard(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.InTx(tx).Claim(t.Context(), semel.Call{Key: semel.Key{ID: written}, Window: 24 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	pass(t, s, 4*time.Hour)
	purged(t, s) // and does not wait for the transaction
	if sizeOf(t, s, at) == 0 {
		t.Fatal("the partition was truncated under an open transaction")
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	purged(t, s)
	wantDecision(t, s, semel.Duplicate, written)
	wantDecision(t, s, semel.Late, over)
}

// Rows may change between the check and the truncation, so the truncation checks
// again.
func TestMessageTimeTruncatesNoPartitionWithAKeyThatStays(t *testing.T) {
	t.Parallel()
	s, _ := timed(t)
	at := time.Now().Add(-7 * time.Hour)
	kept := uuid7(at, 1)
	decide(t, s, 48*time.Hour, kept)
	pass(t, s, 4*time.Hour)
	purged(t, s) // raises the floor
	slot := s.hasher.times.slot(at)
	gone, stays, err := s.truncateSlot(t.Context(), slot, s.opts.quoted(pgschema.Partition(slot)))
	if err != nil || !stays || gone != 0 {
		t.Errorf("truncated %d rows, a key stays: %t, %v", gone, stays, err)
	}
	wantDecision(t, s, semel.Duplicate, kept)
}
