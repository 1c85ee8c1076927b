package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path/filepath"

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

// createSegment creates a durable, allocated segment without records. It
// creates the file under a temporary name and renames it, so that a segment
// file always has a valid header.
func (s *Store) createSegment(num uint32, size int) (*segment, error) {
	base := s.clock.Nanos() / tickNanos
	g := newSegment(num, base, encodeHeader(num, s.id.store, base))
	name, temp := filepath.Join(s.dir, segmentName(num)), filepath.Join(s.dir, segmentName(num)+".tmp")
	file, err := s.makeSegmentFile(temp, encodeHeader(num, s.id.store, base), size)
	if err == nil {
		err = s.fs.Rename(temp, name)
	}
	if err == nil {
		err = syncFailed(s.fs.SyncDir(s.dir))
	}
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return nil, fmt.Errorf("logstore: create segment %d: %w", num, err)
	}
	g.file, g.limit = file, size
	return g, nil
}

// tempSuffix is the name suffix of a segment that is being created.
const tempSuffix = ".seg.tmp"

func (s *Store) makeSegmentFile(temp string, header []byte, size int) (vfs.File, error) {
	if err := s.removeIfThere(temp); err != nil {
		return nil, err
	}
	file, err := s.fs.Create(temp)
	if err != nil {
		return nil, err
	}
	if err = extend(file, 0, size); err == nil {
		_, err = file.WriteAt(header, 0)
	}
	if err == nil {
		err = syncFailed(file.Sync())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), s.fs.Remove(temp))
	}
	return file, nil
}

// extend allocates a file from one length to another and writes zeros there. A
// later sync of data in that range then does not wait for the file system's
// journal. It writes and syncs in steps: a large write would need a large sync,
// and other syncs can run between the steps.
func extend(file vfs.File, from, to int) error {
	const (
		step      = 64 << 10
		syncEvery = 4 << 20
	)
	if err := file.Allocate(int64(to)); err != nil {
		return err
	}
	zeros := make([]byte, min(step, to-from))
	for off := from; off < to; off += len(zeros) {
		if _, err := file.WriteAt(zeros[:min(len(zeros), to-off)], int64(off)); err != nil {
			return err
		}
		if (off-from)%syncEvery == syncEvery-step {
			if err := file.Sync(); err != nil {
				return syncFailed(err)
			}
		}
	}
	return nil
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

// put copies bytes into memory at off.
func (s *Store) put(g *segment, off int, b []byte) {
	for len(b) > 0 {
		n := copy(s.chunk(g, off>>chunkBits)[off&(chunkSize-1):], b)
		b = b[n:]
		off += n
	}
}

// chunk returns a chunk for writing. It creates the chunk if necessary.
func (s *Store) chunk(g *segment, i int) []byte {
	for len(g.chunks) <= i {
		g.chunks = append(g.chunks, nil)
	}
	if g.chunks[i] == nil {
		if n := len(s.freeChunks); n > 0 {
			g.chunks[i], s.freeChunks = s.freeChunks[n-1], s.freeChunks[:n-1]
		} else {
			g.chunks[i] = make([]byte, chunkSize)
		}
		s.resident = append(s.resident, residentChunk{g, i})
	}
	return g.chunks[i]
}

// residentChunk identifies a chunk that is in memory.
type residentChunk struct {
	segment *segment
	index   int
}

// trimChunks releases the oldest written chunks above the limit.
func (s *Store) trimChunks() {
	n := 0
	for (len(s.resident)-n)*chunkSize > int(s.opts.CacheBytes) {
		c := s.resident[n]
		end := (c.index + 1) << chunkBits
		growing := c.segment == s.active && c.segment.next < end
		if growing || c.segment.written < min(end, c.segment.next) {
			break
		}
		if len(s.freeChunks) < freeChunks {
			s.freeChunks = append(s.freeChunks, c.segment.chunks[c.index])
		}
		c.segment.chunks[c.index] = nil
		delete(c.segment.fromFile, c.index)
		n++
	}
	if n > 0 {
		s.resident = append(s.resident[:0], s.resident[n:]...)
	}
}

// freeChunks is the number of chunks that are kept for reuse.
const freeChunks = 8

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

// worthReads is the number of reads that take about as long as to read a chunk.
const worthReads = 64

// countRead notes a read of the file, and reports whether the chunk there is worth its
// memory. The caller holds the lock.
func (s *Store) countRead(c residentChunk) bool {
	g, i := c.segment, c.index
	start, end := i<<chunkBits, (i+1)<<chunkBits
	if whole := end <= g.memFrom || start >= g.memFrom && end <= g.written; !whole || !s.roomForChunk() {
		return false
	}
	for len(g.reads) <= i {
		g.reads = append(g.reads, 0)
	}
	g.reads[i]++
	return g.reads[i]%worthReads == 0
}

// roomForChunk reports whether another chunk may be in memory.
func (s *Store) roomForChunk() bool {
	return (len(s.resident)+1)*chunkSize <= int(s.opts.CacheBytes)
}

// keepChunk reads a chunk into memory, where it stays until newer ones need the space. A
// failed read is left to the caller who needs the data.
func (s *Store) keepChunk(c residentChunk) {
	g, i := c.segment, c.index
	b := make([]byte, chunkSize)
	if n, _ := g.file.ReadAt(b, int64(i)<<chunkBits); n < len(b) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if g.dead || i < len(g.chunks) && g.chunks[i] != nil || !s.roomForChunk() {
		return
	}
	for len(g.chunks) <= i {
		g.chunks = append(g.chunks, nil)
	}
	g.chunks[i] = b
	if g.fromFile == nil {
		g.fromFile = map[int]bool{}
	}
	g.fromFile[i] = true
	s.resident = append(s.resident, c)
}

// pin keeps the file of a segment open for a reader outside the lock.
func (g *segment) pin() { g.pins++ }

// unpin releases a pin.
func (s *Store) unpin(g *segment) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unpinLocked(g)
}

// unpinLocked releases a pin. The caller holds the lock.
func (s *Store) unpinLocked(g *segment) {
	g.pins--
	g.closeIfUnused()
}

// closeIfUnused closes the file of a deleted segment without readers. The file
// was only read and no longer exists, so no caller can use an error of Close.
func (g *segment) closeIfUnused() {
	if g.dead && g.pins == 0 && g.file != nil {
		_ = g.file.Close()
		g.file = nil
	}
}
