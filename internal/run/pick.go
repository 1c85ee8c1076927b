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
// fanIn runs that become one of a higher class than each of them. Runs of a class differ in
// size by less than fanIn times, a power of 2. So fanIn runs of one class always become one
// of a higher class, and those of lower classes between them count, too. An empty run counts
// as one entry.
//
// A run of more than half the size of the largest is not merged by size again. Where such a
// run ends a group, or no more runs fit in, two are enough if they become such a run.
// Otherwise runs whose fanIn-fold is too large would stay as they are, and each lookup asks
// all of them.
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
	classOf := func(entries int64) int { return bits.Len64(uint64(entries)) / (bits.Len(uint(fanIn)) - 1) }
	highest, entries, bytes := 0, int64(0), int64(0)
	for from = to; from > 0; from-- {
		r := runs[from-1]
		n, b := entries+max(r.Entries(), 1), bytes+r.DiskBytes()
		if large(r.Entries(), r.DiskBytes()) || n > mostMerged || b > mostMergedBytes {
			worth = worth || to-from > 1 && large(entries, bytes)
			break
		}
		c := classOf(r.Entries())
		if c > highest && worth || !mayJoin(runs[from-1:to]) {
			break
		}
		highest, entries, bytes = max(highest, c), n, b
		worth = to-from+1 >= fanIn && classOf(entries) > highest
	}
	return from, worth
}

// large reports whether a run of some size is not merged by size again.
func large(entries, bytes int64) bool {
	return entries > mostMerged/2 || bytes > mostMergedBytes/2
}
