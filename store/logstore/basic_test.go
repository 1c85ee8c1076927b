package logstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// small returns options for a store that rotates often, so that tests cross
// segments.
func small() *Options { return &Options{SegmentSize: minSegmentSize, CacheBytes: minCacheBytes} }

func open(t testing.TB, dir string, opts *Options) *Store {
	t.Helper()
	s, err := Open(dir, opts)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func reopen(t testing.TB, s *Store) *Store {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	opts := s.opts
	return open(t, s.dir.path, &opts)
}

func key(n int) semel.Key { return semel.Key{Scope: "test", ID: fmt.Sprintf("id-%d", n)} }

// claimDone makes Done claims of keys and returns the decisions.
func claimDone(t testing.TB, s *Store, from, to int, window time.Duration) []semel.Decision {
	t.Helper()
	var reqs []semel.ClaimRequest
	for n := from; n < to; n++ {
		reqs = append(reqs, semel.ClaimRequest{Key: key(n), Done: true, Window: window})
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatalf("Claim: %v", err)
	}
	decisions := make([]semel.Decision, len(answers))
	for i, a := range answers {
		if a.Err != nil {
			t.Fatalf("Claim of %s: %v", reqs[i].Key, a.Err)
		}
		decisions[i] = a.Decision
	}
	return decisions
}

func wantAll(t testing.TB, got []semel.Decision, want semel.Decision) {
	t.Helper()
	for i, d := range got {
		if d != want {
			t.Fatalf("decision %d is %s, want %s", i, d, want)
		}
	}
}

func claimOne(t testing.TB, s *Store, r semel.ClaimRequest) semel.ClaimAnswer {
	t.Helper()
	answers := make([]semel.ClaimAnswer, 1)
	if r.Window == 0 {
		r.Window = time.Hour
	}
	if err := s.Claim(t.Context(), []semel.ClaimRequest{r}, answers); err != nil {
		t.Fatalf("Claim: %v", err)
	}
	if answers[0].Err != nil {
		t.Fatalf("Claim: %v", answers[0].Err)
	}
	return answers[0]
}

func complete(t testing.TB, s *Store, r semel.CompleteRequest) error {
	t.Helper()
	answers := make([]error, 1)
	if r.Window == 0 {
		r.Window = time.Hour
	}
	if err := s.Complete(t.Context(), []semel.CompleteRequest{r}, answers); err != nil {
		t.Fatalf("Complete: %v", err)
	}
	return answers[0]
}

func TestKeysAreRememberedOverSegmentsAndReopening(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	const n = 30_000
	wantAll(t, claimDone(t, s, 0, n, semel.Forever), semel.Fresh)
	wantAll(t, claimDone(t, s, 0, n, semel.Forever), semel.Duplicate)
	for range 2 {
		s = reopen(t, s)
		wantAll(t, claimDone(t, s, 0, n, semel.Forever), semel.Duplicate)
		wantAll(t, claimDone(t, s, n, n+10, semel.Forever), semel.Fresh)
		if found, err := s.Remove(t.Context(), key(n)); !found || err != nil {
			t.Fatalf("Remove: %v, %v", found, err)
		}
		for i := n; i < n+10; i++ {
			if _, err := s.Remove(t.Context(), key(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.log.active.num < 5 {
		t.Errorf("the log has %d segments: the test does not cross any", s.log.active.num)
	}
}

func TestResultsSurviveReopening(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	rng := rand.New(rand.NewPCG(1, 2))
	results := make([]semel.Result, 40)
	for i := range results {
		data := make([]byte, rng.IntN(1<<uint(i/2)))
		results[i] = semel.Result{Kind: semel.Value, Data: data}
		a := claimOne(t, s, semel.ClaimRequest{Key: key(i), Lease: time.Minute, Owner: semel.Owner{Name: "w", Nonce: uint64(i)}})
		if a.Decision != semel.Fresh {
			t.Fatalf("claim %d: %s", i, a.Decision)
		}
		for range 2 { // repeating a completion succeeds
			if err := complete(t, s, semel.CompleteRequest{Key: key(i), Token: a.Claim.Token, Result: results[i]}); err != nil {
				t.Fatalf("complete %d: %v", i, err)
			}
		}
		if err := complete(t, s, semel.CompleteRequest{Key: key(i), Token: a.Claim.Token + 1}); !errors.Is(err, semel.ErrStaleToken) {
			t.Fatalf("complete %d with another token: %v", i, err)
		}
	}
	for range 2 {
		for i, want := range results {
			a := claimOne(t, s, semel.ClaimRequest{Key: key(i), Lease: time.Minute})
			if a.Decision != semel.Duplicate || a.Result.Kind != want.Kind || !bytes.Equal(a.Result.Data, want.Data) {
				t.Fatalf("key %d: %s with %d bytes, want %d", i, a.Decision, len(a.Result.Data), len(want.Data))
			}
		}
		s = reopen(t, s)
	}
}

func TestHeldClaimsAreUnknownAfterReopening(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	held := claimOne(t, s, semel.ClaimRequest{Key: key(1), Lease: time.Hour, Hold: true, Owner: semel.Owner{Name: "w", Nonce: 1}})
	claimOne(t, s, semel.ClaimRequest{Key: key(2), Lease: time.Hour, Owner: semel.Owner{Name: "w", Nonce: 2}})
	s = reopen(t, s)
	if a := claimOne(t, s, semel.ClaimRequest{Key: key(1), Lease: time.Hour}); a.Decision != semel.OutcomeUnknown || a.Holder != "w" {
		t.Errorf("held key: %s held by %q, want in doubt", a.Decision, a.Holder)
	}
	a := claimOne(t, s, semel.ClaimRequest{Key: key(2), Lease: time.Hour})
	if a.Decision != semel.Fresh || a.Claim.Token <= held.Claim.Token {
		t.Errorf("key of a dead process: %s with token %d, want fresh above %d", a.Decision, a.Claim.Token, held.Claim.Token)
	}
	if err := complete(t, s, semel.CompleteRequest{Key: key(1), Token: held.Claim.Token}); err != nil {
		t.Errorf("late holder's completion: %v", err)
	}
	s = reopen(t, s)
	if a := claimOne(t, s, semel.ClaimRequest{Key: key(1), Lease: time.Hour}); a.Decision != semel.Duplicate {
		t.Errorf("completed key: %s", a.Decision)
	}
}

func TestOneProcessOpensAStore(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	_, err := Open(s.dir.path, nil)
	var locked *vfs.LockedError
	if !errors.As(err, &locked) || locked.Name != filepath.Join(s.dir.path, lockName) || !strings.HasPrefix(locked.Holder, fmt.Sprintf("process %d on ", os.Getpid())) {
		t.Fatalf("second Open: %v, want a LockedError with lock file and holder", err)
	}
	if !strings.Contains(err.Error(), "the store "+s.dir.path+" is held by "+locked.Holder) {
		t.Errorf("second Open: %v does not name the store and the process", err)
	}
	if !errors.Is(err, semel.ErrStoreUnavailable) || semel.Classify(err) != semel.ClassRetryable {
		t.Errorf("second Open: %v is of class %s", err, semel.Classify(err))
	}
	// A caller that waited for the lock can open the store.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, s.dir.path, nil)
}

// TestLockedStoreWhoseHolderIsNotKnown opens a store while the process that
// locked it has not yet written its name.
func TestLockedStoreWhoseHolderIsNotKnown(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), nil)
	if err := os.WriteFile(filepath.Join(s.dir.path, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(s.dir.path, nil)
	var locked *vfs.LockedError
	if !errors.As(err, &locked) || locked.Holder != "another process" {
		t.Fatalf("second Open: %v, want a LockedError of another process", err)
	}
}

func TestTransactionIsAllOrNothing(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	digester := s.Digester("test")
	digests := func(from, to int) (d []semel.Digest) {
		for n := from; n < to; n++ {
			d = append(d, digester.String(key(n).ID))
		}
		return d
	}
	ctx := context.Background()
	begin := func() *Tx {
		tx, err := s.Begin(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return tx
	}
	claim := func(tx *Tx, d []semel.Digest, want semel.Decision) {
		t.Helper()
		out := make([]semel.Decision, len(d))
		if err := tx.Claim(TxKeys{Digests: d}, semel.Forever, out); err != nil {
			t.Fatal(err)
		}
		wantAll(t, out, want)
	}
	const n = 8_000
	tx := begin()
	claim(tx, digests(0, n), semel.Fresh)
	claim(tx, digests(0, n), semel.Duplicate)
	tx.Set("position", []byte("1"))
	tx.Abort()
	if _, ok := s.Value("position"); ok {
		t.Error("an aborted value is visible")
	}
	tx = begin()
	claim(tx, digests(0, n), semel.Fresh)
	tx.Set("position", []byte("2"))
	if err := tx.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	var pendings []*Pending
	ran := 0
	for i := 1; i < 4; i++ {
		tx = begin()
		claim(tx, digests((i-1)*n, i*n), semel.Duplicate)
		claim(tx, digests(i*n, (i+1)*n), semel.Fresh)
		tx.Set("position", []byte{byte(i)})
		pendings = append(pendings, tx.Seal(func() error { ran++; return nil }))
	}
	for _, p := range pendings {
		if err := p.Wait(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if ran != 3 {
		t.Errorf("before ran %d times", ran)
	}
	s = reopen(t, s)
	digester = s.Digester("test")
	if v, ok := s.Value("position"); !ok || v[0] != 3 {
		t.Errorf("position is %v, %v", v, ok)
	}
	tx = begin()
	claim(tx, digests(0, 4*n), semel.Duplicate)
	tx.Abort()
	wantAll(t, claimDone(t, s, 0, 10, time.Hour), semel.Duplicate)
}

// counted leaves a test with many records and one goroutine to runs without the race detector,
// which makes it ten times slower, if there are such runs.
func counted(t *testing.T) {
	t.Helper()
	info, ok := debug.ReadBuildInfo()
	if testing.Short() && ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		t.Skip("it runs without the race detector or without -short: go test ./store/logstore")
	}
}
