package logstore

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/semel-dev/semel"
)

// TestTheScreenAgreesWithTheFilters asks for spilled, present and new keys, in the order of
// their requests and at random, with few and with many runs.
func TestTheScreenAgreesWithTheFilters(t *testing.T) {
	t.Parallel()
	const n, spills = 2000, 3
	s := open(t, t.TempDir(), small())
	for i := range spills {
		claimIDs(t, s, upTo(i*n, (i+1)*n), printOf)
		nextSegment(t, s)
		claimIDs(t, s, upTo(-i-1, -i), printOf) // the segment before is sealed
		mustSpill(t, s)
	}
	claimIDs(t, s, upTo(spills*n, (spills+1)*n), printOf)
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	f := s.finder
	if len(f.runs.list) < spills {
		t.Fatalf("%d runs", len(f.runs.list))
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	digests := make([]semel.Digest, 1000)
	for i, id := range random.Perm((spills + 2) * n)[:len(digests)] {
		digests[i] = s.Digester("test").String(fmt.Sprint(id))
	}
	var screen screen
	screen.begin(digests)
	few := f.runs.list
	for _, list := range [][]*sortedRun{few, few[1:], slices.Repeat(few, mostScreened/len(few)+2)} {
		for _, i := range slices.Concat(upTo(0, 100), random.Perm(len(digests))) {
			d := &digests[i]
			may := screen.of(d, i, list, &f.index)
			sh, tag := split(d)
			x := &f.index.shards[sh]
			for j, r := range list[:min(len(list), mostScreened)] {
				want := r.MayHave(d) || x.has(x.seek(tag), tag)
				if got := may>>j&1 != 0; got != want {
					t.Fatalf("request %d, run %d of %d: %t, want %t", i, j, len(list), got, want)
				}
			}
			if got := screen.of(&digests[(i+1)%len(digests)], i, list, &f.index); got != math.MaxUint64 {
				t.Fatalf("another digest: %b", got)
			}
		}
	}
	if got := screen.of(&digests[0], len(digests), few, &f.index); got != math.MaxUint64 {
		t.Errorf("a request behind the last one: %b", got)
	}
}
