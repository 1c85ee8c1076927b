package logstore

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"github.com/semel-dev/semel"
)

// TestClaimsAreAMap compares the table with a map. Many of the digests share a
// home or a tag, or lie at the end of the table.
func TestClaimsAreAMap(t *testing.T) {
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
	var table claims
	want := map[semel.Digest]semel.Token{}
	check := func() {
		t.Helper()
		if table.count != len(want) {
			t.Fatalf("the table has %d claims, want %d", table.count, len(want))
		}
		seen := map[semel.Digest]bool{}
		for d, c := range table.all() {
			if token, ok := want[*d]; !ok || token != c.token || seen[*d] {
				t.Fatalf("%v with token %d is in the table, want %d (%v), seen before: %v", d, c.token, token, ok, seen[*d])
			}
			seen[*d] = true
		}
		if len(seen) != len(want) {
			t.Fatalf("the table shows %d claims, want %d", len(seen), len(want))
		}
	}
	for i := range 60_000 {
		d := &digests[rnd.IntN(len(digests))]
		if phase := i / 10_000; rnd.IntN(4) < 1+phase%3 { // the table grows and shrinks
			token := semel.Token(i + 1)
			table.put(d, &claim{token: token})
			want[*d] = token
		} else {
			table.remove(d)
			delete(want, *d)
		}
		probe := &digests[rnd.IntN(len(digests))]
		token, ok := want[*probe]
		if c := table.get(probe); (c != nil) != ok || ok && c.token != token {
			t.Fatalf("step %d: %v is %v, want token %d (%v)", i, probe, c, token, ok)
		}
		if i%1000 == 0 {
			check()
		}
	}
	for d := range table.all() {
		gone := *d
		table.remove(d)
		delete(want, gone)
	}
	check()
	if most := len(table.nodes) * claimNodes; most > len(digests)+claimNodes {
		t.Errorf("%d claims took room for %d", len(digests), most)
	}
}
