package digestmap

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/semel-dev/semel"
)

// TestMapMatchesAGoMap compares the table with a Go map. Many of the digests share a
// home or a tag, or lie at the end of the table.
func TestMapMatchesAGoMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	digests := make([]semel.Digest, 3000)
	for i := range digests {
		d := &digests[i]
		binary.LittleEndian.PutUint64(d[:8], rnd.Uint64())
		tag := rnd.Uint32N(40) // crowded homes
		switch i % 4 {
		case 1:
			tag = ^uint32(0) - tag // around the end of the table, whatever its size
		case 2:
			tag = rnd.Uint32()
		}
		binary.LittleEndian.PutUint32(d[12:], tag)
	}
	var table Map[semel.Token]
	want := map[semel.Digest]semel.Token{}
	check := func() {
		t.Helper()
		if table.Len() != len(want) {
			t.Fatalf("the table has %d values, want %d", table.Len(), len(want))
		}
		seen := map[semel.Digest]bool{}
		for d, c := range table.All() {
			if token, ok := want[*d]; !ok || token != *c || seen[*d] {
				t.Fatalf("%v with token %d is in the table, want %d (%v), seen before: %v", d, *c, token, ok, seen[*d])
			}
			seen[*d] = true
		}
		if len(seen) != len(want) {
			t.Fatalf("the table shows %d values, want %d", len(seen), len(want))
		}
	}
	for i := range 60_000 {
		d := &digests[rnd.IntN(len(digests))]
		if phase := i / 10_000; rnd.IntN(4) < 1+phase%3 { // the table grows and shrinks
			token := semel.Token(i + 1)
			table.Put(d, &token)
			want[*d] = token
		} else {
			table.Remove(d)
			delete(want, *d)
		}
		probe := &digests[rnd.IntN(len(digests))]
		token, ok := want[*probe]
		if c := table.Get(probe); (c != nil) != ok || ok && *c != token {
			t.Fatalf("step %d: %v is %v, want token %d (%v)", i, probe, c, token, ok)
		}
		if i%1000 == 0 {
			check()
		}
	}
	for d := range table.All() {
		gone := *d
		table.Remove(d)
		delete(want, gone)
	}
	check()
	if most := len(table.nodes) * blockNodes; most > len(digests)+blockNodes {
		t.Errorf("%d values took room for %d", len(digests), most)
	}
}
