package keystate

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
// that does not go on where the one before ended, ends what is read, and the
// rest comes from the changelog. It is written after a commit is known, so it
// may lag and never leads. One goroutine uses it at a time.
type Log struct {
	fs        vfs.FS
	dir       string
	changelog TopicID

	file   vfs.File
	out    *bufio.Writer // to the end of the file
	size   int64         // with what out holds
	next   int64         // the position after the last frame
	sealed []sealedLog   // older files, oldest first
	number int           // of the file
	newest int64         // the greatest stream time in the file
	begun  int64         // the stream time of its first frame
}

type sealedLog struct {
	name   string
	newest int64
}

const (
	logMagic       = "SEMELKC1"
	LogHeaderSize  = 32
	LogFrameSize   = 24
	maxLogFileSize = 32 << 20
)

// Castagnoli is the table of all checksums.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// OpenLog opens or creates the log in a directory, and passes every valid record
// to apply, in order. Before that it passes the estimated number of keys to expect. It
// removes files of another changelog.
func OpenLog(files vfs.FS, dir string, changelog TopicID, expect func(keys int64), apply func(value []byte, position int64) error) (*Log, error) {
	l := &Log{fs: files, dir: dir, changelog: changelog}
	if err := files.MkdirAll(dir); err != nil {
		return nil, fmt.Errorf("kafka: state directory: %w", err)
	}
	names, err := files.List(dir)
	if err != nil {
		return nil, fmt.Errorf("kafka: state directory: %w", err)
	}
	expect(logBytes(files, dir, names) / EntrySize)
	whole := true
	for _, name := range names {
		number, ok := logNumber(name)
		if !ok {
			continue
		}
		if !whole {
			if err := files.Remove(filepath.Join(dir, name)); err != nil {
				return nil, fmt.Errorf("kafka: state: %w", err)
			}
			continue
		}
		if whole, err = l.load(name, number, apply); err != nil {
			return nil, err
		}
	}
	if l.file == nil {
		return l, l.rotate()
	}
	return l, nil
}

// logBytes returns the approximate size of a log's files.
func logBytes(files vfs.FS, dir string, names []string) (bytes int64) {
	for _, name := range names {
		if _, ok := logNumber(name); !ok {
			continue
		}
		if file, err := files.Open(filepath.Join(dir, name)); err == nil {
			if size, err := file.Size(); err == nil {
				bytes += size
			}
			file.Close() // only its size was read
		}
	}
	return bytes
}

func logNumber(name string) (int, bool) {
	text, ok := strings.CutSuffix(name, ".keys")
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(text)
	return n, err == nil && n > 0
}

func logName(number int) string { return fmt.Sprintf("%08d.keys", number) }

// load reads one file, and reports whether all of it is valid. That file, or the next
// one, is then written.
func (l *Log) load(name string, number int, apply func([]byte, int64) error) (whole bool, err error) {
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
	at := int64(LogHeaderSize)
	for {
		value, before, behind, ok := FrameAt(data[at:])
		if !ok || !first && before != l.next {
			break
		}
		c, err := Parse(value)
		if err != nil {
			break
		}
		if err := apply(value, behind); err != nil {
			return false, err
		}
		first = false
		l.note(&c)
		l.next = behind
		at += int64(LogFrameSize + len(value))
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
	return len(data) >= LogHeaderSize && string(data[:8]) == logMagic && TopicID(data[8:24]) == l.changelog &&
		binary.LittleEndian.Uint32(data[24:]) == crc32.Checksum(data[:24], Castagnoli)
}

// FrameAt reads the frame at the start of data.
func FrameAt(data []byte) (value []byte, before, behind int64, ok bool) {
	if len(data) < LogFrameSize {
		return nil, 0, 0, false
	}
	n := int64(binary.LittleEndian.Uint32(data))
	if n > int64(len(data)-LogFrameSize) {
		return nil, 0, 0, false
	}
	frame := data[8 : LogFrameSize+n]
	if binary.LittleEndian.Uint32(data[4:]) != crc32.Checksum(frame, Castagnoli) {
		return nil, 0, 0, false
	}
	before, behind = int64(binary.LittleEndian.Uint64(frame)), int64(binary.LittleEndian.Uint64(frame[8:]))
	return frame[16:], before, behind, behind > before
}

// note tracks the times of the records in the file, which decide when it may be
// removed.
func (l *Log) note(c *Record) {
	if l.size <= LogHeaderSize && l.begun == 0 {
		l.begun = c.StreamTime
	}
	l.newest = max(l.newest, c.StreamTime)
}

// begin makes a file the one that is written, from its end on.
func (l *Log) begin(file vfs.File, size int64, number int) {
	l.file, l.size, l.number = file, size, number
	l.out = bufio.NewWriter(io.NewOffsetWriter(file, size))
}

// add appends a record to the buffer; write returns the errors. The position is the one
// after the record.
func (l *Log) Add(value []byte, c *Record, position int64) {
	frame := AppendFrame(l.out.AvailableBuffer(), value, l.next, position)
	l.out.Write(frame) // write returns its error
	l.out.Write(value) // and this one
	l.note(c)
	l.size += int64(LogFrameSize + len(value))
	l.next = position
}

// AppendFrame appends the frame header of a record.
func AppendFrame(dst, value []byte, before, behind int64) []byte {
	start := len(dst)
	dst = append(dst, make([]byte, LogFrameSize)...)
	frame := dst[start:]
	binary.LittleEndian.PutUint32(frame, uint32(len(value)))
	binary.LittleEndian.PutUint64(frame[8:], uint64(before))
	binary.LittleEndian.PutUint64(frame[16:], uint64(behind))
	binary.LittleEndian.PutUint32(frame[4:], crc32.Update(crc32.Checksum(frame[8:], Castagnoli), Castagnoli, value))
	return dst
}

// write flushes the buffer. After an error the log must be opened again.
func (l *Log) Write() error {
	if err := l.out.Flush(); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	return nil
}

// tidy starts a new file if the present one is large or spans an eighth of the
// retention. It removes files without a stream time above horizon. Times are in
// milliseconds; a span of 0 means no retention.
func (l *Log) Tidy(horizon, span int64) error {
	if l.size >= maxLogFileSize || span > 0 && l.size > LogHeaderSize && l.newest-l.begun > span/8 {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	for len(l.sealed) > 0 && l.sealed[0].newest <= horizon {
		if err := l.fs.Remove(filepath.Join(l.dir, l.sealed[0].name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("kafka: state: %w", err)
		}
		l.sealed = l.sealed[1:]
	}
	return nil
}

// seal ends the present file.
func (l *Log) seal() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.sealed = append(l.sealed, sealedLog{logName(l.number), l.newest})
	l.file, l.newest, l.begun, l.size = nil, 0, 0, 0
	return err
}

func (l *Log) rotate() error {
	if err := l.seal(); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	file, err := l.fs.Create(filepath.Join(l.dir, logName(l.number+1)))
	if err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	header := make([]byte, LogHeaderSize)
	copy(header, logMagic)
	copy(header[8:], l.changelog[:])
	binary.LittleEndian.PutUint32(header[24:], crc32.Checksum(header[:24], Castagnoli))
	l.begin(file, LogHeaderSize, l.number+1)
	if _, err := file.WriteAt(header, 0); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	return nil
}

// clear removes all files, because they contradict the changelog.
func (l *Log) Clear() error {
	if err := l.seal(); err != nil {
		return fmt.Errorf("kafka: state: %w", err)
	}
	for _, s := range l.sealed {
		if err := l.fs.Remove(filepath.Join(l.dir, s.name)); err != nil {
			return fmt.Errorf("kafka: state: %w", err)
		}
	}
	l.sealed, l.next = nil, 0
	return l.rotate()
}

// Close closes the file.
func (l *Log) Close() error {
	if l.file == nil {
		return nil
	}
	err := l.file.Close()
	l.file = nil
	return err
}
