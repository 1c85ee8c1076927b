package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/semel-dev/semel/vfs"
)

// KnownPrefix begins the names of values that rely on all keys still being known, such as
// the note that all lines of a file were seen. The store removes these values when a key
// is removed by hand, in the same record. [Peek] can read the values of a store that has
// some.
const KnownPrefix = "known/"

// The file VALUES is a copy of the named values, made at a close. It spares a program
// that needs only them from reading the log. It counts only while the log ends where the
// close left it.
const (
	valuesName = "VALUES"
	valuesTemp = "VALUES.tmp"

	valuesMagic = "SEMELVAL"
	valuesHead  = 8 + 8 + 16 + emptyRecord
)

// encodeValues returns the content of the file.
//
//	0   magic
//	8   segment that the log reached   12  bytes of it   16  store id
//	32  the last record of the log, which is empty
//	64  values: name and data, each with its length as an uvarint
//	and the checksum of all before
func encodeValues(id storeID, end logEnd, last []byte, values map[string]value) []byte {
	b := append(make([]byte, 0, 1024), valuesMagic...)
	b = binary.LittleEndian.AppendUint32(b, end.segment)
	b = binary.LittleEndian.AppendUint32(b, uint32(end.offset))
	b = append(b, id[:]...)
	b = append(b, last...)
	for name, v := range values {
		b = binary.AppendUvarint(b, uint64(len(name)))
		b = append(b, name...)
		b = binary.AppendUvarint(b, uint64(len(v.data)))
		b = append(b, v.data...)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// decodeValues returns the values of a file that belongs to the end of a log.
func decodeValues(b []byte, id storeID, end logEnd, last []byte) (map[string][]byte, bool) {
	if len(b) < valuesHead+4 || crc32.Checksum(b[:len(b)-4], castagnoli) != binary.LittleEndian.Uint32(b[len(b)-4:]) {
		return nil, false
	}
	if head := encodeValues(id, end, last, nil); !bytes.Equal(b[:valuesHead], head[:valuesHead]) {
		return nil, false
	}
	values := make(map[string][]byte)
	for b = b[valuesHead : len(b)-4]; len(b) > 0; {
		var parts [2][]byte
		for i := range parts {
			n, size := binary.Uvarint(b)
			if size <= 0 || n > uint64(len(b)-size) {
				return nil, false
			}
			parts[i], b = b[size:size+int(n)], b[size+int(n):]
		}
		values[string(parts[0])] = parts[1]
	}
	return values, true
}

// valuesFile is the file for the end of a log.
type valuesFile struct {
	fs    vfs.FS
	dir   string
	store storeID
	end   logEnd
}

// segment returns the name of the segment in which the log ends.
func (f *valuesFile) segment() string { return filepath.Join(f.dir, segmentName(f.end.segment)) }

// last returns the last record of the log, or false if the segment does not end there.
func (f *valuesFile) last() ([]byte, bool) {
	g, err := f.fs.Open(f.segment())
	if err != nil {
		return nil, false
	}
	defer g.Close()
	last := make([]byte, emptyRecord)
	if size, err := g.Size(); err != nil || size != int64(f.end.offset) || size < headerSize+emptyRecord {
		return nil, false
	}
	n, _ := g.ReadAt(last, int64(f.end.offset-emptyRecord))
	return last, n == len(last)
}

// save replaces the file if some of the values rely on the keys. Without the file, or
// with a torn or old one, the log is read, so it is not synced.
func (f *valuesFile) save(values map[string]value) error {
	name, temp := filepath.Join(f.dir, valuesName), filepath.Join(f.dir, valuesTemp)
	for _, old := range []string{temp, name} {
		if err := f.fs.Remove(old); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	relies := false
	for name := range values {
		relies = relies || strings.HasPrefix(name, KnownPrefix)
	}
	last, ok := f.last()
	if !relies || !ok {
		return nil
	}
	file, err := f.fs.Create(temp)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(encodeValues(f.store, f.end, last, values), 0)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	return f.fs.Rename(temp, name)
}

// read returns the values if the file belongs to the end of the log.
func (f *valuesFile) read(content []byte) map[string][]byte {
	if _, err := os.Stat(filepath.Join(f.dir, segmentName(f.end.segment+1))); err == nil {
		return nil // the log continued
	}
	last, ok := f.last()
	if !ok {
		return nil
	}
	values, ok := decodeValues(content, f.store, f.end, last)
	if !ok {
		return nil
	}
	return values
}

// Peek returns the named values of a store without reading its log, which [Open] does. It
// returns nil if it cannot know them: the store is open or was not closed in order, the
// program that closed it was older, or no name began with [KnownPrefix]. It creates
// nothing and checks no key.
func Peek(dir string) (map[string][]byte, error) {
	s := &directory{path: dir, fs: vfs.OS{}}
	content, err := s.fs.ReadFile(filepath.Join(dir, valuesName))
	if err != nil {
		return nil, nil // without this file nothing is known
	}
	lock, err := s.takeLock()
	if err != nil {
		return nil, nil // it is open
	}
	stored, err := s.fs.ReadFile(s.identityFile())
	if err == nil {
		err = s.id.decode(stored)
	}
	var values map[string][]byte
	if err == nil {
		f := &valuesFile{fs: s.fs, dir: dir, store: s.id.store, end: s.id.reached}
		values = f.read(content)
	} else {
		err = &CorruptError{File: s.identityFile(), Err: err}
	}
	return values, errors.Join(err, lock.Close())
}
