package logstore

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

var update = flag.Bool("update", false, "write testdata/golden again, after a change of the format")

const (
	goldenDir  = "testdata/golden"
	goldenDir3 = "testdata/golden3" // of format version 3, whose first segment is a run
	goldenDir1 = "testdata/golden1" // of format version 1, written by that version
)

// writeGolden writes a store with every kind of entry into dir. The result is
// always the same. If spill is set, the first segment leaves memory.
func writeGolden(t *testing.T, dir string, spill bool) {
	t.Helper()
	clock := newHandClock()
	id := identity{store: storeID([]byte("golden store id.")), secret: digest.Secret([]byte("golden secret...")), created: clock.nanos.Load()}
	if err := os.WriteFile(filepath.Join(dir, identityName), id.encode(), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := small()
	opts.Clock = clock.now
	s := open(t, dir, opts)
	goldenChanges(t, s)
	clock.advance(time.Minute)
	nextSegment(t, s)
	wantAll(t, claimDone(t, s, 10, 13, time.Hour), semel.Fresh)
	if spill {
		mustSpill(t, s)
		if _, err := s.Remove(t.Context(), key(4)); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// nextSegment lets the log continue in a new segment.
func nextSegment(t *testing.T, s *Store) {
	t.Helper()
	if err := s.log.prepareSpare(minSegmentSize); err != nil {
		t.Fatal(err)
	}
	s.log.mu.Lock()
	s.committer.rotate()
	s.log.mu.Unlock()
}

func goldenChanges(t *testing.T, s *Store) {
	t.Helper()
	wantAll(t, claimDone(t, s, 0, 3, time.Hour), semel.Fresh)
	wantAll(t, claimDone(t, s, 3, 5, semel.Forever), semel.Fresh)
	wantAll(t, claimDone(t, s, 5, 6, 100*365*24*time.Hour), semel.Fresh)
	print := semel.Fingerprint([]byte("sixteen byte sum"))
	for n, result := range map[int]semel.Result{6: {Kind: semel.Value, Data: []byte("result")}} {
		a := claimOne(t, s, semel.ClaimRequest{Key: key(n), Lease: time.Minute, Fingerprint: print, Owner: semel.Owner{Name: "w", Nonce: 1}})
		if err := complete(t, s, semel.CompleteRequest{Key: key(n), Token: a.Claim.Token, Result: result}); err != nil {
			t.Fatal(err)
		}
	}
	a := claimOne(t, s, semel.ClaimRequest{Key: key(7), Lease: time.Minute, Fingerprint: print, Owner: semel.Owner{Name: "w", Nonce: 2}})
	if err := complete(t, s, semel.CompleteRequest{Key: key(7), Token: a.Claim.Token}); err != nil {
		t.Fatal(err)
	}
	claimOne(t, s, semel.ClaimRequest{Key: key(8), Lease: time.Minute, Hold: true, Owner: semel.Owner{Name: "holder", Nonce: 3}})
	wantAll(t, claimDone(t, s, 9, 10, time.Hour), semel.Fresh)
	if _, err := s.Remove(t.Context(), key(9)); err != nil {
		t.Fatal(err)
	}
	tx, err := s.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tx.Set("position", []byte("17"))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestStoredFormatIsUnchanged fails if a byte of the files changes. Then either
// the change is a mistake, or it needs a new version, an entry in
// FORMAT.md, and a run with -update.
func TestStoredFormatIsUnchanged(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{goldenDir, goldenDir3} {
		t.Run(filepath.Base(golden), func(t *testing.T) { compareGolden(t, golden) })
	}
}

func compareGolden(t *testing.T, golden string) {
	dir := t.TempDir()
	if *update {
		dir = golden
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeGolden(t, dir, golden == goldenDir3)
	os.Remove(filepath.Join(dir, lockName))
	files, err := filepath.Glob(golden + "/*")
	if want := map[string]int{goldenDir: 3, goldenDir3: 4}[golden]; err != nil || len(files) != want {
		t.Fatalf("golden files: %q, %v", files, err)
	}
	for _, file := range files {
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, filepath.Base(file)))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Errorf("%s differs from offset %d on", filepath.Base(file), at)
		}
	}
}

func TestGoldenStoreIsRead(t *testing.T) {
	t.Parallel()
	for _, golden := range []string{goldenDir1, goldenDir, goldenDir3} {
		t.Run(filepath.Base(golden), func(t *testing.T) { readGolden(t, golden) })
	}
}

func readGolden(t *testing.T, golden string) {
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(golden)); err != nil {
		t.Fatal(err)
	}
	clock := newHandClock()
	clock.advance(2 * time.Minute)
	opts := small()
	opts.Clock = clock.now
	s := open(t, dir, opts)
	want := map[int]semel.State{8: semel.Unknown, 9: semel.Absent, 13: semel.Absent}
	if golden == goldenDir3 {
		want[4] = semel.Absent
	}
	for n := range 14 {
		state, ok := want[n]
		if !ok {
			state = semel.Done
		}
		var r [1]semel.Record
		if err := s.Look(t.Context(), []semel.Key{key(n)}, r[:]); err != nil {
			t.Fatal(err)
		}
		if r[0].State != state {
			t.Errorf("key %d is %s, want %s", n, r[0].State, state)
		}
		if n == 6 && string(r[0].Result.Data) != "result" {
			t.Errorf("the result is %q", r[0].Result.Data)
		}
	}
	if v, _ := s.Value("position"); string(v) != "17" {
		t.Errorf("position is %q", v)
	}
}
