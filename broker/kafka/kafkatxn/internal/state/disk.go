package state

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/vfs"
)

// Disk is the copy of a changelog on disk: what one partition's state has applied of it, in
// files that only grow:
//
//	file:  "SEMELKC2" (8), id of the changelog's topic (16), checksum of the rest of the header
//	       (4), number of the oldest file that counted when this one was the newest (4), frames
//	frame: length of the record (4), checksum of what follows (4),
//	       position before it (8), position behind it (8), record
//
// Nothing is synced, because it is a copy. A frame whose checksum does not hold, or
// that does not continue where the one before ended, ends what is read, and the
// rest comes from the changelog. It is written after a commit is known, so it
// may lag and never leads. A loss of power may take the first files and leave others: the number
// in the newest file shows that, and then no file counts. One goroutine uses it at a time.
//
// A state may leave values of records on disk and read them again by a Ref. A copy that
// has failed is of no use to such a state, which must then be built from the changelog.
type Disk struct {
	fs        vfs.FS
	dir       string
	suffix    string
	changelog ID
	most      int64 // size of a file

	file   vfs.File
	out    *bufio.Writer // to the end of the file
	size   int64         // with what out holds
	next   int64         // the position after the last frame
	from   int64         // the position before the first frame
	sealed []sealedFile  // older files, oldest first, with consecutive numbers
	number int           // of the file
	used   int           // the greatest number that a file, or one that was replaced, has had
	// replaced are files that are older than the sealed ones. A Spiller has what was in them.
	replaced Extent
	failed   error
}

// Extent is a part of a copy: the files with these numbers, and the positions before their
// first record and behind their last one. The zero Extent has no file.
type Extent struct {
	First, Last int
	From, Next  int64
}

type sealedFile struct {
	number int
	end    int64    // the position after the last frame
	file   vfs.File // nil until it is read
}

const (
	magic   = "SEMELKC2"
	sumAt   = 24 // of the checksum in a header
	firstAt = 28 // of the number of the oldest file
	// HeaderSize is the size of a file without frames, and FrameSize that of a frame
	// without its record.
	HeaderSize  = 32
	FrameSize   = 24
	maxFileSize = 32 << 20
)

// Castagnoli is the table of all checksums.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrEnd is returned by a function that applies records if a record ends what is read.
var ErrEnd = errors.New("kafka: no record that can be applied")

// Place is where the log has a record. The zero Place stands for no record.
type Place struct{ file, at uint32 }

// Ref is where the log has a part of a record. The zero Ref stands for no part.
type Ref struct{ file, at, size, sum uint32 }

// Part returns the place of a part of the record, which is at an offset.
func (p Place) Part(at int, part []byte) Ref {
	return Ref{p.file, p.at + uint32(at), uint32(len(part)), crc32.Checksum(part, Castagnoli)}
}

// Again returns the place of the same part in another record, where it is at an offset.
func (r Ref) Again(p Place, at int) Ref { return Ref{p.file, p.at + uint32(at), r.size, r.sum} }

// RefSize is the number of bytes that Append appends.
const RefSize = 16

// Append appends a Ref as bytes.
func (r Ref) Append(dst []byte) []byte {
	for _, n := range []uint32{r.file, r.at, r.size, r.sum} {
		dst = binary.LittleEndian.AppendUint32(dst, n)
	}
	return dst
}

// RefAt returns the Ref that Append appended.
func RefAt(b []byte) Ref {
	n := func(i int) uint32 { return binary.LittleEndian.Uint32(b[4*i:]) }
	return Ref{n(0), n(1), n(2), n(3)}
}

// Size returns the number of bytes. It is 0 for the zero Ref.
func (r Ref) Size() int { return int(r.size) }

// Apply adds a record to a state. The position is the one after the record. After ErrEnd,
// this record and all behind it are removed.
type Apply func(value []byte, position int64, place Place) error

// New returns the log of a topic in a directory. The names of its files have a suffix. It
// must be opened.
func NewDisk(files vfs.FS, dir, suffix string, changelog ID) *Disk {
	return &Disk{fs: files, dir: dir, suffix: suffix, changelog: changelog, most: maxFileSize}
}

// SetFileSize sets how large a file must be for Tidy to begin another one.
func (d *Disk) SetFileSize(bytes int64) { d.most = bytes }

// Continue makes the copy continue behind files that a Spiller has replaced, unless older ones
// are missing, or none of them counts: then it reports false. Once, the files from number oldest on
// counted. Open follows.
func (d *Disk) Continue(e Extent, oldest int) (bool, error) {
	names, err := d.fs.List(d.dir)
	if err != nil {
		return false, fmt.Errorf("kafka: state directory: %w", err)
	}
	d.begun(e)
	_, whole, err := d.first(names, oldest)
	if !whole || err != nil {
		d.begun(Extent{})
	}
	return whole, err
}

// begun makes the copy have only what is replaced.
func (d *Disk) begun(e Extent) {
	d.replaced, d.number, d.from, d.next = e, e.Last, e.From, e.Next
	d.used = max(d.used, e.Last)
}

// Open creates the log or opens what is there, and passes every valid record to apply, in
// order. Before that it passes the size of all records to expect, if that is not nil. It
// removes files of another changelog, and those that are replaced.
func (d *Disk) Open(expect func(bytes int64), apply Apply) error {
	if err := d.fs.MkdirAll(d.dir); err != nil {
		return fmt.Errorf("kafka: state directory: %w", err)
	}
	names, err := d.fs.List(d.dir)
	if err != nil {
		return fmt.Errorf("kafka: state directory: %w", err)
	}
	if expect != nil {
		expect(d.bytes(names))
	}
	first, whole, err := d.first(names, 0)
	if err != nil {
		return err
	}
	for _, name := range names {
		number, ok := d.numberOf(name)
		if !ok {
			continue
		}
		d.used = max(d.used, number)
		if !whole || number < first || number <= d.replaced.Last {
			if err := d.fs.Remove(filepath.Join(d.dir, name)); err != nil {
				return fmt.Errorf("kafka: state: %w", err)
			}
			continue
		}
		if whole, err = d.load(name, number, apply); err != nil {
			d.Close() // it was only read
			return err
		}
	}
	if d.file != nil {
		return nil
	}
	if d.replaced.Last == 0 {
		d.number = d.used // files with these numbers may come back
	}
	return d.rotate()
}

// first returns the number of the oldest file that counts, and whether it is there. The number is at
// least oldest, and that in a file. This is written before an older file is removed, and neither is
// synced. So after a loss of power it may be too small, and then a copy is given up that was whole. Or
// older files are there again, which do not count: others may be missing between them.
func (d *Disk) first(names []string, oldest int) (first int, whole bool, err error) {
	first = oldest
	var numbers []int
	for _, name := range names {
		number, ok := d.numberOf(name)
		if !ok {
			continue
		}
		file, err := d.fs.Open(filepath.Join(d.dir, name))
		if err != nil {
			return 0, false, fmt.Errorf("kafka: state: %w", err)
		}
		header := make([]byte, HeaderSize)
		n, err := file.ReadAt(header, 0)
		file.Close() // it was only read
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, false, fmt.Errorf("kafka: state: %w", err)
		}
		if d.headerHolds(header[:n]) {
			numbers = append(numbers, number)
			first = max(first, int(binary.LittleEndian.Uint32(header[firstAt:])))
		}
	}
	if e := &d.replaced; e.Last > 0 {
		return first, e.First <= first && first <= e.Last, nil
	}
	return first, first == 0 || slices.Contains(numbers, first), nil
}

// bytes returns the approximate size of a log's files.
func (d *Disk) bytes(names []string) (bytes int64) {
	for _, name := range names {
		if number, ok := d.numberOf(name); !ok || number <= d.replaced.Last {
			continue
		}
		if file, err := d.fs.Open(filepath.Join(d.dir, name)); err == nil {
			if size, err := file.Size(); err == nil {
				bytes += size
			}
			file.Close() // only its size was read
		}
	}
	return bytes
}

func (d *Disk) numberOf(name string) (int, bool) {
	text, ok := strings.CutSuffix(name, d.suffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n > 0
}

func (d *Disk) path(number int) string {
	return filepath.Join(d.dir, fmt.Sprintf("%08d%s", number, d.suffix))
}

// load reads one file, and reports whether all of it is valid. That file, or the next
// one, is then written.
func (d *Disk) load(name string, number int, apply Apply) (whole bool, err error) {
	path := filepath.Join(d.dir, name)
	data, err := d.fs.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("kafka: state: %w", err)
	}
	if !d.headerHolds(data) || d.number > 0 && number != d.number+1 {
		return false, d.fs.Remove(path)
	}
	if err := d.seal(); err != nil {
		return false, err
	}
	first := len(d.sealed) == 0 && d.replaced.Last == 0
	at := int64(HeaderSize)
	for {
		value, before, behind, ok := FrameAt(data[at:])
		if !ok || !first && before != d.next {
			break
		}
		err := apply(value, behind, Place{uint32(number), uint32(at + FrameSize)})
		if errors.Is(err, ErrEnd) {
			break
		}
		if err != nil {
			return false, err
		}
		if first {
			d.from, first = before, false
		}
		d.next = behind
		at += int64(FrameSize + len(value))
	}
	file, err := d.fs.Open(path)
	if err != nil {
		return false, fmt.Errorf("kafka: state: %w", err)
	}
	d.begin(file, at, number)
	if at < int64(len(data)) {
		if err := file.Truncate(at); err != nil {
			return false, fmt.Errorf("kafka: state: %w", err)
		}
		return false, nil
	}
	return true, nil
}

func (d *Disk) headerHolds(data []byte) bool {
	return len(data) >= HeaderSize && string(data[:8]) == magic && ID(data[8:24]) == d.changelog &&
		binary.LittleEndian.Uint32(data[sumAt:]) == headerSum(data)
}

// FrameAt reads the frame at the start of data.
func FrameAt(data []byte) (value []byte, before, behind int64, ok bool) {
	if len(data) < FrameSize {
		return nil, 0, 0, false
	}
	n := int64(binary.LittleEndian.Uint32(data))
	if n > int64(len(data)-FrameSize) {
		return nil, 0, 0, false
	}
	frame := data[8 : FrameSize+n]
	if binary.LittleEndian.Uint32(data[4:]) != crc32.Checksum(frame, Castagnoli) {
		return nil, 0, 0, false
	}
	before, behind = int64(binary.LittleEndian.Uint64(frame)), int64(binary.LittleEndian.Uint64(frame[8:]))
	return frame[16:], before, behind, behind > before
}

// begin makes a file the one that is written, from its end on.
func (d *Disk) begin(file vfs.File, size int64, number int) {
	d.file, d.size, d.number = file, size, number
	d.out = bufio.NewWriter(io.NewOffsetWriter(file, size))
}

// whole reports whether the copy has not failed, and lacks no record from an offset on. A nil
// Disk leaves the state whole.
func (d *Disk) whole(start int64) bool { return d == nil || d.failed == nil && d.from <= start }

// Add appends a record to the buffer, and returns its place. Write returns the errors. The
// position is the one after the record.
func (d *Disk) Add(value []byte, position int64) Place {
	if d.failed != nil {
		return Place{}
	}
	frame := AppendFrame(d.out.AvailableBuffer(), value, d.next, position)
	d.out.Write(frame) // Write returns its error
	d.out.Write(value) // and this one
	place := Place{uint32(d.number), uint32(d.size + FrameSize)}
	d.size += int64(FrameSize + len(value))
	d.next = position
	return place
}

// AppendFrame appends the frame header of a record.
func AppendFrame(dst, value []byte, before, behind int64) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, FrameSize)...)
	frame := dst[start:]
	binary.LittleEndian.PutUint32(frame, uint32(len(value)))
	binary.LittleEndian.PutUint64(frame[8:], uint64(before))
	binary.LittleEndian.PutUint64(frame[16:], uint64(behind))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Update(crc32.Checksum(frame[8:], Castagnoli), Castagnoli, value))
	return dst
}

// Write writes the buffer to the file. After an error the log must be cleared or opened
// again.
func (d *Disk) Write() error {
	if d.failed == nil {
		d.fail("", d.out.Flush())
	}
	return d.failed
}

// fail keeps the first error.
func (d *Disk) fail(what string, err error) error {
	if err != nil && d.failed == nil {
		d.failed = fmt.Errorf("kafka: state%s: %w", what, err)
	}
	return err
}

// Err returns the first error of a read or a write. A nil Disk has none.
func (d *Disk) Err() error {
	if d == nil {
		return nil
	}
	return d.failed
}

// Read appends a part of a record to dst. It was written. The part is as it was, or there
// is an error.
func (d *Disk) Read(dst []byte, ref Ref) ([]byte, error) {
	if d.failed != nil {
		return dst, d.failed
	}
	file, err := d.fileOf(int(ref.file))
	if err == nil {
		start := len(dst)
		dst = append(dst, make([]byte, ref.size)...)
		if _, err = file.ReadAt(dst[start:], int64(ref.at)); errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		if err == nil && crc32.Checksum(dst[start:], Castagnoli) != ref.sum {
			err = errors.New("the checksum of a value is wrong")
		}
	}
	if err != nil {
		d.fail(fmt.Sprintf(": read %d bytes at %d of %s", ref.size, ref.at, d.path(int(ref.file))), err)
		return dst, d.failed
	}
	return dst, nil
}

func (d *Disk) fileOf(number int) (vfs.File, error) {
	if number == d.number {
		return d.file, nil
	}
	i := len(d.sealed)
	if i > 0 {
		i = number - d.sealed[0].number
	}
	if i < 0 || i >= len(d.sealed) {
		return nil, fs.ErrNotExist
	}
	of := &d.sealed[i]
	if of.file == nil {
		var err error
		if of.file, err = d.fs.Open(d.path(number)); err != nil {
			return nil, err
		}
	}
	return of.file, nil
}

// Tidy starts a new file if the present one is large, or should end. It removes files whose
// records are all before a position.
func (d *Disk) Tidy(cut int64, end bool) error {
	if d.failed != nil {
		return d.failed
	}
	if d.size >= d.most || end && d.size > HeaderSize {
		if err := d.rotate(); err != nil {
			d.fail("", err)
			return d.failed
		}
	}
	for len(d.sealed) > 0 && d.sealed[0].end <= cut {
		if err := d.remove(); err != nil {
			return err
		}
	}
	return nil
}

// Sealed returns all files of the copy but the present one, if that has no record.
func (d *Disk) Sealed() Extent {
	if d.failed != nil || d.size > HeaderSize || len(d.sealed) == 0 {
		return Extent{}
	}
	return Extent{int(d.oldest(0)), d.number - 1, d.from, d.next}
}

// Replace says which files a Spiller has replaced, and removes those that are still there.
func (d *Disk) Replace(e Extent) error {
	if d.failed != nil || e == d.replaced {
		return d.failed
	}
	before := d.oldest(0)
	if d.replaced = e; d.oldest(0) != before {
		if err := d.note(0); err != nil {
			return err
		}
	}
	for len(d.sealed) > 0 && d.sealed[0].number <= e.Last {
		if err := d.remove(); err != nil {
			return err
		}
	}
	return nil
}

// note notes which file is the oldest, behind some sealed ones.
func (d *Disk) note(behind int) error {
	if d.file == nil {
		return nil
	}
	_, err := d.file.WriteAt(d.header(behind)[sumAt:], sumAt)
	d.fail("", err)
	return err
}

// remove removes the oldest sealed file. Before that it notes which one is the oldest then.
func (d *Disk) remove() error {
	if err := d.note(1); err != nil {
		return d.failed
	}
	s := &d.sealed[0]
	if s.file != nil {
		s.file.Close() // it was only read
		s.file = nil
	}
	if err := d.fs.Remove(d.path(s.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		d.fail("", err)
		return d.failed
	}
	d.sealed = d.sealed[1:]
	return nil
}

// oldest returns the number of the oldest file, which may be replaced, behind some sealed ones.
func (d *Disk) oldest(behind int) uint32 {
	if d.replaced.Last > 0 {
		return uint32(d.replaced.First)
	}
	if behind < len(d.sealed) {
		return uint32(d.sealed[behind].number)
	}
	return uint32(d.number)
}

// seal ends the present file.
func (d *Disk) seal() error {
	if d.file == nil {
		return nil
	}
	err := d.out.Flush()
	err = errors.Join(err, d.file.Close())
	d.sealed = append(d.sealed, sealedFile{number: d.number, end: d.next})
	d.file, d.size = nil, 0
	return err
}

func (d *Disk) rotate() error {
	if err := d.seal(); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	file, err := d.fs.Create(d.path(d.number + 1))
	if err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	d.begin(file, HeaderSize, d.number+1)
	if _, err := file.WriteAt(d.header(0), 0); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	return nil
}

// header returns the header of the present file, which notes the oldest file behind some sealed
// ones.
func (d *Disk) header(behind int) []byte {
	header := make([]byte, HeaderSize)
	copy(header, magic)
	copy(header[8:], d.changelog[:])
	binary.LittleEndian.PutUint32(header[firstAt:], d.oldest(behind))
	binary.LittleEndian.PutUint32(header[sumAt:], headerSum(header))
	return header
}

func headerSum(header []byte) uint32 {
	return crc32.Update(crc32.Checksum(header[:sumAt], Castagnoli), Castagnoli, header[firstAt:HeaderSize])
}

// Clear removes all files, because they contradict the changelog or have failed.
func (d *Disk) Clear() error {
	if d.file != nil {
		d.file.Close() // what it has is not needed
		d.sealed = append(d.sealed, sealedFile{number: d.number})
		d.file, d.size = nil, 0
	}
	d.failed = nil
	for len(d.sealed) > 0 {
		if err := d.remove(); err != nil {
			return err
		}
	}
	d.next, d.from, d.replaced = 0, 0, Extent{}
	return d.fail("", d.rotate())
}

// Close closes the files.
func (d *Disk) Close() error {
	for i := range d.sealed {
		if file := d.sealed[i].file; file != nil {
			file.Close() // it was only read
			d.sealed[i].file = nil
		}
	}
	if d.file == nil {
		return nil
	}
	err := d.file.Close()
	d.file = nil
	return err
}

// Values leaves the long values of a state in a Disk. Without one, all values stay in
// memory.
type Values struct {
	// Inline is the length of the longest value that stays in memory.
	Inline int

	disk *Disk
	left bool // a value was left
}

// SetCopy sets the copy of the state's changelog, or nil. The state is empty. An error of
// the copy is returned by the method that needs it, and the state must then be built again.
func (v *Values) SetCopy(d *Disk) { v.disk = d }

// Detach reports whether the state has never left a value in the copy. It then needs no
// copy, and keeps all values in memory from now on.
func (v *Values) Detach() bool {
	if v.left {
		return false
	}
	v.disk = nil
	return true
}

// Leaves reports whether a value is left in the copy.
func (v *Values) Leaves(value []byte) bool { return v.disk != nil && len(value) > v.Inline }

// Leave returns the place of a value that is left in the copy. The record at a place has
// the value at an offset.
func (v *Values) Leave(p Place, at int, value []byte) Ref {
	v.left = true
	return p.Part(at, value)
}

// Load appends a value that was left to dst.
func (v *Values) Load(dst []byte, ref Ref) ([]byte, error) { return v.disk.Read(dst, ref) }

// CopyErr returns the error with which the copy failed.
func (v *Values) CopyErr() error { return v.disk.Err() }
