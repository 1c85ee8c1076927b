// Package run keeps entries in files that are sorted by digest, with a filter of their
// digests in memory.
//
// A run is written once and never changed. Whether it may have a digest is known without a
// read, except for one in 250 that it does not have. One read of a block then tells. The
// run itself is the data. Its filter, and the table of its blocks, are in a file next to
// it, which is made again from the run if it is missing or damaged.
package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// A run is a header of one unit, and then blocks of whole units.
//
//	header  0 magic   8 version   12 length of meta   16 store id
//	        32 entries   40 units of the file   48 sum of the blocks' checksums
//	        52 zero   56 meta, then the checksum of all before
//	block   0 checksum of the rest, seeded with store id, file name and place
//	        4 units   8 entries   12 length of each, or 0 if they differ
//	        16 the entries
//
// Entries begin with their digest and are sorted by it. The digests of two blocks differ in
// their first 8 bytes.
const (
	magic   = "SEMELRUN"
	version = 1

	unit      = 4096
	headSize  = 56
	blockHead = 16
	// mostMeta bounds what a caller keeps in the header.
	mostMeta = unit - headSize - 4

	// Suffix ends the name of a run, and IndexSuffix that of the file next to it.
	Suffix      = ".run"
	IndexSuffix = ".idx"
	tempSuffix  = ".tmp"
)

// Place says where runs are and how their entries are read. It is the same for all runs of
// a store.
type Place struct {
	FS  vfs.FS
	Dir string
	// Store is repeated in each file, so that a file of another store is not taken for one
	// of this store.
	Store [16]byte
	// Size returns the length of an entry from its bytes 16 to 20.
	Size func(meta uint32) int
	// Unsynced wraps the error of a sync, so that the caller can tell it.
	Unsynced func(error) error
}

// sync makes a file durable.
func (p *Place) sync(file vfs.File) error {
	if err := file.Sync(); err != nil {
		return p.Unsynced(err)
	}
	return nil
}

// path returns the path of a file.
func (p *Place) path(name string) string { return filepath.Join(p.Dir, name) }

// seed is the seed of the blocks' checksums, so that a block is valid only in its own file.
func (p *Place) seed(name string) uint32 {
	return crc32.Update(crc32.Checksum(p.Store[:], castagnoli), castagnoli, []byte(name))
}

// Damage says that a file is not as it was written.
type Damage struct {
	File   string
	Offset int64
	Err    error
}

// Error implements error.
func (d *Damage) Error() string {
	return fmt.Sprintf("%s is damaged at offset %d: %v", d.File, d.Offset, d.Err)
}

// Unwrap returns the cause.
func (d *Damage) Unwrap() error { return d.Err }

// Run is an open run. Its methods are safe for concurrent use, except Close.
type Run struct {
	place   *Place
	name    string
	seed    uint32
	file    vfs.File
	meta    []byte
	entries int64
	units   uint32
	sum     uint32
	index   index
}

// Order returns the number by which digests are sorted first.
func Order(d *semel.Digest) uint64 { return binary.LittleEndian.Uint64(d[:8]) }

// Compare compares two digests.
func Compare(a, b *semel.Digest) int {
	if x, y := Order(a), Order(b); x != y {
		if x < y {
			return -1
		}
		return 1
	}
	return slices.Compare(a[8:], b[8:])
}

// Open opens a run. It makes the file next to it again if that is missing or damaged. The
// blocks are not read: each is verified when it is.
func Open(p *Place, name string) (*Run, error) {
	file, err := p.FS.Open(p.path(name))
	if err != nil {
		return nil, err
	}
	r := newRun(p, name, file)
	if err = r.readHead(); err == nil {
		err = r.loadIndex()
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return r, nil
}

func newRun(p *Place, name string, file vfs.File) *Run {
	return &Run{place: p, name: name, seed: p.seed(name), file: file}
}

// Close closes the file.
func (r *Run) Close() error { return r.file.Close() }

// Name returns the name of the file.
func (r *Run) Name() string { return r.name }

// Meta returns the data that the writer of the run kept in its header.
func (r *Run) Meta() []byte { return r.meta }

// Entries returns the number of entries.
func (r *Run) Entries() int64 { return r.entries }

// MemoryBytes returns the memory that the run takes.
func (r *Run) MemoryBytes() int64 { return r.index.bytes() }

// DiskBytes returns the length of the run and of the file next to it.
func (r *Run) DiskBytes() int64 { return int64(r.units)*unit + r.index.fileBytes() }

// MayHave reports whether the run may have a digest. It does not read.
func (r *Run) MayHave(d *semel.Digest) bool {
	return r.entries > 0 && r.index.filter.mayHave(Order(d))
}

// Block returns the place of the block that has a digest, if the run has it.
func (r *Run) Block(d *semel.Digest) (off int64, size int) {
	i := r.index.block(Order(d))
	from, to := r.index.at[i], r.units
	if i+1 < len(r.index.at) {
		to = r.index.at[i+1]
	}
	return int64(from) * unit, int(to-from) * unit
}

// ReadAt reads a part of the file.
func (r *Run) ReadAt(b []byte, off int64) error {
	if n, err := r.file.ReadAt(b, off); n < len(b) {
		return r.Damaged(off, errors.Join(errors.New("cannot read a block"), err))
	}
	return nil
}

// Find returns the entry of a digest from the bytes of its block, or nil if the run does
// not have it. off is the place of the block. The entry is a part of b.
func (r *Run) Find(b []byte, off int64, d *semel.Digest) ([]byte, error) {
	entries, n, err := r.checkBlock(b, off)
	if err != nil {
		return nil, err
	}
	order := Order(d)
	if same := int(binary.LittleEndian.Uint32(b[12:])); same > 0 {
		if same < entryHead || n*same > len(entries) {
			return nil, r.Damaged(off, errEntry)
		}
		// Skip the smaller ones.
		first := sort.Search(n, func(i int) bool { return binary.LittleEndian.Uint64(entries[i*same:]) >= order })
		entries, n = entries[first*same:], n-first
	}
	for range n {
		size, ok := r.entrySize(entries)
		if !ok {
			return nil, r.Damaged(off, errEntry)
		}
		if is := binary.LittleEndian.Uint64(entries); is > order {
			return nil, nil
		} else if is == order && semel.Digest(entries[:16]) == *d {
			return entries[:size], nil
		}
		entries = entries[size:]
	}
	return nil, nil
}

// entryHead is the part of an entry that tells its size.
const entryHead = 20

var errEntry = errors.New("the entries of a block do not fit into it")

func (r *Run) entrySize(b []byte) (size int, ok bool) {
	if len(b) < entryHead {
		return 0, false
	}
	size = r.place.Size(binary.LittleEndian.Uint32(b[16:]))
	return size, size >= entryHead && size <= len(b)
}

// checkBlock verifies a block and returns the bytes and the number of its entries.
func (r *Run) checkBlock(b []byte, off int64) (entries []byte, n int, err error) {
	if r.blockSum(b, off) != binary.LittleEndian.Uint32(b) ||
		int(binary.LittleEndian.Uint32(b[4:]))*unit != len(b) {
		return nil, 0, r.Damaged(off, errors.New("checksum mismatch in a block"))
	}
	return b[blockHead:], int(binary.LittleEndian.Uint32(b[8:])), nil
}

// blockSum returns the checksum of a block at its place.
func (r *Run) blockSum(b []byte, off int64) uint32 {
	var place [8]byte
	binary.LittleEndian.PutUint64(place[:], uint64(off))
	return crc32.Update(crc32.Update(r.seed, castagnoli, place[:]), castagnoli, b[4:])
}

// Damaged returns the error of a run that is not as it was written at an offset.
func (r *Run) Damaged(off int64, err error) error {
	return &Damage{r.place.path(r.name), off, err}
}

// readHead reads and verifies the header.
func (r *Run) readHead() error {
	b := make([]byte, unit)
	if err := r.ReadAt(b, 0); err != nil {
		return err
	}
	meta := int(binary.LittleEndian.Uint32(b[12:]))
	switch {
	case string(b[:8]) != magic:
		return r.Damaged(0, errors.New("not a run"))
	case meta > mostMeta || crc32.Checksum(b[:headSize+meta], castagnoli) != binary.LittleEndian.Uint32(b[headSize+meta:]):
		return r.Damaged(0, errors.New("header checksum mismatch"))
	case binary.LittleEndian.Uint32(b[8:]) != version:
		return r.Damaged(0, fmt.Errorf("unsupported format version %d, want %d: use the program that wrote the store", binary.LittleEndian.Uint32(b[8:]), version))
	case [16]byte(b[16:32]) != r.place.Store:
		return r.Damaged(0, errors.New("the run belongs to another store"))
	}
	r.entries = int64(binary.LittleEndian.Uint64(b[32:]))
	r.units = uint32(binary.LittleEndian.Uint64(b[40:]))
	r.sum = binary.LittleEndian.Uint32(b[48:])
	r.meta = b[headSize : headSize+meta]
	if size, err := r.file.Size(); err != nil || size != int64(r.units)*unit {
		return r.Damaged(size, errors.Join(fmt.Errorf("the file has %d bytes, want %d", size, int64(r.units)*unit), err))
	}
	return nil
}

// encodeHead returns the header of a run.
func (r *Run) encodeHead() []byte {
	b := make([]byte, unit)
	copy(b, magic)
	binary.LittleEndian.PutUint32(b[8:], version)
	binary.LittleEndian.PutUint32(b[12:], uint32(len(r.meta)))
	copy(b[16:], r.place.Store[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(r.entries))
	binary.LittleEndian.PutUint64(b[40:], uint64(r.units))
	binary.LittleEndian.PutUint32(b[48:], r.sum)
	end := headSize + copy(b[headSize:], r.meta)
	binary.LittleEndian.PutUint32(b[end:], crc32.Checksum(b[:end], castagnoli))
	return b
}

// Files returns the names of a run's files, in the order in which they are deleted.
func Files(name string) []string { return []string{name, indexName(name)} }

// Unfinished returns those of a directory's names that a writer or a deletion left, which
// may be deleted: files with temporary names, and files next to a run that does not exist.
func Unfinished(names []string) (left []string) {
	for _, name := range names {
		index, ok := strings.CutSuffix(name, IndexSuffix)
		if ok && !slices.Contains(names, index+Suffix) ||
			strings.HasSuffix(name, Suffix+tempSuffix) || strings.HasSuffix(name, IndexSuffix+tempSuffix) {
			left = append(left, name)
		}
	}
	return left
}

func indexName(name string) string { return strings.TrimSuffix(name, Suffix) + IndexSuffix }

// Scanner reads the entries of a run in order.
type Scanner struct {
	run     *Run
	buffer  []byte
	bytes   []byte // what is read and not yet visited
	off     int64  // of the current block
	next    int64  // of the block behind it
	block   int    // its number
	sum     uint32 // its checksum
	entries []byte // of the block, behind the current one
	left    int    // their number
	entry   []byte
	err     error
}

// scanBuffer is the length of a read.
const scanBuffer = 1 << 20

// Scan returns a scanner, which stands before the first entry.
func (r *Run) Scan() *Scanner { return &Scanner{run: r, next: unit, block: -1} }

// Next moves to the next entry. It returns false at the end, and after an error.
func (s *Scanner) Next() bool {
	for s.left == 0 {
		if s.err != nil || s.next >= int64(s.run.units)*unit {
			return false
		}
		if s.err = s.readBlock(); s.err != nil {
			return false
		}
	}
	size, ok := s.run.entrySize(s.entries)
	if !ok {
		s.err = s.run.Damaged(s.off, errEntry)
		return false
	}
	s.entry, s.entries = s.entries[:size], s.entries[size:]
	s.left--
	return true
}

// Entry returns the current entry. It is valid until the next call of Next.
func (s *Scanner) Entry() []byte { return s.entry }

// Err returns the error that ended the scan, if any.
func (s *Scanner) Err() error { return s.err }

// readBlock moves to the next block.
func (s *Scanner) readBlock() (err error) {
	s.off = s.next
	if err := s.fill(blockHead); err != nil {
		return err
	}
	size := int(binary.LittleEndian.Uint32(s.bytes[4:])) * unit
	if size == 0 || int64(size) > int64(s.run.units)*unit-s.off {
		return s.run.Damaged(s.off, errors.New("wrong length of a block"))
	}
	if err := s.fill(size); err != nil {
		return err
	}
	s.sum, s.block = binary.LittleEndian.Uint32(s.bytes), s.block+1
	s.entries, s.left, err = s.run.checkBlock(s.bytes[:size], s.off)
	s.bytes, s.next = s.bytes[size:], s.off+int64(size)
	return err
}

// fill makes n bytes from s.off on available.
func (s *Scanner) fill(n int) error {
	if len(s.bytes) >= n {
		return nil
	}
	size := max(n, int(min(scanBuffer, int64(s.run.units)*unit-s.off)))
	if cap(s.buffer) < size {
		s.buffer = make([]byte, size)
	}
	s.bytes = s.buffer[:size]
	return s.run.ReadAt(s.bytes, s.off)
}

// loadIndex reads the file next to a run, or makes it again.
func (r *Run) loadIndex() error {
	b, err := r.place.FS.ReadFile(r.place.path(indexName(r.name)))
	if err == nil && r.index.decode(b, r.place.Store, r.sum) == nil {
		return nil
	}
	// A missing file, and every other error, has one remedy.
	return r.rebuildIndex()
}

// rebuildIndex makes the index again from the run.
func (r *Run) rebuildIndex() error {
	r.index = index{}
	build := newFilterBuilder(r.entries)
	sum, block := uint32(0), -1
	s := r.Scan()
	for s.Next() {
		order := binary.LittleEndian.Uint64(s.Entry())
		if s.block != block {
			block = s.block
			sum += s.sum
			r.index.first, r.index.at = append(r.index.first, order), append(r.index.at, uint32(s.off/unit))
		}
		if err := build.add(order); err != nil {
			return err
		}
	}
	if s.Err() != nil {
		return s.Err()
	}
	if sum != r.sum {
		return r.Damaged(0, errors.New("the blocks are not those of the header"))
	}
	var err error
	if r.index.filter, err = build.finish(); err != nil {
		return err
	}
	// The run can be used without the file. The next open tries again, even if a loss of
	// power damages what is not synced.
	_ = r.saveIndex(func(vfs.File) error { return nil })
	return nil
}

// saveIndex replaces the file next to a run.
func (r *Run) saveIndex(sync func(vfs.File) error) error {
	p := r.place
	name := p.path(indexName(r.name))
	err := removeIfThere(p.FS, name+tempSuffix)
	var file vfs.File
	if err == nil {
		file, err = p.FS.Create(name + tempSuffix)
	}
	if err != nil {
		return err
	}
	head, end := r.index.head(p.Store, r.sum), make([]byte, 4)
	binary.LittleEndian.PutUint32(end, crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, r.index.filter.bytes))
	off := int64(0)
	for _, b := range [][]byte{head, r.index.filter.bytes, end} {
		if err == nil {
			_, err = file.WriteAt(b, off)
			off += int64(len(b))
		}
	}
	if err == nil {
		err = sync(file)
	}
	if err = errors.Join(err, file.Close()); err == nil {
		err = p.FS.Rename(name+tempSuffix, name)
	}
	return err
}

func removeIfThere(files vfs.FS, name string) error {
	if err := files.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
