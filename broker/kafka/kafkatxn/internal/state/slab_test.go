package state

import (
	"bytes"
	"testing"
)

// TestValuesOfDifferentKeysDoNotCollide although several share an allocation.
func TestValuesOfDifferentKeysDoNotCollide(t *testing.T) {
	t.Parallel()
	var numbers Slab[int]
	var copies ByteSlab
	var all []*int
	var texts [][]byte
	text := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, i%600) }
	for i := range 3000 {
		n := numbers.New()
		if *n != 0 {
			t.Fatalf("value %d is %d", i, *n)
		}
		*n = i
		b := text(i)
		if s := copies.Text(b); s != string(b) {
			t.Fatalf("text %d is %q", i, s)
		}
		c := copies.Clone(b)
		clear(b)
		all, texts = append(all, n), append(texts, c)
		_ = append(c, "more"...)
	}
	for i := range all {
		if *all[i] != i || !bytes.Equal(texts[i], text(i)) {
			t.Fatalf("value %d is %d, and its bytes are %v", i, *all[i], texts[i])
		}
	}
	if copies.Clone(nil) != nil || copies.Clone([]byte{}) == nil {
		t.Error("a copy of nothing is nil only if that is")
	}
}

// TestValuesShareAllocations: that is what slabs are for.
func TestValuesShareAllocations(t *testing.T) {
	var numbers Slab[[3]int]
	var copies ByteSlab
	n := testing.AllocsPerRun(100, func() {
		for range slabValues {
			numbers.New()
			copies.Clone([]byte("0123456789abcdef"))
		}
	})
	if n > 3 {
		t.Errorf("%v allocations for %d values", n, slabValues)
	}
}
