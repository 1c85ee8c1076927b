package pipeline

import (
	"math/rand/v2"
	"testing"
)

// TestGroupTableBehavesLikeAMap compares the table with a map. Many groups share a slot, or are at the
// end of the table.
func TestGroupTableBehavesLikeAMap(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	numbers := make([]uint64, 2000)
	for i := range numbers {
		switch numbers[i] = rnd.Uint64(); i % 4 {
		case 1:
			numbers[i] = numbers[i]<<20 | uint64(rnd.IntN(40)) // many share a slot
		case 2:
			numbers[i] |= 0x1fffffff << 1 // at the end of every table
		}
		numbers[i] |= 1
	}
	var table groups
	want := map[uint64]*entry{}
	check := func() {
		t.Helper()
		n := 0
		for c := range table.all() {
			if n++; c.head == nil || want[c.group] != c.head || c.tail != c.head {
				t.Fatalf("group %x has %p to %p, want %p", c.group, c.head, c.tail, want[c.group])
			}
		}
		if n != len(want) || table.count != n {
			t.Fatalf("the table shows %d groups and counts %d, want %d", n, table.count, len(want))
		}
	}
	for i := range 60_000 {
		group := numbers[rnd.IntN(len(numbers))]
		if phase := i / 10_000; rnd.IntN(4) < 1+phase%3 { // it grows, and shrinks
			it := &entry{Item: &Item{Group: group}}
			c := table.at(group)
			c.head, c.tail = it, it
			want[group] = it
		} else if table.count > 0 {
			table.remove(table.find(group))
			delete(want, group)
		}
		probe := numbers[rnd.IntN(len(numbers))]
		if table.count == 0 {
			continue
		}
		if c := table.find(probe); c.head != want[probe] {
			t.Fatalf("step %d: group %x begins with %p, want %p", i, probe, c.head, want[probe])
		}
		if i%1000 == 0 {
			check()
		}
	}
	check()
}
