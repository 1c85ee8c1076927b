package logstore

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// handClock is a wall clock that a test sets.
type handClock struct{ nanos atomic.Int64 }

func newHandClock() *handClock {
	c := &handClock{}
	c.nanos.Store(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano())
	return c
}

func (c *handClock) now() time.Time          { return time.Unix(0, c.nanos.Load()) }
func (c *handClock) advance(d time.Duration) { c.nanos.Add(int64(d)) }

func openAt(t testing.TB, c *handClock) *Store {
	t.Helper()
	opts := small()
	opts.Clock = c.now
	return open(t, t.TempDir(), opts)
}

func count(t testing.TB, s *Store) semel.Counts {
	t.Helper()
	c, err := s.Count(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestWindowEndsAtMostOneTickLate(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	c.advance(100 * time.Millisecond)
	wantAll(t, claimDone(t, s, 0, 1, time.Second), semel.Fresh)
	c.advance(time.Second - 1)
	wantAll(t, claimDone(t, s, 0, 1, time.Second), semel.Duplicate)
	s = reopen(t, s)
	wantAll(t, claimDone(t, s, 0, 1, time.Second), semel.Duplicate)
	c.advance(tickNanos)
	wantAll(t, claimDone(t, s, 0, 1, time.Second), semel.Fresh)
}

func TestPurgeDeletesWholeSegments(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	const n = 40_000
	wantAll(t, claimDone(t, s, 0, n, time.Hour), semel.Fresh)
	full := count(t, s)
	c.advance(2 * time.Hour)
	// The background may already have deleted some segments.
	if _, err := s.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	after := count(t, s)
	if after.Done > n/2 {
		t.Errorf("%d keys are left", after.Done)
	}
	if after.DiskBytes > full.DiskBytes/4 {
		t.Errorf("the log takes %d bytes of %d", after.DiskBytes, full.DiskBytes)
	}
	s = reopen(t, s)
	if got := count(t, s).Done; got != 0 {
		t.Errorf("%d keys after reopening", got)
	}
	wantAll(t, claimDone(t, s, 0, n, time.Hour), semel.Fresh)
}

// TestLiveRecordsOutliveTheirSegment checks that claims, unknown keys, values
// and keys with long windows survive when all other keys of their segments have
// expired.
func TestLiveRecordsOutliveTheirSegment(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	held := claimOne(t, s, semel.ClaimRequest{Key: key(-1), Lease: 1000 * time.Hour, Hold: true, Owner: semel.Owner{Name: "w", Nonce: 1}})
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx.Set("position", []byte("42"))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	claimOne(t, s, semel.ClaimRequest{Key: key(-3), Done: true, Window: semel.Forever, Origin: "orders 2/17"})
	claimOne(t, s, semel.ClaimRequest{Key: key(-4), Lease: 1000 * time.Hour, Hold: true, Owner: semel.Owner{Name: "w", Nonce: 3}, Origin: "orders 2/18"})
	claimOne(t, s, semel.ClaimRequest{Key: key(-2), Lease: time.Hour, Owner: semel.Owner{Nonce: 2}})
	const claims = 100 // more than one group of claims, as the keys are more than one run
	for i := range claims {
		claimOne(t, s, semel.ClaimRequest{Key: key(-10 - i), Lease: 1000 * time.Hour, Hold: true, Owner: semel.Owner{Name: "w", Nonce: 1}})
	}
	const long, n = 1500, 20_000
	wantAll(t, claimDone(t, s, 1_000_000, 1_000_000+long, semel.Forever), semel.Fresh)
	for round := range 6 {
		wantAll(t, claimDone(t, s, round*n, (round+1)*n, time.Hour), semel.Fresh)
		c.advance(2 * time.Hour)
		if _, err := s.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := count(t, s).DiskBytes; got > 1<<20 {
			t.Fatalf("round %d: the log takes %d bytes", round, got)
		}
	}
	if s.log.segments.first < 10 {
		t.Fatalf("the first segment is %d: nothing was carried", s.log.segments.first)
	}
	check := func() {
		t.Helper()
		wantAll(t, claimDone(t, s, 1_000_000, 1_000_000+long, semel.Forever), semel.Duplicate)
		if v, ok := s.Value("position"); !ok || string(v) != "42" {
			t.Errorf("position is %q, %v", v, ok)
		}
		if got := count(t, s); got.Claimed+got.Unknown < claims+1 {
			t.Errorf("%d keys are claimed and %d unknown, want %d at least", got.Claimed, got.Unknown, claims+1)
		}
		records := make([]semel.Record, 2)
		if err := s.Look(t.Context(), []semel.Key{key(-3), key(-4)}, records); err != nil || records[0].Origin != "orders 2/17" || records[1].Origin != "orders 2/18" || records[1].Holder != "w" {
			t.Errorf("the origins are %+v, %v", records, err)
		}
	}
	check()
	if a := claimOne(t, s, semel.ClaimRequest{Key: key(-1), Lease: time.Hour}); a.Decision != semel.InFlight {
		t.Errorf("held key: %s", a.Decision)
	}
	s = reopen(t, s)
	check()
	if a := claimOne(t, s, semel.ClaimRequest{Key: key(-1), Lease: time.Hour}); a.Decision != semel.OutcomeUnknown || a.Claim.Token != held.Claim.Token {
		t.Errorf("held key after reopening: %s", a.Decision)
	}
}

// TestIndexStaysCorrectWhenSegmentPositionsAreReused wraps around the ring of segments,
// where positions of deleted segments are reused.
func TestIndexStaysCorrectWhenSegmentPositionsAreReused(t *testing.T) {
	counted(t)
	t.Parallel()
	c := newHandClock()
	opts := small()
	opts.Clock, opts.Fsync = c.now, Never
	s := open(t, t.TempDir(), opts)
	const n = 3000
	round, since := 0, 0
	rounds := func(to int) {
		for ; round < to; round++ {
			wantAll(t, claimDone(t, s, round*n, (round+1)*n, time.Hour), semel.Fresh)
			if round > since {
				wantAll(t, claimDone(t, s, (round-1)*n, round*n, time.Hour), semel.Duplicate)
			}
			if round > since+1 {
				wantAll(t, claimDone(t, s, (round-2)*n, (round-2)*n+10, time.Hour), semel.Fresh)
			}
			c.advance(31 * time.Minute)
			if _, err := s.maintenance.expire(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
	}
	rounds(30)
	// Skip most of the ring, as if segments had been created and deleted.
	c.advance(2 * time.Hour)
	s.log.mu.Lock()
	s.log.segments.first, s.log.segments.swept, s.log.active.num = ringSize-20, ringSize-20, ringSize-20
	s.log.segments.ring = [ringSize]*segment{}
	s.log.segments.ring[s.log.active.num] = s.log.active
	for i := range s.finder.index.shards {
		s.finder.index.sweep(&s.finder.index.shards[i], &s.log.segments)
	}
	s.log.mu.Unlock()
	since = round
	rounds(100)
	if s.log.active.num < ringSize+40 {
		t.Errorf("the last segment is %d: the ring has not come round", s.log.active.num)
	}
	if got := count(t, s); got.Done > 20*n || got.DiskBytes > 10<<20 {
		t.Errorf("%d keys in %d bytes", got.Done, got.DiskBytes)
	}
}

func TestListYieldsEachRecordOnce(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	opts := small()
	opts.Clock, opts.KeepIDs = c.now, true
	s := open(t, t.TempDir(), opts)
	const n = 3000
	wantAll(t, claimDone(t, s, 0, n, time.Hour), semel.Fresh)
	wantAll(t, claimDone(t, s, n, n+500, time.Minute), semel.Fresh)
	claimOne(t, s, semel.ClaimRequest{Key: key(-1), Lease: time.Hour, Owner: semel.Owner{Name: "w", Nonce: 1}})
	c.advance(2 * time.Minute)
	seen := make(map[string]int)
	for r, err := range s.List(t.Context(), semel.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		seen[r.Key.ID]++
	}
	if len(seen) != n+1 {
		t.Errorf("%d records, want %d", len(seen), n+1)
	}
	for i := -1; i < n; i++ {
		if got := seen[key(i).ID]; got != 1 {
			t.Fatalf("%s is listed %d times", key(i), got)
		}
	}
	other := "other"
	for r := range s.List(t.Context(), semel.ListOptions{Scope: &other}) {
		t.Fatalf("%s is in another scope", r.Key)
	}
}

// A process may open the store for one key, as semel once does. It must not create a segment of
// many megabytes and delete it again, only because earlier processes have filled much of the log.
func TestOnlyTheRoomThatThisProcessUsesAsksForASegment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := open(t, dir, nil)
	for n := range 4 * firstSize / 40_000 { // it fills the first segment and more
		wantAll(t, claimDone(t, s, n*1000, (n+1)*1000, time.Hour), semel.Fresh)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(dir, nil)
		if err != nil {
			t.Fatal(err)
		}
		spare := func(from, to int) bool {
			t.Helper()
			wantAll(t, claimDone(t, s, from, to, time.Hour), semel.Fresh)
			synctest.Wait() // until the maintenance has nothing to do
			s.log.mu.Lock()
			defer s.log.mu.Unlock()
			return s.log.spare != nil
		}
		if g := s.log.active; g.next < g.limit/2 {
			t.Fatalf("the segment has only %d of %d bytes", g.next, g.limit)
		}
		if spare(-1, 0) {
			t.Error("one key made a segment")
		}
		room := s.log.active.limit - s.log.active.next
		for n := 0; s.log.active.next-s.log.active.memFrom <= room/2; n++ {
			wantAll(t, claimDone(t, s, -2000-1000*n, -1000-1000*n, time.Hour), semel.Fresh)
		}
		if !spare(-2, -1) {
			t.Error("a process that has used half of its room has no next segment")
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
