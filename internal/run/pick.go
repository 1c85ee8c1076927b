package run

import "math/bits"

// mostMerged and mostMergedBytes bound a run that is merged by size, and so the space and the
// memory for a second filter that a merge needs.
const (
	mostMerged      = 1 << 27
	mostMergedBytes = 64 << 30
)

// sized has a size, as a run has.
type sized interface {
	Entries() int64
	DiskBytes() int64
}

// Pick returns the newest neighbours among runs that are worth a merge, or none: at least
// fanIn runs of one class, with the newer ones of lower classes. Runs of a class differ in
// size by less than fanIn times, a power of 2.
//
// A run of more than half the size of the largest is not merged by size again. Where such a
// run ends a group, or no more runs fit in, two of a class are enough if the group makes
// such a run. Otherwise runs whose fanIn-fold is too large would stay as they are, and each
// lookup asks all of them.
//
// Runs join a group from the newest to the oldest, each only if mayJoin permits it. Its
// argument is the group with the run, which is the first.
func Pick[R sized](runs []R, fanIn int, mayJoin func(group []R) bool) (from, to int) {
	for to = len(runs); to > 0; to-- {
		if from, worth := groupBefore(runs, to, fanIn, mayJoin); worth {
			return from, to
		}
	}
	return 0, 0
}

// groupBefore returns where the group begins whose newest run stands before to, and whether it
// is worth a merge.
func groupBefore[R sized](runs []R, to, fanIn int, mayJoin func(group []R) bool) (from int, worth bool) {
	class, same, entries, bytes := 0, 0, int64(0), int64(0)
	for from = to; from > 0; from-- {
		r := runs[from-1]
		n, b := entries+r.Entries(), bytes+r.DiskBytes()
		if large(r.Entries(), r.DiskBytes()) || n > mostMerged || b > mostMergedBytes {
			return from, same >= fanIn || same > 1 && large(entries, bytes)
		}
		c := bits.Len64(uint64(r.Entries())) / (bits.Len(uint(fanIn)) - 1)
		if c > class && same >= fanIn || !mayJoin(runs[from-1:to]) {
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
	return from, same >= fanIn
}

// large reports whether a run of some size is not merged by size again.
func large(entries, bytes int64) bool {
	return entries > mostMerged/2 || bytes > mostMergedBytes/2
}
