package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/semel-dev/semel/vfs"
)

// A segment is one file of the log: a header of headerSize bytes, then records.
// The file is allocated in full when it is created. It is cut to its length
// when it is sealed.
const (
	segmentMagic = "SEMELSEG"
	version      = 1 // of segments
	headerSize   = 64

	// Positions in the index count units of 4 bytes in a ring of segments. Each
	// segment takes the same stride, whatever its size.
	strideBits    = 24
	segmentStride = 4 << strideBits
	ringSize      = 1 << (posBits - strideBits)

	chunkBits = 18
	chunkSize = 1 << chunkBits
)

// segment is a file of the log. Store.mu guards its fields, except for constant
// fields and the writer's fields.
type segment struct {
	num  uint32
	file vfs.File
	base int64  // tick from which expiries count
	seed uint32 // of the checksums of its records

	next    int // offset of the next record or entry
	written int // the file is written up to here
	synced  int // the file is durable up to here; owned by the writer
	limit   int // allocated length of the file
	sealed  bool
	sealSeq uint32 // sequence number of the record that will seal it
	summary summary
	// window is the longest finite life of an entry in ticks. It determines how
	// soon the whole segment can be deleted.
	window int64

	// chunks hold the end of the log in memory, and parts of it that are read often. A
	// released chunk is nil. Data before memFrom was written by an earlier process, and
	// the chunk with memFrom lacks it. reads counts, for each chunk, how often the file
	// was read there. fromFile has the chunks that came from the file, which may be damaged.
	chunks   [][]byte
	reads    []uint8
	fromFile map[int]bool
	memFrom  int

	// marks has the start of the first record in each chunk-sized part of the
	// file. The record around a position is found from it. 0 means no record.
	marks []uint32

	pins int  // readers outside the lock
	dead bool // deleted; the last reader closes the file
}

// segmentTable maps positions and numbers to segments.
type segmentTable struct {
	ring  [ringSize]*segment
	first uint32 // number of the oldest segment
	swept uint32 // number of the oldest segment that slots may point to
}

// at returns the segment of a position, or nil if it was deleted.
func (t *segmentTable) at(pos uint64) *segment { return t.ring[pos>>strideBits] }

// byNum returns the segment with a number, or nil.
func (t *segmentTable) byNum(num uint32) *segment {
	if s := t.ring[num%ringSize]; s != nil && s.num == num {
		return s
	}
	return nil
}

// position returns the index position of an offset in the segment.
func (g *segment) position(off int) uint64 {
	return uint64(g.num%ringSize)<<strideBits | uint64(off)>>2
}

// offset returns the offset of a position in its segment.
func offset(pos uint64) int { return int(pos&(1<<strideBits-1)) << 2 }

// segmentName returns the file name of a segment.
func segmentName(num uint32) string { return fmt.Sprintf("%08d.seg", num) }

// parseSegmentName returns the number in a segment's file name.
func parseSegmentName(name string) (uint32, bool) {
	var num uint32
	if n, err := fmt.Sscanf(name, "%d.seg", &num); n != 1 || err != nil || segmentName(num) != name {
		return 0, false
	}
	return num, true
}

// encodeHeader returns a segment's header.
//
//	0  magic   8  version   12  number   16  store id   32  base tick
//	40  zeros  60  checksum of 0 to 60
func encodeHeader(num uint32, store storeID, base int64) []byte {
	b := make([]byte, headerSize)
	copy(b, segmentMagic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], num)
	copy(b[16:], store[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(base))
	binary.LittleEndian.PutUint32(b[60:], crc32.Checksum(b[:60], castagnoli))
	return b
}

// decodeHeader validates a segment's header and returns its base tick.
func decodeHeader(b []byte, num uint32, store storeID) (base int64, err error) {
	switch {
	case len(b) < headerSize || string(b[:8]) != segmentMagic:
		return 0, errors.New("not a segment file")
	case crc32.Checksum(b[:60], castagnoli) != binary.LittleEndian.Uint32(b[60:]):
		return 0, errors.New("header checksum mismatch")
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return 0, fmt.Errorf("unsupported format version %d, want %d", binary.LittleEndian.Uint32(b[8:]), version)
	case binary.LittleEndian.Uint32(b[12:]) != num:
		return 0, fmt.Errorf("the header has segment number %d", binary.LittleEndian.Uint32(b[12:]))
	case storeID(b[16:32]) != store:
		return 0, errors.New("the segment belongs to another store")
	}
	return int64(binary.LittleEndian.Uint64(b[32:])), nil
}

func newSegment(num uint32, base int64, header []byte) *segment {
	return &segment{
		num: num, base: base, seed: crc32.Checksum(header, castagnoli),
		next: headerSize, written: headerSize, synced: headerSize, memFrom: headerSize,
	}
}

// mark records the start of a record.
func (g *segment) mark(off int) {
	part := off >> chunkBits
	for len(g.marks) <= part {
		g.marks = append(g.marks, 0)
	}
	if g.marks[part] == 0 {
		g.marks[part] = uint32(off)
	}
}

// markBefore returns the start of a record at or before off.
func (g *segment) markBefore(off int) int {
	for part := min(off>>chunkBits, len(g.marks)-1); part >= 0; part-- {
		if m := int(g.marks[part]); m != 0 && m <= off {
			return m
		}
	}
	return headerSize
}

// memory returns n bytes at off if they are in memory. It copies them to
// scratch if they span two chunks. They are valid until the lock is released.
func (g *segment) memory(off, n int, scratch []byte) ([]byte, bool) {
	i := off >> chunkBits
	if !g.holds(off) {
		return nil, false
	}
	at := off & (chunkSize - 1)
	if at+n <= chunkSize {
		return g.chunks[i][at : at+n], true
	}
	b := scratch[:0]
	for len(b) < n {
		if !g.holds(i<<chunkBits | at) {
			return nil, false
		}
		c := g.chunks[i][at:]
		b = append(b, c[:min(len(c), n-len(b))]...)
		i, at = i+1, 0
	}
	return b, true
}

// holds reports whether the byte at off is in memory, if it was written.
func (g *segment) holds(off int) bool {
	i := off >> chunkBits
	return i < len(g.chunks) && g.chunks[i] != nil && (off >= g.memFrom || i < g.memFrom>>chunkBits)
}

// unchecked reports whether a part of the n bytes at off, which are in memory, came from the file.
func (g *segment) unchecked(off, n int) bool {
	return g.fromFile[off>>chunkBits] || g.fromFile[(off+n-1)>>chunkBits]
}

// pin keeps the file of a segment open for a reader outside the lock.
func (g *segment) pin() { g.pins++ }

// closeIfUnused closes the file of a deleted segment without readers. The file
// was only read and no longer exists, so no caller can use an error of Close.
func (g *segment) closeIfUnused() {
	if g.dead && g.pins == 0 && g.file != nil {
		_ = g.file.Close()
		g.file = nil
	}
}
