package window

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/test/kafkatest"
)

// all yields all groups.
func (x *index) all(yield func(*group) bool) {
	for _, g := range x.numbered {
		if g != nil && !yield(g) {
			return
		}
	}
}

// TestIndexBehavesLikeAMap compares random changes with those of a map.
func TestIndexBehavesLikeAMap(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 0))
	x, want := newIndex(), map[string]*group{}
	for i := range 200_000 {
		few := 1 + i%40_000 // so that it grows and becomes empty
		key := fmt.Sprint(random.IntN(few))
		if near := x.near(nil, [][]byte{[]byte(key)}); want[key] != nil && len(near) != 1 || len(near) > 0 && want[near[0].key] != near[0] {
			t.Fatalf("step %d: near %s: %v", i, key, near)
		}
		switch g := x.get([]byte(key)); {
		case g != want[key]:
			t.Fatalf("step %d: %s: %v, want %v", i, key, g, want[key])
		case g == nil && i%40_000 < 30_000:
			g = &group{key: key}
			x.put(g)
			want[key] = g
		case g != nil && (random.IntN(2) == 0 || i%40_000 > 30_000):
			x.remove(g)
			delete(want, key)
		}
		if x.n != len(want) {
			t.Fatalf("step %d: %d groups, want %d", i, x.n, len(want))
		}
		if i%9_999 == 0 {
			got := slices.Collect(x.all)
			for _, g := range got {
				if want[g.key] != g || g.hash == 0 || x.at(g.number) != g {
					t.Fatalf("step %d: %q is there", i, g.key)
				}
			}
			if len(got) != len(want) {
				t.Fatalf("step %d: %d groups, want %d", i, len(got), len(want))
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want)) {
		x.remove(want[key])
	}
	if x.numbered != nil || x.free != nil {
		t.Error("an empty index keeps numbers")
	}
	for i := range x.shards {
		if x.shards[i].places != nil {
			t.Error("an empty index keeps memory")
		}
	}
}

func TestGroupsAreInTheOrderOfTheirKeys(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(kafkatest.NewSeed(t), 1))
	for n := range 600 {
		prefix := strings.Repeat("p\x00", random.IntN(6))
		var list []*group
		for range n {
			key := make([]byte, random.IntN(12))
			for i := range key {
				key[i] = "\x00\x01a\xff"[random.IntN(4)]
			}
			for range random.IntN(4) {
				key = append(key, "customer customer "[:random.IntN(18)]...)
			}
			list = append(list, &group{key: prefix + string(key)})
		}
		sortByKey(list, 0)
		if !slices.IsSortedFunc(list, func(a, b *group) int { return strings.Compare(a.key, b.key) }) {
			t.Fatalf("%d keys are not sorted", n)
		}
	}
}
