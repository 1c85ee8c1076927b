package faultfs

import "math/bits"

const (
	pageSize   = 4096
	sectorSize = 512 // a disk writes a sector completely or not at all
)

// node is the content of a file: the seen content and the content on disk.
// Pages that were never written are absent and read as zero, so a large
// allocation costs nothing.
type node struct {
	pages    map[int64]*page
	unsynced map[int64]bool // pages with sectors that are not on disk
	size     int64
	diskSize int64
	backed   int64 // space is reserved up to this offset
}

// page is a part of a file. Each bit of dirty and lost stands for one sector.
type page struct {
	seen, disk [pageSize]byte
	dirty      uint8 // written since the last sync
	lost       uint8 // lost by a failed sync
}

func newNode() *node {
	return &node{pages: make(map[int64]*page), unsynced: make(map[int64]bool)}
}

func (n *node) readAt(p []byte, offset int64) {
	for len(p) > 0 {
		at := offset % pageSize
		step := min(int64(len(p)), pageSize-at)
		if pg := n.pages[offset/pageSize]; pg != nil {
			copy(p[:step], pg.seen[at:])
		} else {
			clear(p[:step])
		}
		p, offset = p[step:], offset+step
	}
}

// writeAt writes to the seen content.
func (n *node) writeAt(p []byte, offset int64) {
	n.size = max(n.size, offset+int64(len(p)))
	n.backed = max(n.backed, offset+int64(len(p)))
	for len(p) > 0 {
		at := offset % pageSize
		step := min(int64(len(p)), pageSize-at)
		pg := n.touch(offset/pageSize, at, at+step)
		copy(pg.seen[at:at+step], p)
		p, offset = p[step:], offset+step
	}
}

// touch returns a page for writing and marks the sectors of its bytes [from,
// to) as dirty.
func (n *node) touch(number, from, to int64) *page {
	pg := n.pages[number]
	if pg == nil {
		pg = new(page)
		n.pages[number] = pg
	}
	for s := from / sectorSize; s*sectorSize < to; s++ {
		pg.dirty |= 1 << s
		pg.lost &^= 1 << s
	}
	n.unsynced[number] = true
	return pg
}

// truncate sets the seen size. If the file grows again, the removed part reads
// as zero.
func (n *node) truncate(size int64) {
	for number := range n.pages {
		from := max(size-number*pageSize, 0)
		if from < pageSize && number*pageSize < n.size {
			clear(n.touch(number, from, pageSize).seen[from:])
		}
	}
	n.size = size
	n.backed = min(n.backed, size)
}

// sync writes to disk all sectors that no failed sync has lost.
func (n *node) sync() {
	for number := range n.unsynced {
		pg := n.pages[number]
		pg.write(pg.dirty)
		pg.dirty = 0
		if pg.lost == 0 {
			delete(n.unsynced, number)
		}
	}
	n.diskSize = n.size
}

// lose simulates a failed sync. The system considers the sectors clean, but
// they are not on disk.
func (n *node) lose() {
	for number := range n.unsynced {
		pg := n.pages[number]
		pg.lost |= pg.dirty
		pg.dirty = 0
	}
}

// write writes some sectors of a page to disk.
func (pg *page) write(sectors uint8) {
	for ; sectors != 0; sectors &= sectors - 1 {
		at := bits.TrailingZeros8(sectors) * sectorSize
		copy(pg.disk[at:at+sectorSize], pg.seen[at:])
	}
}

// flip inverts a bit in the seen content and on disk.
func (n *node) flip(offset int64, bit uint) {
	pg := n.pages[offset/pageSize]
	if pg == nil {
		pg = new(page)
		n.pages[offset/pageSize] = pg
	}
	pg.seen[offset%pageSize] ^= 1 << (bit % 8)
	pg.disk[offset%pageSize] ^= 1 << (bit % 8)
}
