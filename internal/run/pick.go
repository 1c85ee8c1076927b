package run

import "math/bits"

// mostMerged and mostMergedBytes bound a run that is merged by size, and so the space and the
// memory for a second filter that a merge needs.
const (
	mostMerged      = 1 << 27
	mostMergedBytes = 64 << 30
)

// Sized has a size, as a run has.
type Sized interface {
	Entries() int64
	DiskBytes() int64
}

// Pick returns where the newest of neighbouring runs begin that are worth a merge, or
// len(runs) if none are. They are at least fanIn runs of one class, with the newer ones of
// lower classes. Runs of a class differ in size by less than fanIn times, a power of 2.
//
// A run of more than half the size of the largest is merged no more. Before it, or when no
// more runs fit, two of a class are enough if what they make is such a run. Otherwise
// runs whose fanIn-fold is too large would stay as they are, and each lookup asks all of
// them.
//
// A run that may not be merged with the newer ones ends the search.
func Pick[R Sized](runs []R, fanIn int, mayJoin func(oldest R) bool) int {
	from := len(runs)
	class, same, entries, bytes, full := 0, 0, int64(0), int64(0), false
	for ; from > 0; from-- {
		r := runs[from-1]
		n, b := entries+r.Entries(), bytes+r.DiskBytes()
		if large(r.Entries(), r.DiskBytes()) || n > mostMerged || b > mostMergedBytes {
			full = same > 1 && large(entries, bytes)
			break
		}
		c := bits.Len64(uint64(r.Entries())) / (bits.Len(uint(fanIn)) - 1)
		if c > class && same >= fanIn || !mayJoin(r) {
			break
		}
		if c > class {
			class, same = c, 0
		}
		if c == class {
			same++
		}
		entries, bytes = n, b
	}
	if same < fanIn && !full {
		return len(runs)
	}
	return from
}

// large reports whether a run of some size is not merged again.
func large(entries, bytes int64) bool {
	return entries > mostMerged/2 || bytes > mostMergedBytes/2
}
