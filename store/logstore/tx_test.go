package logstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/faultfs"
)

func begin(t testing.TB, s *Store) *Tx {
	t.Helper()
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// txClaim claims one key in a transaction.
func txClaim(t testing.TB, tx *Tx, n int, print uint64) semel.Decision {
	t.Helper()
	d := tx.keys.digestOf(key(n))
	var out [1]semel.Decision
	if err := tx.Claim(TxKeys{Digests: []semel.Digest{d}, Prints: []uint64{print}}, time.Hour, out[:]); err != nil {
		t.Fatal(err)
	}
	return out[0]
}

func TestTransactionRespectsClaims(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	claimOne(t, s, semel.ClaimRequest{Key: key(1), Lease: time.Minute, Owner: semel.Owner{Nonce: 1}})
	claimOne(t, s, semel.ClaimRequest{Key: key(2), Lease: time.Minute, Hold: true, Owner: semel.Owner{Nonce: 2}})
	tx := begin(t, s)
	for n := 1; n < 3; n++ {
		if got := txClaim(t, tx, n, 0); got != semel.InFlight {
			t.Errorf("key %d under a lease: %s", n, got)
		}
	}
	c.advance(2 * time.Minute)
	if got := txClaim(t, tx, 2, 0); got != semel.OutcomeUnknown {
		t.Errorf("held key after its lease: %s", got)
	}
	if got := txClaim(t, tx, 1, 7); got != semel.Fresh {
		t.Errorf("key after its lease: %s", got)
	}
	if got := txClaim(t, tx, 1, 8); got != semel.Mismatch {
		t.Errorf("the same key with another print: %s", got)
	}
	tx.Abort()
	a := claimOne(t, s, semel.ClaimRequest{Key: key(1), Lease: time.Minute, Owner: semel.Owner{Nonce: 3}})
	if a.Decision != semel.Fresh || a.Claim.Attempt != 2 {
		t.Errorf("after the abort: %s, attempt %d, want fresh and 2", a.Decision, a.Claim.Attempt)
	}
}

func TestTransactionExcludesOtherChangesUntilItEnds(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	const callers, rounds = 8, 30
	var all sync.WaitGroup
	for i := range callers {
		all.Go(func() {
			for n := range rounds {
				claimDone(t, s, i*rounds+n, i*rounds+n+1, time.Hour)
			}
		})
	}
	for n := range rounds {
		tx := begin(t, s)
		if got := txClaim(t, tx, 1_000_000+n, 0); got != semel.Fresh {
			t.Errorf("transaction %d: %s", n, got)
		}
		var r [1]semel.Record
		if err := s.Look(t.Context(), []semel.Key{key(1_000_000 + n)}, r[:]); err != nil || r[0].State != semel.Absent {
			t.Errorf("before its commit the key is %s, %v", r[0].State, err)
		}
		tx.Set("n", fmt.Append(nil, n))
		if n%2 == 0 {
			tx.Seal(nil)
		} else if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
	all.Wait()
	s = reopen(t, s)
	wantAll(t, claimDone(t, s, 0, callers*rounds, time.Hour), semel.Duplicate)
	wantAll(t, claimDone(t, s, 1_000_000, 1_000_000+rounds, time.Hour), semel.Duplicate)
}

func TestWaitingForATransactionEndsWithTheContext(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	tx := begin(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var a [1]semel.ClaimAnswer
	err := s.Claim(ctx, []semel.ClaimRequest{{Key: key(1), Done: true, Window: time.Hour}}, a[:])
	if !errors.Is(err, context.Canceled) || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("Claim: %v, want a retryable error of the context", err)
	}
	if _, err := s.Begin(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Begin: %v", err)
	}
	tx.Abort()
	tx.Abort()
	wantAll(t, claimDone(t, s, 1, 2, time.Hour), semel.Fresh)
	if err := tx.Commit(t.Context()); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("Commit after Abort: %v", err)
	}
}

func TestClosingEndsATransaction(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	tx := begin(t, s)
	txClaim(t, tx, 1, 0)
	s2 := reopen(t, s)
	if err := tx.Commit(t.Context()); !errors.Is(err, semel.ErrClosed) {
		t.Errorf("Commit after Close: %v", err)
	}
	wantAll(t, claimDone(t, s2, 1, 2, time.Hour), semel.Fresh)
}

func TestAFailureBeforeARecordStopsLaterRecords(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := openFault(t, fs)
	if err != nil {
		t.Fatal(err)
	}
	var pendings []*Pending
	cause := errors.New("the output cannot be synced")
	hold := make(chan struct{})
	for n := range 3 {
		tx := begin(t, s)
		txClaim(t, tx, n, 0)
		pendings = append(pendings, tx.Seal(func() error {
			<-hold
			if n == 1 {
				return cause
			}
			return nil
		}))
	}
	close(hold)
	for n, p := range pendings {
		if err := p.Wait(t.Context()); (n > 0) != errors.Is(err, semel.ErrStoreFailed) {
			t.Errorf("transaction %d: %v", n, err)
		} else if n > 0 && !errors.Is(err, cause) {
			t.Errorf("transaction %d does not name the cause: %v", n, err)
		}
	}
	if s, err = openFault(t, fs.Survive(faultfs.Everything, nil)); err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 1, time.Hour), semel.Duplicate)
	wantAll(t, claimDone(t, s, 1, 3, time.Hour), semel.Fresh)
}

func TestTransactionLargerThanASegmentIsRefusedWhole(t *testing.T) {
	t.Parallel()
	opts := small()
	opts.Fsync = Never
	s := open(t, t.TempDir(), opts)
	tx := begin(t, s)
	defer tx.Abort()
	var out [1]semel.Decision
	claim := func(n int) error {
		return tx.Claim(TxKeys{Digests: []semel.Digest{s.Digester("test").String(key(n).ID)}}, semel.Forever, out[:])
	}
	value := make([]byte, 1<<20)
	n := 0
	for {
		err := claim(n)
		if errors.Is(err, semel.ErrInvalidRequest) {
			break
		}
		if err != nil || out[0] != semel.Fresh {
			t.Fatalf("claim %d: %s, %v", n, out[0], err)
		}
		tx.Set(fmt.Sprint(n), value)
		n++
	}
	if least := TxBytes >> 20; n < least-1 || n > 70 {
		t.Errorf("the transaction had room for %d MiB, want %d", n, least)
	}
	tx.Set(fmt.Sprint(n-1), nil)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	s = reopen(t, s)
	if got := len(s.Values("")); got != n-1 {
		t.Errorf("%d values, want %d", got, n-1)
	}
	if got := count(t, s).Done; got != int64(n) {
		t.Errorf("%d keys, want %d", got, n)
	}
}

func TestTransactionOfAStoreThatKeepsIDsNeedsThem(t *testing.T) {
	t.Parallel()
	opts := small()
	opts.KeepIDs = true
	s := open(t, t.TempDir(), opts)
	tx := begin(t, s)
	digests := []semel.Digest{s.Digester("test").String(key(1).ID)}
	out := make([]semel.Decision, 1)
	for _, keys := range [][]semel.Key{nil, {}, {key(1), key(2)}} {
		if err := tx.Claim(TxKeys{Digests: digests, Keys: keys}, time.Hour, out); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("Claim with %d keys: %v, want ErrInvalidRequest", len(keys), err)
		}
	}
	if err := tx.Claim(TxKeys{Digests: digests, Keys: []semel.Key{key(1)}}, time.Hour, out); err != nil || out[0] != semel.Fresh {
		t.Errorf("Claim after that: %s, %v", out[0], err)
	}
	for _, origins := range [][]string{{}, {"a", "b"}, {strings.Repeat("o", semel.MaxOriginBytes+1)}} {
		if err := tx.Claim(TxKeys{Digests: digests, Keys: []semel.Key{key(1)}, Origins: origins}, time.Hour, out); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("Claim with the origins %q: %v, want ErrInvalidRequest", origins, err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for r, err := range s.List(t.Context(), semel.ListOptions{}) {
		if err != nil || r.Key != key(1) {
			t.Errorf("listed: %s, %v", r.Key, err)
		}
	}
}

// txClaimAll claims keys from one number to another in a transaction, and counts the
// fresh ones.
func txClaimAll(t testing.TB, tx *Tx, from, to int) (fresh int) {
	t.Helper()
	digests := make([]semel.Digest, 0, to-from)
	for n := from; n < to; n++ {
		digests = append(digests, tx.keys.digestOf(key(n)))
	}
	out := make([]semel.Decision, len(digests))
	if err := tx.Claim(TxKeys{Digests: digests}, semel.Forever, out); err != nil {
		t.Fatal(err)
	}
	for _, d := range out {
		if d == semel.Fresh {
			fresh++
		}
	}
	return fresh
}

func TestExpectedKeysBoundTheGrowthOfTheIndex(t *testing.T) {
	counted(t)
	t.Parallel()
	const first, limit, most = 300_000, 8 << 20, 16 // bytes of a key, with small shards
	for _, c := range []struct {
		name   string
		expect int64
		bytes  int64 // of the index, at most
	}{
		{"unknown", 0, first * most},
		{"a fourth more than there are", first * 5 / 4, first * 5 / 4 * most},
		{"too few", first / 4, first * most},
		{"far too many", 1 << 50, limit * 3 / 4},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			opts := small()
			opts.MaxIndexBytes = limit
			s := open(t, t.TempDir(), opts)
			tx := begin(t, s)
			defer tx.Abort()
			txClaimAll(t, tx, 0, 1000)
			tx.Expect(c.expect)
			if fresh := txClaimAll(t, tx, 0, first); fresh != first-1000 {
				t.Errorf("%d of %d new keys are fresh", fresh, first-1000)
			}
			if fresh := txClaimAll(t, tx, 0, first); fresh != 0 {
				t.Errorf("%d known keys are fresh", fresh)
			}
			if got := s.finder.index.bytes; got > c.bytes {
				t.Errorf("the index takes %d bytes, more than %d", got, c.bytes)
			}
		})
	}
}
