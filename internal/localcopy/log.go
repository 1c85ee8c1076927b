package localcopy

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/vfs"
)

// Log keeps on disk what one partition's state has applied of the
// changelog, in files that only grow:
//
//	file:  "SEMELKC1" (8), id of the changelog's topic (16), checksum (4), 0 (4), frames
//	frame: length of the record (4), checksum of what follows (4),
//	       position before it (8), position behind it (8), record
//
// Nothing is synced: the log is a copy. A frame whose checksum does not hold, or
// that does not continue where the one before ended, ends what is read, and the
// rest comes from the changelog. It is written after a commit is known, so it
// may lag and never leads. One goroutine uses it at a time.
//
// A state may leave values of records on disk and read them again by a Ref. A Log that
// has failed is of no use to such a state, which must then be built from the changelog.
type Log struct {
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
	newest int64         // the greatest mark in the file
	begun  int64         // the mark of its first frame
	failed error
}

type sealedFile struct {
	number int
	newest int64
	file   vfs.File // nil until it is read
}

// ID is the id of a topic.
type ID = [16]byte

const (
	magic = "SEMELKC1"
	// HeaderSize is the size of a file without frames, and FrameSize that of a frame
	// without its record.
	HeaderSize  = 32
	FrameSize   = 24
	maxFileSize = 32 << 20
)

// Castagnoli is the table of all checksums.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// ErrEnd is returned by a function that applies records if a record ends what is read.
var ErrEnd = errors.New("localcopy: no record that can be applied")

// Place is where the log has a record. The zero Place is none.
type Place struct{ file, at uint32 }

// Ref is where the log has a part of a record. The zero Ref is none.
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

// Apply adds a record to a state. It returns the mark of the record, by which Tidy removes
// files. After ErrEnd, this record and all behind it are removed.
type Apply func(value []byte, position int64, place Place) (mark int64, err error)

// New returns the log of a topic in a directory. The names of its files have a suffix. It
// must be opened.
func New(files vfs.FS, dir, suffix string, changelog ID) *Log {
	return &Log{fs: files, dir: dir, suffix: suffix, changelog: changelog, most: maxFileSize}
}

// SetFileSize sets how large a file must be for Tidy to begin another one.
func (l *Log) SetFileSize(bytes int64) { l.most = bytes }

// Open creates the log or opens what is there, and passes every valid record to apply, in
// order. Before that it passes the size of all records to expect, if that is not nil. It
// removes files of another changelog.
func (l *Log) Open(expect func(bytes int64), apply Apply) error {
	if err := l.fs.MkdirAll(l.dir); err != nil {
		return fmt.Errorf("kafka: state directory: %w", err)
	}
	names, err := l.fs.List(l.dir)
	if err != nil {
		return fmt.Errorf("kafka: state directory: %w", err)
	}
	if expect != nil {
		expect(l.bytes(names))
	}
	whole := true
	for _, name := range names {
		number, ok := l.numberOf(name)
		if !ok {
			continue
		}
		if !whole {
			if err := l.fs.Remove(filepath.Join(l.dir, name)); err != nil {
				return fmt.Errorf("kafka: state: %w", err)
			}
			continue
		}
		if whole, err = l.load(name, number, apply); err != nil {
			l.Close() // it was only read
			return err
		}
	}
	if l.file == nil {
		return l.rotate()
	}
	return nil
}

// bytes returns the approximate size of a log's files.
func (l *Log) bytes(names []string) (bytes int64) {
	for _, name := range names {
		if _, ok := l.numberOf(name); !ok {
			continue
		}
		if file, err := l.fs.Open(filepath.Join(l.dir, name)); err == nil {
			if size, err := file.Size(); err == nil {
				bytes += size
			}
			file.Close() // only its size was read
		}
	}
	return bytes
}

func (l *Log) numberOf(name string) (int, bool) {
	text, ok := strings.CutSuffix(name, l.suffix)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n > 0
}

func (l *Log) path(number int) string {
	return filepath.Join(l.dir, fmt.Sprintf("%08d%s", number, l.suffix))
}

// load reads one file, and reports whether all of it is valid. That file, or the next
// one, is then written.
func (l *Log) load(name string, number int, apply Apply) (whole bool, err error) {
	path := filepath.Join(l.dir, name)
	data, err := l.fs.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("kafka: state: %w", err)
	}
	if !l.headerHolds(data) || l.file != nil && number != l.number+1 {
		return false, l.fs.Remove(path)
	}
	if err := l.seal(); err != nil {
		return false, err
	}
	first := len(l.sealed) == 0
	at := int64(HeaderSize)
	for {
		value, before, behind, ok := FrameAt(data[at:])
		if !ok || !first && before != l.next {
			break
		}
		mark, err := apply(value, behind, Place{uint32(number), uint32(at + FrameSize)})
		if errors.Is(err, ErrEnd) {
			break
		}
		if err != nil {
			return false, err
		}
		if first {
			l.from, first = before, false
		}
		l.note(mark, at)
		l.next = behind
		at += int64(FrameSize + len(value))
	}
	file, err := l.fs.Open(path)
	if err != nil {
		return false, fmt.Errorf("kafka: state: %w", err)
	}
	l.begin(file, at, number)
	if at < int64(len(data)) {
		if err := file.Truncate(at); err != nil {
			return false, fmt.Errorf("kafka: state: %w", err)
		}
		return false, nil
	}
	return true, nil
}

func (l *Log) headerHolds(data []byte) bool {
	return len(data) >= HeaderSize && string(data[:8]) == magic && ID(data[8:24]) == l.changelog &&
		binary.LittleEndian.Uint32(data[24:]) == crc32.Checksum(data[:24], Castagnoli)
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

// note tracks the marks of the records in the file, which decide when it may be
// removed. A record is at an offset of the file.
func (l *Log) note(mark, at int64) {
	if at <= HeaderSize && l.begun == 0 {
		l.begun = mark
	}
	l.newest = max(l.newest, mark)
}

// begin makes a file the one that is written, from its end on.
func (l *Log) begin(file vfs.File, size int64, number int) {
	l.file, l.size, l.number = file, size, number
	l.out = bufio.NewWriter(io.NewOffsetWriter(file, size))
}

// From returns the position before the first record.
func (l *Log) From() int64 { return l.from }

// Add appends a record to the buffer, and returns its place. Write returns the errors. The
// position is the one after the record.
func (l *Log) Add(value []byte, mark, position int64) Place {
	if l.failed != nil {
		return Place{}
	}
	frame := AppendFrame(l.out.AvailableBuffer(), value, l.next, position)
	l.out.Write(frame) // Write returns its error
	l.out.Write(value) // and this one
	l.note(mark, l.size)
	place := Place{uint32(l.number), uint32(l.size + FrameSize)}
	l.size += int64(FrameSize + len(value))
	l.next = position
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
func (l *Log) Write() error {
	if l.failed == nil {
		l.fail("", l.out.Flush())
	}
	return l.failed
}

// fail keeps the first error.
func (l *Log) fail(what string, err error) error {
	if err != nil && l.failed == nil {
		l.failed = fmt.Errorf("kafka: state%s: %w", what, err)
	}
	return err
}

// Err returns the first error of a read or a write. A nil Log has none.
func (l *Log) Err() error {
	if l == nil {
		return nil
	}
	return l.failed
}

// Read appends a part of a record to dst. It was written. The part is as it was, or there
// is an error.
func (l *Log) Read(dst []byte, ref Ref) ([]byte, error) {
	if l.failed != nil {
		return dst, l.failed
	}
	file, err := l.fileOf(int(ref.file))
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
		l.fail(fmt.Sprintf(": read %d bytes at %d of %s", ref.size, ref.at, l.path(int(ref.file))), err)
		return dst, l.failed
	}
	return dst, nil
}

func (l *Log) fileOf(number int) (vfs.File, error) {
	if number == l.number {
		return l.file, nil
	}
	i := len(l.sealed)
	if i > 0 {
		i = number - l.sealed[0].number
	}
	if i < 0 || i >= len(l.sealed) {
		return nil, fs.ErrNotExist
	}
	of := &l.sealed[i]
	if of.file == nil {
		var err error
		if of.file, err = l.fs.Open(l.path(number)); err != nil {
			return nil, err
		}
	}
	return of.file, nil
}

// Tidy starts a new file if the present one is large, or its marks span an eighth of a
// span that is not 0. It removes files without a mark above horizon.
func (l *Log) Tidy(horizon, span int64) error {
	if l.failed != nil {
		return l.failed
	}
	if l.size >= l.most || span > 0 && l.size > HeaderSize && l.newest-l.begun > span/8 {
		if err := l.rotate(); err != nil {
			l.fail("", err)
			return l.failed
		}
	}
	for len(l.sealed) > 0 && l.sealed[0].newest <= horizon {
		if err := l.remove(); err != nil {
			return err
		}
	}
	return nil
}

// remove removes the oldest sealed file.
func (l *Log) remove() error {
	s := &l.sealed[0]
	if s.file != nil {
		s.file.Close() // it was only read
		s.file = nil
	}
	if err := l.fs.Remove(l.path(s.number)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.fail("", err)
		return l.failed
	}
	l.sealed = l.sealed[1:]
	return nil
}

// seal ends the present file.
func (l *Log) seal() error {
	if l.file == nil {
		return nil
	}
	err := l.out.Flush()
	err = errors.Join(err, l.file.Close())
	l.sealed = append(l.sealed, sealedFile{number: l.number, newest: l.newest})
	l.file, l.newest, l.begun, l.size = nil, 0, 0, 0
	return err
}

func (l *Log) rotate() error {
	if err := l.seal(); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	file, err := l.fs.Create(l.path(l.number + 1))
	if err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	header := make([]byte, HeaderSize)
	copy(header, magic)
	copy(header[8:], l.changelog[:])
	binary.LittleEndian.PutUint32(header[24:], crc32.Checksum(header[:24], Castagnoli))
	l.begin(file, HeaderSize, l.number+1)
	if _, err := file.WriteAt(header, 0); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	return nil
}

// Clear removes all files, because they contradict the changelog or have failed.
func (l *Log) Clear() error {
	if l.file != nil {
		l.file.Close() // what it has is not needed
		l.sealed = append(l.sealed, sealedFile{number: l.number})
		l.file, l.newest, l.begun, l.size = nil, 0, 0, 0
	}
	l.failed = nil
	for len(l.sealed) > 0 {
		if err := l.remove(); err != nil {
			return err
		}
	}
	l.next, l.from = 0, 0
	return l.fail("", l.rotate())
}

// Close closes the files.
func (l *Log) Close() error {
	for i := range l.sealed {
		if file := l.sealed[i].file; file != nil {
			file.Close() // it was only read
			l.sealed[i].file = nil
		}
	}
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
