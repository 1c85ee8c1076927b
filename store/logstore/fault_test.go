package logstore

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/test/faultfs"
)

func openFault(t testing.TB, fs *faultfs.FS) (*Store, error) {
	t.Helper()
	s, err := Open("/d/store", &Options{FS: fs, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes})
	if err == nil {
		t.Cleanup(func() { s.Close() })
	}
	return s, err
}

// TestBitFlipsInTheLogAreRefusedOrHarmless flips bits in a closed and in a killed
// store. Each flip must be refused with file and offset, or change no
// acknowledged answer.
func TestBitFlipsInTheLogAreRefusedOrHarmless(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(seed(t), 2))
	for _, closed := range []bool{true, false} {
		fs := faultfs.New()
		h := newHistory()
		if !closed {
			fs.SetHook(func(op faultfs.Op) error {
				if op.Kind == faultfs.Truncate && op.N > 100 {
					return syscall.EIO // the close fails
				}
				return nil
			})
		}
		if err := crashWorkload(fs, h, 40); closed == (err != nil) {
			t.Fatalf("closed is %v, and the workload ended with %v", closed, err)
		}
		refused, flips := 0, tries(600)
		for range flips {
			left := fs.Survive(faultfs.Everything, nil)
			name, offset := randomByte(t, left, random)
			if err := left.FlipBit(name, offset, uint(random.IntN(8))); err != nil {
				t.Fatal(err)
			}
			s, err := openFault(t, left)
			var corrupt *CorruptError
			switch {
			case errors.As(err, &corrupt):
				refused++
				if !strings.HasPrefix(corrupt.File, "/d/store/") || !errors.Is(err, semel.ErrCorrupt) {
					t.Fatalf("%s at %d: the error does not name the file: %v", name, offset, err)
				}
			case err != nil:
				t.Fatalf("%s at %d: %v", name, offset, err)
			default:
				// A block of a run is verified when it is read.
				if err := h.check(s); err != nil && !(strings.HasSuffix(name, run.Suffix) && errors.Is(err, semel.ErrCorrupt)) {
					t.Fatalf("closed %v, %s at %d: opened, and %v", closed, name, offset, err)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if refused < flips/10 {
			t.Errorf("closed %v: only %d of %d flips were refused", closed, refused, flips)
		}
	}
}

// randomByte chooses a byte of the files of a store. It often chooses one at
// the end of the log.
func randomByte(t *testing.T, fs *faultfs.FS, random *rand.Rand) (name string, offset int64) {
	t.Helper()
	var names []string
	for _, name := range fs.Files() {
		if strings.HasSuffix(name, ".seg") || strings.HasSuffix(name, run.Suffix) || strings.HasSuffix(name, run.IndexSuffix) || filepath.Base(name) == identityName {
			names = append(names, name)
		}
	}
	name = names[random.IntN(len(names))]
	content, err := fs.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	used := int64(len(strings.TrimRight(string(content), "\x00")))
	if random.IntN(3) == 0 {
		return name, max(0, used-1-random.Int64N(40))
	}
	return name, random.Int64N(max(used, 1))
}

func TestStoreStopsAfterAFailedSync(t *testing.T) {
	t.Parallel()
	for _, kind := range []faultfs.OpKind{faultfs.Sync, faultfs.Write} {
		fs := faultfs.New()
		s, err := openFault(t, fs)
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, claimDone(t, s, 0, 10, semel.Forever), semel.Fresh)
		var syncs atomic.Int32
		failing := atomic.Bool{}
		failing.Store(true)
		fs.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.Sync {
				syncs.Add(1)
			}
			if op.Kind == kind && failing.CompareAndSwap(true, false) {
				return syscall.EIO
			}
			return nil
		})
		var a [1]semel.ClaimAnswer
		req := []semel.ClaimRequest{{Key: key(10), Done: true, Window: semel.Forever}}
		if err := s.Claim(t.Context(), req, a[:]); !errors.Is(err, semel.ErrStoreFailed) || !errors.Is(err, syscall.EIO) {
			t.Fatalf("%s fails: Claim: %v, want ErrStoreFailed and the cause", kind, err)
		}
		if a[0].Decision != semel.Undecided {
			t.Errorf("%s fails: Claim answers %s, and nothing of it is on the disk", kind, a[0].Decision)
		}
		before := syncs.Load()
		for range 3 {
			if err := s.Claim(t.Context(), req, a[:]); !errors.Is(err, semel.ErrStoreFailed) {
				t.Fatalf("%s failed: Claim: %v, want ErrStoreFailed", kind, err)
			}
		}
		if _, err := s.Begin(t.Context()); !errors.Is(err, semel.ErrStoreFailed) {
			t.Errorf("%s failed: Begin: %v, want ErrStoreFailed", kind, err)
		}
		if err := s.Close(); !errors.Is(err, semel.ErrStoreFailed) {
			t.Errorf("%s failed: Close: %v, want ErrStoreFailed", kind, err)
		}
		if got := syncs.Load(); got != before {
			t.Errorf("%s failed: %d more syncs", kind, got-before)
		}
		s, err = openFault(t, fs.Survive(faultfs.OnlySynced, nil))
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, claimDone(t, s, 0, 10, semel.Forever), semel.Duplicate)
	}
}

func TestAStoreOnAFullDiskRefusesAndContinuesLater(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := openFault(t, fs)
	if err != nil {
		t.Fatal(err)
	}
	fs.SetFree(3 * minSegmentSize)
	const batch = 500
	next := 0
	claim := func() error {
		reqs := make([]semel.ClaimRequest, batch)
		answers := make([]semel.ClaimAnswer, batch)
		for i := range reqs {
			reqs[i] = semel.ClaimRequest{Key: key(next + i), Done: true, Window: semel.Forever}
		}
		return s.Claim(context.Background(), reqs, answers)
	}
	held := claimOne(t, s, semel.ClaimRequest{Key: key(-1), Lease: time.Hour, Owner: semel.Owner{Nonce: 1}})
	for err = claim(); err == nil && next < 1e6; err = claim() {
		next += batch
	}
	if !errors.Is(err, semel.ErrStoreFull) || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d keys: %v, want ErrStoreFull and the cause", next, err)
	}
	extended := make([]semel.ExtendAnswer, 1)
	err = s.Extend(t.Context(), []semel.ExtendRequest{{Key: key(-1), Token: held.Claim.Token, Lease: time.Hour}}, extended)
	if err != nil || extended[0].Err != nil {
		t.Errorf("a lease cannot be extended while the disk is full: %v, %v", err, extended[0].Err)
	}
	fs.SetFree(-1)
	if err := claim(); err != nil {
		t.Fatalf("after there is space again: %v", err)
	}
	next += batch
	s = reopen(t, s)
	wantAll(t, claimDone(t, s, 0, next, semel.Forever), semel.Duplicate)
}

func TestFullDiskAtOpenIsRefused(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	fs.SetFree(1000)
	if _, err := openFault(t, fs); !errors.Is(err, semel.ErrStoreFull) {
		t.Fatalf("Open: %v, want ErrStoreFull", err)
	}
	fs.SetFree(-1)
	if _, err := openFault(t, fs); err != nil {
		t.Errorf("Open with space: %v", err)
	}
}

// TestBitFlipFoundInALookupIsAnError flips a bit of a digest after the store was
// opened. The store must not treat the key as new.
func TestBitFlipFoundInALookupIsAnError(t *testing.T) {
	t.Parallel()
	fs := faultfs.New()
	s, err := openFault(t, fs)
	if err != nil {
		t.Fatal(err)
	}
	const n = 40_000
	wantAll(t, claimDone(t, s, 0, n, semel.Forever), semel.Fresh)
	d := s.keys.hasher.Key(key(5))
	f, ok, pending, err := s.finder.find(new(op), &d)
	if ok || !pending || err != nil {
		t.Fatalf("key 5 is not in a file only: %v, %v, %v", ok, pending, err)
	}
	_ = f
	sh, tag := split(&d)
	x := &s.finder.index.shards[sh]
	pos := x.pos(x.seek(tag))
	name := filepath.Join(s.dir.path, segmentName(s.log.segments.at(pos).num))
	for _, at := range []int64{15, 3} {
		if err := fs.FlipBit(name, int64(offset(pos))+at, 4); err != nil {
			t.Fatal(err)
		}
		var a [1]semel.ClaimAnswer
		err = s.Claim(t.Context(), []semel.ClaimRequest{{Key: key(5), Done: true, Window: semel.Forever}}, a[:])
		if err != nil || !errors.Is(a[0].Err, semel.ErrCorrupt) || a[0].Decision != semel.Undecided {
			t.Fatalf("claim of a rotten key: %s, %v, %v, want ErrCorrupt", a[0].Decision, a[0].Err, err)
		}
	}
}

// TestBitFlipInAPartThatIsKeptInMemoryIsAnError flips a bit before the store reads a part of
// the log into memory because it is read often.
func TestBitFlipInAPartThatIsKeptInMemoryIsAnError(t *testing.T) {
	t.Parallel()
	for _, at := range []int64{15, 3} {
		fs := faultfs.New()
		s, err := Open("/d/store", &Options{FS: fs, CacheBytes: minCacheBytes}) // segments of several parts
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		wantAll(t, claimDone(t, s, 0, 40_000, semel.Forever), semel.Fresh)
		d := s.keys.hasher.Key(key(5))
		sh, tag := split(&d)
		x := &s.finder.index.shards[sh]
		pos := x.pos(x.seek(tag))
		g := s.log.segments.at(pos)
		if err := fs.FlipBit(filepath.Join(s.dir.path, segmentName(g.num)), int64(offset(pos))+at, 4); err != nil {
			t.Fatal(err)
		}
		s.opts.CacheBytes = 1 << 30 // there is room
		s.log.keepChunk(residentChunk{g, offset(pos) >> chunkBits})
		if !g.holds(offset(pos)) {
			t.Fatal("the part is not in memory")
		}
		var a [2]semel.ClaimAnswer
		requests := []semel.ClaimRequest{{Key: key(5), Done: true, Window: semel.Forever}, {Key: key(6), Done: true, Window: semel.Forever}}
		err = s.Claim(t.Context(), requests, a[:])
		if err != nil || !errors.Is(a[0].Err, semel.ErrCorrupt) || a[0].Decision != semel.Undecided {
			t.Errorf("claim of a rotten key: %s, %v, %v, want ErrCorrupt", a[0].Decision, a[0].Err, err)
		}
		if a[1].Decision != semel.Duplicate {
			t.Errorf("claim of another key: %s, %v", a[1].Decision, a[1].Err)
		}
	}
}

// TestSyncMakesAnsweredKeysDurable loses power after a call of Sync, under each
// Fsync setting.
func TestSyncMakesAnsweredKeysDurable(t *testing.T) {
	t.Parallel()
	for fsync := Always; fsync <= Never; fsync++ {
		fs := faultfs.New()
		s, err := Open("/d/store", &Options{FS: fs, Fsync: fsync, FsyncInterval: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, claimDone(t, s, 0, 3, time.Hour), semel.Fresh)
		if err := s.Sync(); err != nil {
			t.Fatal(err)
		}
		left, err := openFault(t, fs.Survive(faultfs.OnlySynced, nil))
		if err != nil {
			t.Fatal(err)
		}
		wantAll(t, claimDone(t, left, 0, 3, time.Hour), semel.Duplicate)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Sync(); !errors.Is(err, semel.ErrClosed) {
			t.Errorf("%s: Sync of a closed store says %v", fsync, err)
		}
		if err := left.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
