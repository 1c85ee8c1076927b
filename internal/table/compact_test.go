package table_test

import (
	"encoding/binary"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

func TestCompactTableMatchesTheModel(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	for _, keys := range []int{1, 40, 4000, 300_000} {
		var tab table.Compact[[8]byte]
		digests := make([]semel.Digest, keys)
		for i := range digests {
			d := &digests[i]
			*d = randomDigest(r)
			switch {
			case i >= 5000: // all are even
			case i%8 == 0: // a shard is crowded, and its keys are at its last homes
				d[0], d[7], d[8] = 7, 0xff, 0xff
			case i%8 == 1: // or look like an empty slot, or nearly so
				*d = semel.Digest{0: 7, 1: byte(r.IntN(2)), 9: byte(i), 10: byte(i >> 8), 14: d[14], 15: d[15]}
			}
		}
		want := map[[15]byte][8]byte{}
		batch := make([]semel.Digest, 500)
		values := make([][8]byte, len(batch))
		outcomes := make([]table.Outcome, len(batch))
		for round := range max(20, 3*keys/len(batch)) {
			if r.IntN(30) == 0 {
				tab.Expect(int64(r.IntN(2 * keys)))
			}
			for i := range batch {
				batch[i] = digests[r.IntN(keys)]
				binary.LittleEndian.PutUint64(values[i][:], uint64(round))
			}
			expect := make([]table.Outcome, len(batch))
			for i := range batch {
				if _, ok := want[key(batch[i])]; !ok {
					want[key(batch[i])], expect[i] = values[i], table.Added
				}
			}
			tab.AddBatch(batch, values, outcomes)
			for i := range batch {
				if v := want[key(batch[i])]; outcomes[i] != expect[i] || values[i] != v {
					t.Fatalf("%v: %v with %v, want %v with %v", batch[i], outcomes[i], values[i], expect[i], v)
				}
			}
			if round%20 == 0 {
				d := &digests[r.IntN(keys)]
				w, known := want[key(*d)]
				if v, ok := tab.Find(d); v != w || ok != known {
					t.Fatalf("%v: found %v, %v, want %v, %v", *d, v, ok, w, known)
				}
				v, added := tab.Add(d, w)
				if added == known || *v != w {
					t.Fatalf("%v: added is %v with %v, want %v with %v", *d, added, *v, !known, w)
				}
				v[0]++
				want[key(*d)] = *v
			}
		}
		for d, w := range want {
			digest := semel.Digest(append(d[:], 0))
			if v, ok := tab.Find(&digest); !ok || v != w {
				t.Fatalf("%v: found %v, %v, want %v", digest, v, ok, w)
			}
		}
	}
}

// A table that knows how many keys will come grows in few steps, and not beyond them. If
// they do not come, it has at most eight times the memory.
func TestExpectedKeysMakeGrowthFaster(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	const keys = 200_000
	fill := func(expect func(added int) int64) (grown int, slots uint64) {
		var tab table.Compact[struct{}]
		for i := range keys {
			if i%1000 == 0 && expect != nil {
				tab.Expect(expect(i))
			}
			d := randomDigest(r)
			tab.Add(&d, struct{}{})
			if now := tab.Slots(); now != slots {
				grown++
				slots = now
			}
		}
		return grown, slots
	}
	smoothly, most := fill(nil)
	if most > keys*130/100 {
		t.Errorf("%d keys take %d slots", keys, most)
	}
	grown, slots := fill(func(int) int64 { return keys })
	if grown > smoothly/2 || slots > keys*125/100 {
		t.Errorf("with the right number the table grew %d times to %d slots, and %d times to %d slots without", grown, slots, smoothly, most)
	}
	if _, slots := fill(func(added int) int64 { return 64 * keys }); slots > 8*most {
		t.Errorf("with 64 times too many expected the table has %d slots, and %d without", slots, most)
	}
	if _, slots := fill(func(int) int64 { return keys / 64 }); slots > most*110/100 {
		t.Errorf("with 64 times too few expected the table has %d slots, and %d without", slots, most)
	}
}

// All yields each key once, in an order that does not depend on the order of insertion. A
// table that was cleared has none, and fills again.
func TestTableYieldsItsKeysInOrderAndIsFilledAgain(t *testing.T) {
	t.Parallel()
	r := newRand(t)
	var tab table.Compact[[8]byte]
	for range 3 {
		want := map[semel.Digest][8]byte{}
		for range 50_000 {
			d := randomDigest(r)
			d[15] = 0 // which is not kept
			v := [8]byte(d[2:])
			tab.Add(&d, v)
			want[d] = v
		}
		if n := tab.Len(); n != int64(len(want)) {
			t.Errorf("%d keys, want %d", n, len(want))
		}
		var last [2]uint64
		for d, v := range tab.All() {
			at := [2]uint64{uint64(d[0]), binary.LittleEndian.Uint64(d[1:])}
			if at[0] < last[0] || at[0] == last[0] && at[1] < last[1] {
				t.Fatalf("%x comes after %x", at, last)
			}
			last = at
			if got, ok := want[d]; !ok || got != v {
				t.Fatalf("%x has %x, want %x (%t)", d, v, got, ok)
			}
			delete(want, d)
		}
		if len(want) > 0 {
			t.Errorf("%d keys are missing", len(want))
		}
		before := tab.Bytes()
		tab.Clear()
		if tab.Len() != 0 || tab.Bytes() != before {
			t.Errorf("a cleared table has %d keys and %d bytes, of %d", tab.Len(), tab.Bytes(), before)
		}
	}
}
