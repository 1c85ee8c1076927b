package logstore

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// countingFS counts the reads of files.
type countingFS struct {
	vfs.OS
	reads atomic.Int64
}

func (f *countingFS) Open(name string) (vfs.File, error) {
	file, err := f.OS.Open(name)
	if err != nil {
		return nil, err
	}
	return countingFile{file, f}, nil
}

type countingFile struct {
	vfs.File
	fs *countingFS
}

func (f countingFile) ReadAt(b []byte, off int64) (int, error) {
	f.fs.reads.Add(1)
	return f.File.ReadAt(b, off)
}

// claimIDs claims ids with prints in one transaction and returns the decisions.
func claimIDs(t *testing.T, s *Store, ids []int, print func(id int) uint64) []semel.Decision {
	t.Helper()
	tx := begin(t, s)
	keys := TxKeys{}
	for _, id := range ids {
		keys.Digests = append(keys.Digests, s.Digester("test").String(fmt.Sprint(id)))
		keys.Prints = append(keys.Prints, print(id))
	}
	out := make([]semel.Decision, len(ids))
	if err := tx.Claim(keys, semel.Forever, out); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return out
}

func printOf(id int) uint64 { return uint64(id) + 1 }

// upTo returns the numbers from one to another.
func upTo(from, to int) (ids []int) {
	for id := from; id < to; id++ {
		ids = append(ids, id)
	}
	return ids
}

// TestKnownKeysInTheOrderOfTheLogTakeFewReads mixes keys of an earlier process with new ones.
func TestKnownKeysInTheOrderOfTheLogTakeFewReads(t *testing.T) {
	t.Parallel()
	const known = 20_000
	dir := t.TempDir()
	s := open(t, dir, nil)
	claimIDs(t, s, upTo(0, known), printOf)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	counting := new(countingFS)
	s = open(t, dir, &Options{FS: counting})
	before := counting.reads.Load()
	var ids []int
	for id := range known {
		if ids = append(ids, id); id%4 == 0 {
			ids = append(ids, known+id)
		}
	}
	for i, got := range claimIDs(t, s, ids, printOf) {
		if want := (ids[i] >= known); (got == semel.Fresh) != want || !want && got != semel.Duplicate {
			t.Fatalf("id %d: %s", ids[i], got)
		}
	}
	// Each run of a claim takes a read or a few for its known keys.
	if reads := counting.reads.Load() - before; reads > known/100 {
		t.Errorf("%d reads for %d known keys", reads, known)
	}
}

// TestPlacesThatAreReadOftenStayInMemory claims known keys in random order, with little and
// with more room for parts of the log.
func TestPlacesThatAreReadOftenStayInMemory(t *testing.T) {
	t.Parallel()
	const known = 60_000 // several chunks
	var reads []int64
	for _, cache := range []int64{minCacheBytes, 8 * chunkSize} {
		dir := t.TempDir()
		s := open(t, dir, nil)
		claimIDs(t, s, upTo(0, known), printOf)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		counting := new(countingFS)
		s = open(t, dir, &Options{FS: counting, CacheBytes: cache})
		before := counting.reads.Load()
		r := rand.New(rand.NewPCG(1, 2))
		for range 40 {
			ids := make([]int, 500)
			for i := range ids {
				ids[i] = r.IntN(known)
			}
			for i, got := range claimIDs(t, s, ids, printOf) {
				if got != semel.Duplicate {
					t.Fatalf("id %d: %s", ids[i], got)
				}
			}
		}
		reads = append(reads, counting.reads.Load()-before)
		s.log.mu.Lock()
		kept := int64(len(s.log.cache.resident)) * chunkSize
		s.log.mu.Unlock()
		if kept > cache {
			t.Errorf("%d bytes are kept, at most %d may be", kept, cache)
		}
	}
	if reads[1] > reads[0]/2 {
		t.Errorf("%d reads with little room, %d with more", reads[0], reads[1])
	}
}

// TestTransactionsAgreeWithAModel claims known, expired, removed and new keys, with equal
// and other prints, several times in a batch, over restarts.
func TestTransactionsAgreeWithAModel(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	})
	r := rand.New(rand.NewPCG(seed, 1))
	clock := newHandClock()
	dir := t.TempDir()
	opts := &Options{Clock: clock.now, SegmentSize: minSegmentSize, CacheBytes: minCacheBytes, Fsync: Never}
	s := open(t, dir, opts)
	type state struct {
		until time.Time
		print uint64
	}
	model := map[int]state{}
	for round := range 60 {
		if r.IntN(4) == 0 {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir, opts)
		}
		if r.IntN(4) == 0 {
			if err := spillNow(s); err != nil {
				t.Fatal(err)
			}
		}
		for range r.IntN(3) {
			id := r.IntN(4000)
			if _, err := s.RemoveDigest(t.Context(), s.Digester("test").String(fmt.Sprint(id))); err != nil {
				t.Fatal(err)
			}
			delete(model, id)
		}
		clock.advance(time.Duration(r.IntN(100)) * time.Second)
		window := time.Duration(1+r.IntN(30)) * time.Minute
		n := 1 + r.IntN(3000)
		keys, ids := TxKeys{}, make([]int, n)
		for i := range n {
			ids[i] = r.IntN(4000)
			if i > 0 && r.IntN(3) > 0 {
				ids[i] = (ids[i-1] + 1) % 4000
			}
			keys.Digests = append(keys.Digests, s.Digester("test").String(fmt.Sprint(ids[i])))
			keys.Prints = append(keys.Prints, uint64(r.IntN(3)))
		}
		out := make([]semel.Decision, n)
		tx := begin(t, s)
		if err := tx.Claim(keys, window, out); err != nil {
			t.Fatal(err)
		}
		if r.IntN(5) == 0 {
			tx.Abort()
			continue
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		now := clock.now()
		for i, id := range ids {
			want := semel.Fresh
			if was, ok := model[id]; ok && now.Before(was.until) {
				want = known(keys.Prints[i], was.print)
			} else {
				// The store rounds the end of a window up to a tick.
				until := time.Unix(0, expiryTick(now.UnixNano(), int64(window))*tickNanos)
				model[id] = state{until, keys.Prints[i]}
			}
			if out[i] != want {
				t.Fatalf("round %d, key %d of %d, id %d: %s, want %s", round, i, n, id, out[i], want)
			}
		}
	}
}
