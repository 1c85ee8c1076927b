package faultfs

import (
	"maps"
	"math/bits"
	"math/rand/v2"
	"path/filepath"
	"slices"
)

// Policy selects the state after the program ends without closing its files.
type Policy uint8

const (
	// OnlySynced keeps synced data and nothing else: the power failed before
	// the disk received any other write.
	OnlySynced Policy = iota
	// Torn keeps synced data and any part of the rest. That is any 512-byte
	// sectors of unsynced writes in any order, any unsynced directory changes,
	// and any size in between.
	Torn
	// Everything keeps all that the program has seen: the process was killed,
	// and the operating system kept running.
	Everything
)

// String returns the policy's name.
func (p Policy) String() string {
	switch p {
	case OnlySynced:
		return "only synced"
	case Torn:
		return "torn"
	case Everything:
		return "everything"
	}
	return "invalid"
}

// Survive returns a new file system with the data that survives under the
// policy. All of it is on disk. The new file system has no locks, faults or
// limits. Survive does not change f, so you can call it again. It uses random
// for Torn only.
func (f *FS) Survive(policy Policy, random *rand.Rand) *FS {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := maps.Clone(f.disk)
	switch policy {
	case Everything:
		left = maps.Clone(f.seen)
	case Torn:
		for _, c := range f.pending {
			if random.IntN(2) == 0 {
				c.apply(left)
			}
		}
	}
	next := New()
	copies := make(map[*node]*node) // one file may have two names
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if !hasParents(left, name) {
			continue
		}
		n := left[name]
		if n != nil && copies[n] == nil {
			copies[n] = n.survive(policy, random)
		}
		next.seen[name] = copies[n]
		next.disk[name] = copies[n]
	}
	return next
}

// hasParents reports whether all parent directories of a name exist.
func hasParents(left entries, name string) bool {
	for dir := filepath.Dir(name); dir != "." && dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if n, ok := left[dir]; !ok || n != nil {
			return false
		}
	}
	return true
}

// survive returns a copy of a file with the data that survives under the
// policy.
func (n *node) survive(policy Policy, random *rand.Rand) *node {
	left := &node{pages: make(map[int64]*page, len(n.pages)), unsynced: make(map[int64]bool)}
	keeps := func(sector int64) bool { return policy == Everything }
	size := n.diskSize
	switch policy {
	case Everything:
		size = n.size
	case Torn:
		keeps = tear(random, n)
		switch random.IntN(3) {
		case 0:
			size = n.size
		case 1:
			size += random.Int64N(max(n.size-n.diskSize, n.diskSize-n.size)+1) * sign(n.size-n.diskSize)
		}
	}
	for _, number := range slices.Sorted(maps.Keys(n.pages)) {
		pg := *n.pages[number]
		for rest := pg.dirty | pg.lost; rest != 0; rest &= rest - 1 {
			s := bits.TrailingZeros8(rest)
			if keeps(number*(pageSize/sectorSize) + int64(s)) {
				pg.write(1 << s)
			}
		}
		if end := size - number*pageSize; end < pageSize {
			clear(pg.disk[max(end, 0):])
		}
		left.pages[number] = &page{seen: pg.disk, disk: pg.disk}
	}
	left.size, left.diskSize, left.backed = size, size, size
	return left
}

func sign(n int64) int64 {
	if n < 0 {
		return -1
	}
	return 1
}

// tear chooses which unsynced sectors of a file reach the disk. The choices are
// none, all, any, those before a point (writes in order) and those after a
// point (writes out of order).
func tear(random *rand.Rand, n *node) func(sector int64) bool {
	var sectors []int64
	for number := range n.unsynced {
		pg := n.pages[number]
		for rest := pg.dirty | pg.lost; rest != 0; rest &= rest - 1 {
			sectors = append(sectors, number*(pageSize/sectorSize)+int64(bits.TrailingZeros8(rest)))
		}
	}
	if len(sectors) == 0 {
		return func(int64) bool { return false }
	}
	slices.Sort(sectors)
	point := sectors[random.IntN(len(sectors))]
	switch random.IntN(6) {
	case 0:
		return func(int64) bool { return false }
	case 1:
		return func(int64) bool { return true }
	case 2:
		return func(sector int64) bool { return sector <= point }
	case 3:
		return func(sector int64) bool { return sector >= point }
	case 4: // all but one
		return func(sector int64) bool { return sector != point }
	}
	return func(int64) bool { return random.IntN(2) == 0 }
}
