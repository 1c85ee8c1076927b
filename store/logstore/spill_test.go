package logstore

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/test/faultfs"
)

// runCount returns the number of runs.
func runCount(s *Store) int {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return len(s.finder.runs.list)
}

// mustSpill lets the keys of all sealed segments leave memory. The store may do so before, when
// keys have expired. It fails if none ever left.
func mustSpill(t testing.TB, s *Store) {
	t.Helper()
	if err := spillNow(s); err != nil {
		t.Fatal(err)
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	if s.log.segments.first == 1 {
		t.Fatal("no segment left memory")
	}
}

func TestKeysBeyondTheLimitLeaveMemory(t *testing.T) {
	t.Parallel()
	opts := small()
	opts.MaxIndexBytes, opts.Fsync = minIndexBytes, Never
	s := open(t, t.TempDir(), opts)
	n := 200_000 // 2.4 MB of index
	if testing.Short() {
		n = 120_000
	}
	for from := 0; from < n; from += 10_000 {
		wantAll(t, claimDone(t, s, from, from+10_000, semel.Forever), semel.Fresh)
		s.log.mu.Lock()
		got := s.finder.index.count * 12
		s.log.mu.Unlock()
		if got > 2*minIndexBytes {
			t.Fatalf("after %d keys, those in memory take %d bytes", from, got)
		}
	}
	if runCount(s) == 0 {
		t.Fatal("no key has left memory")
	}
	for range 2 {
		if got := count(t, s); got.Done != int64(n) || got.DiskBytes > int64(n)*26 {
			t.Errorf("%d keys in %d bytes on disk", got.Done, got.DiskBytes)
		}
		for from := 0; from < n; from += 40_000 {
			wantAll(t, claimDone(t, s, from, from+40_000, semel.Forever), semel.Duplicate)
		}
		s = reopen(t, s)
	}
	wantAll(t, claimDone(t, s, n, n+1000, semel.Forever), semel.Fresh)
}

// TestSpilledKeysTakeOneReadAndNewKeysNone counts the reads of files.
func TestSpilledKeysTakeOneReadAndNewKeysNone(t *testing.T) {
	t.Parallel()
	const n = 60_000
	dir := t.TempDir()
	opts := small()
	s := open(t, dir, opts)
	claimIDs(t, s, upTo(0, n), printOf)
	nextSegment(t, s)
	claimIDs(t, s, upTo(n, n+1), printOf)
	mustSpill(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	counting := new(countingFS)
	opts.FS = counting
	s = open(t, dir, opts)
	before := counting.reads.Load()
	random := rand.New(rand.NewPCG(1, 2))
	ids := make([]int, 2000)
	for i := range ids {
		ids[i] = random.IntN(n)
	}
	for i, got := range claimIDs(t, s, ids, printOf) {
		if got != semel.Duplicate {
			t.Fatalf("id %d: %s", ids[i], got)
		}
	}
	if got := counting.reads.Load() - before; got > int64(len(ids))*11/10 {
		t.Errorf("%d reads for %d known keys", got, len(ids))
	}
	before = counting.reads.Load()
	claimIDs(t, s, upTo(2*n, 2*n+len(ids)), printOf)
	if got := counting.reads.Load() - before; got > int64(len(ids))/20 {
		t.Errorf("%d reads for %d new keys", got, len(ids))
	}
	for _, got := range claimIDs(t, s, upTo(0, 100), func(id int) uint64 { return printOf(id) + 7 }) {
		if got != semel.Mismatch {
			t.Fatalf("another print: %s", got)
		}
	}
}

// TestSpilledKeysKeepTheirRecords spills every kind of entry.
func TestSpilledKeysKeepTheirRecords(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	held := claimOne(t, s, semel.ClaimRequest{Key: key(-1), Lease: time.Hour, Hold: true, Owner: semel.Owner{Name: "w", Nonce: 1}})
	a := claimOne(t, s, semel.ClaimRequest{Key: key(-2), Lease: time.Minute, Owner: semel.Owner{Nonce: 2}})
	large := strings.Repeat("x", 20_000) // more than a block
	if err := complete(t, s, semel.CompleteRequest{Key: key(-2), Token: a.Claim.Token, Window: semel.Forever, Result: semel.Result{Kind: semel.Value, Data: []byte(large)}}); err != nil {
		t.Fatal(err)
	}
	claimOne(t, s, semel.ClaimRequest{Key: key(-3), Done: true, Window: semel.Forever, Origin: "orders 2/17"})
	claimOne(t, s, semel.ClaimRequest{Key: key(-4), Done: true, Window: semel.Forever, Owner: semel.Owner{Name: "w", Nonce: 4}})
	tx := begin(t, s)
	tx.Set("position", []byte("42"))
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	for round := range 4 { // several bases
		wantAll(t, claimDone(t, s, round*5000, (round+1)*5000, 24*time.Hour), semel.Fresh)
		c.advance(time.Hour)
	}
	mustSpill(t, s)
	for range 2 {
		records := make([]semel.Record, 3)
		if err := s.Look(t.Context(), []semel.Key{key(-2), key(-3), key(17)}, records); err != nil {
			t.Fatal(err)
		}
		if string(records[0].Result.Data) != large || records[0].Token != a.Claim.Token || records[1].Origin != "orders 2/17" || records[2].State != semel.Done {
			t.Errorf("records %+v", records[1:])
		}
		if again := claimOne(t, s, semel.ClaimRequest{Key: key(-4), Done: true, Window: semel.Forever, Owner: semel.Owner{Name: "w", Nonce: 4}}); again.Decision != semel.Fresh {
			t.Errorf("a repeated claim of the same owner: %s", again.Decision)
		}
		if err := complete(t, s, semel.CompleteRequest{Key: key(-2), Token: a.Claim.Token, Window: semel.Forever}); err != nil {
			t.Errorf("a repeated completion: %v", err)
		}
		if v, _ := s.Value("position"); string(v) != "42" {
			t.Errorf("position is %q", v)
		}
		var r [1]semel.Record
		if err := s.Look(t.Context(), []semel.Key{key(-1)}, r[:]); err != nil || r[0].Token != held.Claim.Token {
			t.Errorf("the held key is %+v, %v", r[0], err)
		}
		s = reopen(t, s)
	}
	c.advance(24*time.Hour - 4*time.Hour + time.Minute)
	wantAll(t, claimDone(t, s, 0, 5000, time.Hour), semel.Fresh)
	wantAll(t, claimDone(t, s, 5000, 10_000, time.Hour), semel.Duplicate)
}

// TestARemovedKeyStaysRemovedInARun removes keys by hand in each place, and lets the
// removal itself leave memory.
func TestARemovedKeyStaysRemovedInARun(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	remove := func(n int) {
		t.Helper()
		if found, err := s.Remove(t.Context(), key(n)); err != nil || !found {
			t.Fatalf("remove: %v, %v", found, err)
		}
	}
	absent := func(n int, why string) {
		t.Helper()
		var r [1]semel.Record
		if err := s.Look(t.Context(), []semel.Key{key(n)}, r[:]); err != nil || r[0].State != semel.Absent {
			t.Fatalf("%s: key %d is %s, %v", why, n, r[0].State, err)
		}
		for r, err := range s.List(t.Context(), semel.ListOptions{}) {
			if d := s.keys.digestOf(key(n)); err != nil || r.Digest == d {
				t.Fatalf("%s: key %d is listed, %v", why, n, err)
			}
		}
	}
	wantAll(t, claimDone(t, s, 0, 10_000, semel.Forever), semel.Fresh)
	mustSpill(t, s)
	remove(1)
	remove(2)
	absent(1, "after the removal")
	s = reopen(t, s)
	absent(1, "after a restart")
	wantAll(t, claimDone(t, s, 2, 3, time.Hour), semel.Fresh)
	wantAll(t, claimDone(t, s, 10_000, 20_000, semel.Forever), semel.Fresh)
	mustSpill(t, s)
	s.log.mu.Lock()
	hidden := s.finder.runs.hidden.Len()
	s.log.mu.Unlock()
	if hidden != 0 {
		t.Errorf("%d removals are still in memory", hidden)
	}
	absent(1, "after the removal left memory")
	wantAll(t, claimDone(t, s, 2, 3, time.Hour), semel.Duplicate)
	s = reopen(t, s)
	absent(1, "after another restart")
	remove(2)
	absent(2, "after the second removal")
	wantAll(t, claimDone(t, s, 1, 3, time.Hour), semel.Fresh)
}

// TestAnExpiredKeyDoesNotUncoverAnOlderEntry: a key was kept forever, removed, and done
// again for an hour.
func TestAnExpiredKeyDoesNotUncoverAnOlderEntry(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	wantAll(t, claimDone(t, s, 0, 10_000, semel.Forever), semel.Fresh)
	mustSpill(t, s)
	if _, err := s.Remove(t.Context(), key(1)); err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 1, 2, time.Hour), semel.Fresh)
	wantAll(t, claimDone(t, s, 10_000, 20_000, semel.Forever), semel.Fresh)
	c.advance(2 * time.Hour)
	mustSpill(t, s)
	for range 2 {
		if a := claimOne(t, s, semel.ClaimRequest{Key: key(1), Lease: time.Minute, Owner: semel.Owner{Nonce: 1}}); a.Decision != semel.Fresh {
			t.Fatalf("the key is %s", a.Decision)
		}
		s = reopen(t, s)
	}
}

func TestRunsAreDeletedWhenTheirKeysHaveExpired(t *testing.T) {
	t.Parallel()
	c := newHandClock()
	s := openAt(t, c)
	const n = 20_000
	for round := range 6 {
		wantAll(t, claimDone(t, s, round*n, (round+1)*n, time.Hour), semel.Fresh)
		if err := spillNow(s); err != nil {
			t.Fatal(err)
		}
		wantAll(t, claimDone(t, s, round*n, (round+1)*n, time.Hour), semel.Duplicate)
		c.advance(2 * time.Hour)
		if _, err := s.Purge(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := count(t, s).DiskBytes; got > 2<<20 {
			t.Fatalf("round %d: the store takes %d bytes", round, got)
		}
		if round%2 == 1 {
			s = reopen(t, s)
		}
	}
	files, err := filepath.Glob(filepath.Join(s.dir.path, "*"+run.IndexSuffix))
	if err != nil || len(files) > 2 {
		t.Errorf("files %q, %v", files, err)
	}
}

func TestListYieldsSpilledRecordsOnce(t *testing.T) {
	t.Parallel()
	opts := small()
	opts.KeepIDs = true
	s := open(t, t.TempDir(), opts)
	const n = 3000
	wantAll(t, claimDone(t, s, 0, n, time.Hour), semel.Fresh)
	mustSpill(t, s)
	wantAll(t, claimDone(t, s, n, 2*n, time.Hour), semel.Fresh)
	seen := make(map[string]int)
	for r, err := range s.List(t.Context(), semel.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if err := spillNow(s); err != nil { // what is not listed yet becomes runs
			t.Fatal(err)
		}
		seen[r.Key.ID]++
	}
	for i := range 2 * n {
		if got := seen[key(i).ID]; got != 1 {
			t.Fatalf("%s is listed %d times", key(i), got)
		}
	}
}

// TestAListingAgreesWithAModel changes the store while it is listed. A key that does not
// change is listed once, and one that was removed before the listing is not.
func TestAListingAgreesWithAModel(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 9))
	opts := small()
	opts.KeepIDs, opts.Fsync = true, Never
	s := open(t, t.TempDir(), opts)
	mergePairs(s)
	const n = 3000
	remove := func(id int) {
		t.Helper()
		if _, err := s.Remove(t.Context(), key(id)); err != nil {
			t.Fatal(err)
		}
	}
	next := n // newer keys are not compared
	step := func() {
		t.Helper()
		for range random.IntN(3) {
			wantAll(t, claimDone(t, s, next, next+200, semel.Forever), semel.Fresh)
			next += 200
		}
		var err error
		switch random.IntN(4) {
		case 0:
			err = Spill(t.Context(), s)
		case 1:
			err = mergeNow(s)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	wantAll(t, claimDone(t, s, 0, n, semel.Forever), semel.Fresh)
	known := make(map[int]bool)
	for id := range n {
		known[id] = true
	}
	for range 4 {
		for range 50 {
			id := random.IntN(n)
			remove(id)
			known[id] = random.IntN(2) == 0
			if known[id] {
				wantAll(t, claimDone(t, s, id, id+1, semel.Forever), semel.Fresh)
			}
			if random.IntN(20) == 0 {
				step()
			}
		}
		changed, seen := make(map[int]bool), make(map[string]int)
		for r, err := range s.List(t.Context(), semel.ListOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			seen[r.Key.ID]++
			if random.IntN(200) == 0 && next < 10*n {
				id := random.IntN(n)
				remove(id)
				known[id], changed[id] = false, true
				step()
			}
		}
		for id := range n {
			want := 0
			if known[id] {
				want = 1
			}
			if got := seen[key(id).ID]; got != want && !changed[id] {
				t.Fatalf("key %d is listed %d times, want %d", id, got, want)
			}
		}
	}
}

// TestAnOpenListingDoesNotKeepKeysInMemory stops a listing at its first record.
func TestAnOpenListingDoesNotKeepKeysInMemory(t *testing.T) {
	t.Parallel()
	opts := small()
	opts.MaxIndexBytes, opts.Fsync = minIndexBytes, Never
	s := open(t, t.TempDir(), opts)
	const n, most = 10_000, 170_000
	wantAll(t, claimDone(t, s, 0, n, semel.Forever), semel.Fresh)
	listed := 0
	for _, err := range s.List(t.Context(), semel.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		if listed++; listed > 1 {
			continue
		}
		for from := n; from < most; from += n {
			wantAll(t, claimDone(t, s, from, from+n, semel.Forever), semel.Fresh)
		}
		s.log.mu.Lock()
		if got := s.finder.index.count * 12; got > 3*minIndexBytes/2 {
			t.Errorf("the keys in memory take %d bytes", got)
		}
		s.log.mu.Unlock()
	}
	if listed < n || listed > most {
		t.Errorf("%d records", listed)
	}
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	for _, r := range s.finder.runs.list {
		if r.pins > 0 {
			t.Errorf("%s is still in use", r.Name())
		}
	}
}

// TestTheFileBesideARunIsMadeAgain damages and removes it.
func TestTheFileBesideARunIsMadeAgain(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(name string) error{
		"missing": os.Remove,
		"empty":   func(name string) error { return os.WriteFile(name, nil, 0o600) },
		"flipped": func(name string) error {
			b, err := os.ReadFile(name)
			if err == nil {
				b[len(b)/2] ^= 1
				err = os.WriteFile(name, b, 0o600)
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s := open(t, dir, small())
			wantAll(t, claimDone(t, s, 0, 10_000, semel.Forever), semel.Fresh)
			mustSpill(t, s)
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			files, err := filepath.Glob(filepath.Join(dir, "*"+run.IndexSuffix))
			if err != nil || len(files) == 0 {
				t.Fatal(files, err)
			}
			whole, err := os.ReadFile(files[0])
			if err == nil {
				err = damage(files[0])
			}
			if err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, small())
			wantAll(t, claimDone(t, s, 0, 10_000, semel.Forever), semel.Duplicate)
			if again, err := os.ReadFile(files[0]); err != nil || string(again) != string(whole) {
				t.Errorf("the file has %d bytes, had %d, %v", len(again), len(whole), err)
			}
		})
	}
}

// TestAFileBesideNoRunIsDeleted: a crash may leave one.
func TestAFileBesideNoRunIsDeleted(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := open(t, dir, small()).Close(); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, strings.TrimSuffix(runName(1, 3), run.Suffix)+run.IndexSuffix)
	if err := os.WriteFile(name, []byte("left"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, dir, small())
	if _, err := os.Stat(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file: %v", err)
	}
}

// TestDamageOfARunIsAnError takes a run away, and flips a bit in each of its parts.
func TestDamageOfARunIsAnError(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := openFault(t, fs)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 10_000, semel.Forever), semel.Fresh)
	mustSpill(t, s)
	first := s.finder.runs.list[0]
	name := filepath.Join(s.dir.path, first.Name())
	d := s.keys.digestOf(key(5))
	off, _ := first.Block(&d)
	if err := fs.FlipBit(name, off+100, 3); err != nil {
		t.Fatal(err)
	}
	var a [1]semel.ClaimAnswer
	var corrupt *CorruptError
	err = s.Claim(t.Context(), []semel.ClaimRequest{{Key: key(5), Done: true, Window: semel.Forever}}, a[:])
	if err != nil || !errors.As(a[0].Err, &corrupt) || corrupt.File != name || corrupt.Offset != off || a[0].Decision != semel.Undecided {
		t.Errorf("a damaged block: %s, %v, %v", a[0].Decision, a[0].Err, err)
	}
	if err := fs.FlipBit(name, 33, 3); err != nil {
		t.Fatal(err)
	}
	for _, gone := range []bool{false, true} {
		if gone {
			if err := fs.Remove(name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := openFault(t, fs.Survive(faultfs.Everything, nil)); !errors.As(err, &corrupt) {
			t.Errorf("opened: %v", err)
		}
	}
}

// TestAFullDiskKeepsKeysInMemory fills the disk before keys leave memory.
func TestAFullDiskKeepsKeysInMemory(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := openFault(t, fs)
	if err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 20_000, semel.Forever), semel.Fresh)
	fs.SetFree(10_000)
	if err := spillNow(s); !errors.Is(err, semel.ErrStoreFull) {
		t.Fatalf("spill on a full disk: %v, want ErrStoreFull", err)
	}
	records := make([]semel.Record, 1)
	if err := s.Look(t.Context(), []semel.Key{key(1)}, records); err != nil || records[0].State != semel.Done {
		t.Errorf("key 1 is %s, %v", records[0].State, err)
	}
	fs.SetFree(-1)
	mustSpill(t, s)
	wantAll(t, claimDone(t, s, 0, 20_000, semel.Forever), semel.Duplicate)
}

// TestClaimsAreRefusedBeyondTheLimit: claims do not leave memory. Those that are durable are
// copied when their segment leaves it, and must not keep that going without end.
func TestClaimsAreRefusedBeyondTheLimit(t *testing.T) {
	t.Parallel()
	for _, hold := range []bool{false, true} {
		t.Run(map[bool]string{false: "in memory", true: "durable"}[hold], func(t *testing.T) {
			t.Parallel()
			opts := small()
			opts.MaxIndexBytes, opts.Fsync = minIndexBytes, Never
			s := open(t, t.TempDir(), opts)
			claim := func(from, to int) (granted []semel.ReleaseRequest, refused error) {
				t.Helper()
				reqs, answers := make([]semel.ClaimRequest, to-from), make([]semel.ClaimAnswer, to-from)
				for i := range reqs {
					reqs[i] = semel.ClaimRequest{Key: key(from + i), Lease: time.Hour, Window: time.Hour, Hold: hold, Owner: semel.Owner{Nonce: 1}}
				}
				if err := s.Claim(t.Context(), reqs, answers); err != nil {
					t.Fatal(err)
				}
				for i, a := range answers {
					if a.Err != nil {
						return granted, a.Err
					}
					granted = append(granted, semel.ReleaseRequest{Key: reqs[i].Key, Token: a.Claim.Token})
				}
				return granted, nil
			}
			wantAll(t, claimDone(t, s, 0, 20_000, semel.Forever), semel.Fresh)
			granted, err := claim(100_000, 104_000)
			if err != nil {
				t.Fatal(err)
			}
			wantAll(t, claimDone(t, s, 20_000, 60_000, semel.Forever), semel.Fresh)
			if runCount(s) == 0 {
				t.Error("no key has left memory")
			}
			more, err := claim(104_000, 108_000)
			if !errors.Is(err, semel.ErrStoreFull) || len(more) == 0 {
				t.Fatalf("%d more claims were granted, %v", len(more), err)
			}
			wantAll(t, claimDone(t, s, 0, 60_000, semel.Forever), semel.Duplicate)
			errs := make([]error, len(granted))
			if err := errors.Join(s.Release(t.Context(), granted, errs), errors.Join(errs...)); err != nil {
				t.Fatal(err)
			}
			if _, err := claim(100_000, 101_000); err != nil {
				t.Errorf("after releases: %v", err)
			}
		})
	}
}

// TestNewKeysAreRefusedIfOldOnesCannotLeaveMemory damages the segment that must leave it.
func TestNewKeysAreRefusedIfOldOnesCannotLeaveMemory(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := Open("/d/store", &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes, MaxIndexBytes: minIndexBytes, Fsync: Never})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const batch = 5000
	wantAll(t, claimDone(t, s, 0, 2*batch, semel.Forever), semel.Fresh)
	if err := fs.FlipBit(filepath.Join("/d/store", segmentName(2)), 500, 1); err != nil {
		t.Fatal(err)
	}
	n := 2 * batch
	for ; n < 400_000 && err == nil; n += batch {
		reqs, answers := make([]semel.ClaimRequest, batch), make([]semel.ClaimAnswer, batch)
		for i := range reqs {
			reqs[i] = semel.ClaimRequest{Key: key(n + i), Done: true, Window: semel.Forever}
		}
		if failed := s.Claim(t.Context(), reqs, answers); failed != nil {
			t.Fatal(failed)
		}
		err = answers[batch-1].Err
	}
	if !errors.Is(err, semel.ErrStoreFull) || !errors.Is(err, semel.ErrCorrupt) {
		t.Errorf("refused with %v after %d keys, want ErrStoreFull because of ErrCorrupt", err, n)
	}
	if most := 3 * minIndexBytes / 12; n > most {
		t.Errorf("refused after %d keys, want at most %d", n, most)
	}
	wantAll(t, claimDone(t, s, n-3*batch, n-2*batch, semel.Forever), semel.Duplicate)
}

// TestAFailedDeletionLeavesNoGap keeps the first segment, and then the first run, from being
// deleted while later ones become needless.
func TestAFailedDeletionLeavesNoGap(t *testing.T) {
	t.Parallel()
	for _, kept := range []string{segmentName(1), runName(1, 1)} {
		t.Run(kept, func(t *testing.T) {
			t.Parallel()
			fs, c := faultfs.New(), newHandClock()
			opts := &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes, Clock: c.now}
			s, err := Open("/d/store", opts)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			var failed atomic.Int64
			fs.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.Remove && filepath.Base(op.Name) == kept {
					failed.Add(1)
					return errors.New("not now")
				}
				return nil
			})
			for round := range 4 {
				wantAll(t, claimDone(t, s, round*100, round*100+100, time.Hour), semel.Fresh)
				if round < 2 {
					_ = Spill(t.Context(), s)
				} else {
					nextSegment(t, s)
				}
				c.advance(2 * time.Hour)
				_, _ = s.Purge(t.Context())
			}
			wantAll(t, claimDone(t, s, 1000, 1100, time.Hour), semel.Fresh)
			if failed.Load() < 2 {
				t.Fatalf("%d deletions failed", failed.Load())
			}
			fs.SetHook(nil)
			left := *opts
			left.FS = fs.Survive(faultfs.Everything, nil)
			again, err := Open("/d/store", &left)
			if err != nil {
				t.Fatal(err)
			}
			defer again.Close()
			wantAll(t, claimDone(t, again, 1000, 1100, time.Hour), semel.Duplicate)
			for _, name := range left.FS.(*faultfs.FS).Files() {
				if filepath.Base(name) == kept {
					t.Errorf("%s is still there", name)
				}
			}
		})
	}
}

// TestDeletionsReachTheDiskInOrder loses power while runs are deleted whose deletion had
// failed before. A run without the one before it would be refused.
func TestDeletionsReachTheDiskInOrder(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 6))
	for at := 1; ; at++ {
		fs, c := faultfs.New(), newHandClock()
		opts := &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes, Clock: c.now}
		s, err := Open("/d/store", opts)
		if err != nil {
			t.Fatal(err)
		}
		fs.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.Remove && filepath.Ext(op.Name) == run.Suffix {
				return errors.New("not now")
			}
			return nil
		})
		for round := range 3 {
			wantAll(t, claimDone(t, s, round*100, round*100+100, time.Hour), semel.Fresh)
			_ = Spill(t.Context(), s) // it cannot delete the segments behind a run that is still there
			c.advance(2 * time.Hour)
			_, _ = s.Purge(t.Context())
		}
		wantAll(t, claimDone(t, s, 1000, 1100, time.Hour), semel.Fresh)
		fs.CrashAt(fs.Ops() + at)
		fs.SetHook(nil)
		_ = s.log.deleteFiles() // as the background may do
		if !fs.Crashed() {
			_ = s.Close() // the crash comes now
			if at < 4 {
				t.Errorf("%d operations", at)
			}
			return
		}
		_ = s.Close()
		for range 8 {
			left := *opts
			left.FS = fs.Survive(faultfs.Torn, random)
			again, err := Open("/d/store", &left)
			if err != nil {
				t.Fatalf("a crash at operation %d of the deletions: %v", at, err)
			}
			wantAll(t, claimDone(t, again, 1000, 1100, time.Hour), semel.Duplicate)
			if err := again.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestASpillKeepsTheNewestValue changes a value while its segment is spilled: the record with
// the new one is sealed, and not yet on the disk. The old one must not come behind it.
func TestASpillKeepsTheNewestValue(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), small())
	set := func(value string, before func() error) *Pending {
		t.Helper()
		tx, err := s.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tx.Set("position", []byte(value))
		return tx.Seal(before)
	}
	if err := set("old", nil).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantAll(t, claimDone(t, s, 0, 30_000, semel.Forever), semel.Fresh)
	durable := make(chan struct{})
	pending := set("new", func() error { <-durable; return nil })
	spilled := make(chan error)
	go func() { spilled <- spillNow(s) }()
	for waits := false; !waits; { // until the spill waits for the record
		select {
		case err := <-spilled:
			t.Fatalf("the spill did not wait for the new value: %v", err)
		case <-time.After(time.Millisecond):
		}
		s.log.mu.Lock()
		waits = len(s.finder.runs.list) == 0 && s.committer.last != nil && s.log.segments.first < s.log.active.num
		s.log.mu.Unlock()
	}
	close(durable)
	if err := errors.Join(pending.Wait(t.Context()), <-spilled); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if v, _ := s.Value("position"); string(v) != "new" {
			t.Errorf("the position is %q", v)
		}
		s = reopen(t, s)
	}
}
