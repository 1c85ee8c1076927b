package state

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestTrimmedChangelogKeepsLiveRecords compares with a search of all that was written.
func TestTrimmedChangelogKeepsLiveRecords(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	at := map[int]int64{} // by item
	l := &liveSet[int]{Slack: 100, Live: func(item int, offset int64) bool { return at[item] == offset }}
	var offsets []int64
	var sizes []int
	last := int64(0)
	for offset := int64(1); offset < 5000; offset += 1 + random.Int64N(3) {
		for range random.IntN(4) {
			item := random.IntN(20)
			if random.IntN(3) == 0 && at[item] != offset {
				delete(at, item)
				continue
			}
			if at[item] != offset {
				l.Put(item, offset)
				at[item] = offset
			}
		}
		offsets, sizes = append(offsets, offset), append(sizes, random.IntN(50))
		l.Stored(offset, sizes[len(sizes)-1])
		var want []int64
		for _, o := range at {
			want = append(want, o)
		}
		slices.Sort(want)
		var got []int64
		for _, o := range l.Oldest() {
			got = append(got, o)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("at %d: values at %d, want %d", offset, got, want)
		}
		first := offset
		if len(want) > 0 {
			first = want[0]
		}
		cut, ok := l.Cut()
		if ok != (first > last) || ok && cut != first {
			t.Fatalf("at %d: cut at %d, %t, want %d", offset, cut, ok, first)
		}
		last = max(last, first)
		sum := int64(0)
		for i, o := range offsets {
			if o >= last {
				sum += int64(sizes[i])
			}
		}
		if l.size != sum || l.Full(sum/2-51) == l.Full(sum/2-49) {
			t.Fatalf("at %d: %d bytes, want %d", offset, l.size, sum)
		}
	}
}
