package file

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// entry is the position up to which a file is settled, and data that recognises
// the file. It is JSON so that people can read it. Unknown fields are kept.
type entry struct {
	Path   string `json:"path"`
	Device uint64 `json:"device,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
	// Offset is the start of the first line that is not settled, in decompressed
	// bytes.
	Offset int64 `json:"offset"`
	// Print is computed from the first bytes of the file and the bytes before
	// the offset.
	Print string `json:"print,omitempty"`
	// Generation counts how often the file was found rewritten in place. It is part of the
	// identity of its lines.
	Generation int `json:"generation,omitempty"`
	// Missed is the Unix time of the first look that did not find the file.
	Missed int64 `json:"missed,omitempty"`
}

// kept reports whether the entry says more than that the file is read from its beginning.
func (e *entry) kept() bool { return e.Offset > 0 || e.Generation > 0 }

// rewritten returns the entry of the file after it was rewritten in place. Nothing is settled.
func (e *entry) rewritten() entry {
	nothing := sha256.Sum256(nil)
	return entry{
		Path: e.Path, Device: e.Device, Inode: e.Inode,
		Print: hex.EncodeToString(nothing[:16]), Generation: e.Generation + 1,
	}
}

// missedFor is how long the positions of missing files are kept.
const missedFor = 7 * 24 * time.Hour

// stateFile holds positions in a file that is replaced at each save.
type stateFile struct {
	fs   vfs.FS
	name string
}

type stateContent struct {
	Version int     `json:"version"`
	Files   []entry `json:"files"`
}

// load returns the saved positions, and whether there ever were any.
func (m *stateFile) load() ([]entry, bool, error) {
	data, err := m.fs.ReadFile(m.name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	var content stateContent
	if err == nil {
		err = json.Unmarshal(data, &content)
	}
	if err == nil && content.Version != 1 {
		err = fmt.Errorf("version %d is not known", content.Version)
	}
	if err != nil {
		return nil, false, fmt.Errorf("file: read the positions in %s: %w", m.name, err)
	}
	return content.Files, true, nil
}

// save replaces the file atomically: a crash leaves the old content or the new.
func (m *stateFile) save(list []entry) error {
	data, err := json.MarshalIndent(stateContent{1, list}, "", " ")
	if err == nil {
		err = replace(m.fs, m.name, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("file: write the positions to %s: %w", m.name, err)
	}
	return nil
}

// replace durably replaces the content of a file.
func replace(fsys vfs.FS, name string, data []byte) error {
	temporary := name + ".new"
	if err := fsys.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	file, err := fsys.Create(temporary)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(data, 0)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(temporary, name); err != nil {
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

// lockFile creates the directory of a file and takes the lock next to the file.
// Before, it refuses a path that is not a regular file.
func lockFile(fsys vfs.FS, name string) (io.Closer, error) {
	info, err := os.Stat(name)
	switch {
	case err == nil && !info.Mode().IsRegular():
		return nil, fmt.Errorf("file: %s is not a regular file: write another path: %w", name, semel.ErrInvalidRequest)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("file: %w", err)
	}
	if err := fsys.MkdirAll(filepath.Dir(name)); err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	unlock, err := fsys.Lock(name+".lock", fmt.Sprintf("process %d", os.Getpid()))
	if locked, ok := errors.AsType[*vfs.LockedError](err); ok {
		return nil, &lockedError{name, locked}
	}
	if err != nil {
		return nil, fmt.Errorf("file: %w", err)
	}
	return unlock, nil
}

// printBytes is how many bytes at the beginning of a file, and before the
// position, recognise it.
const printBytes = 1024

// printOf returns the print of the data that was read from a file.
func printOf(file *os.File, offset int64, packed bool) (string, error) {
	var data []byte
	add := func(from, to int64) error {
		part := make([]byte, to-from)
		_, err := file.ReadAt(part, from)
		data = append(data, part...)
		return err
	}
	if packed {
		info, err := file.Stat()
		if err == nil {
			err = add(0, min(printBytes, info.Size()))
		}
		if err != nil {
			return "", err
		}
		data = binary.BigEndian.AppendUint64(data, uint64(info.Size()))
	} else if err := errors.Join(add(0, min(printBytes, offset)), add(max(0, offset-printBytes), offset)); err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:16]), nil
}

// resume finds the saved position of a file and removes it from the known ones.
// In doubt it finds none. The file was then rewritten if a position of it is known.
func (s *Source) resume(file *os.File, id identity, path string, packed bool) (entry, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, fits := range []func(e *entry) bool{
		func(e *entry) bool { return e.Inode != 0 && e.Inode == id.inode && e.Device == id.device },
		func(e *entry) bool { return e.Inode != 0 && e.Inode == id.inode }, // devices change their numbers
		func(e *entry) bool { return e.Path == path },
	} {
		for i := range s.known {
			if e := s.known[i]; fits(&e) && e.matches(file, packed) {
				s.known = slices.Delete(s.known, i, i+1)
				e.Path, e.Device, e.Inode, e.Missed = path, id.device, id.inode, 0
				return e, true
			}
		}
	}
	e := entry{Path: path, Device: id.device, Inode: id.inode}
	if i := slices.IndexFunc(s.known, func(was entry) bool { return was.name() == e.name() }); i >= 0 {
		e.Generation = s.known[i].Generation
		s.known = slices.Delete(s.known, i, i+1)
		return e.rewritten(), false
	}
	return e, false
}

func (e *entry) matches(file *os.File, packed bool) bool {
	print, err := printOf(file, e.Offset, packed)
	return err == nil && print == e.Print
}

// refresh computes how far the files are settled. Call with mu.
func (s *Source) refresh() {
	if s.closed {
		return
	}
	s.lives = slices.DeleteFunc(s.lives, func(l *life) bool {
		low, begun := l.mark.Low()
		if begun && low != l.saved.Offset && !l.forgotten && l.intact() {
			// A file that was truncated or rewritten since keeps its position, where it
			// will not be recognised.
			if print, err := printOf(l.file, low, l.packed); err == nil {
				l.saved.Offset, l.saved.Print, l.fresh = low, print, true
			}
		}
		if !l.over || l.mark.Unsettled() > 0 && !l.forgotten {
			return false
		}
		_ = l.file.Close() // it was only read
		switch {
		case l.forgotten:
		case s.opts.Follow:
			s.forget(l.saved)
		case s.attached && l.fresh:
			s.changes = append(s.changes, l.saved)
		case !s.opts.Follow:
			s.known = append(s.known, l.saved)
		}
		return true
	})
}

// save saves all positions.
func (s *Source) save() error {
	s.saving.Lock()
	defer s.saving.Unlock()
	s.mu.Lock()
	s.refresh()
	s.dirty, s.saved = false, time.Now()
	list := s.entries(s.saved)
	s.mu.Unlock()
	err := s.state.save(list)
	if err != nil {
		s.mu.Lock()
		s.dirty = true
		s.mu.Unlock()
	}
	return err
}

// entries returns the positions to save. Call with mu.
func (s *Source) entries(now time.Time) []entry {
	var list []entry
	for _, l := range s.lives {
		if l.saved.kept() && !l.forgotten {
			list = append(list, l.saved)
		}
	}
	s.known = slices.DeleteFunc(s.known, func(e entry) bool { return e.missedLong(now) })
	return append(list, s.known...)
}

func (e *entry) missedLong(now time.Time) bool {
	return e.Missed != 0 && now.Sub(time.Unix(e.Missed, 0)) > missedFor
}

// forget makes a session forget a position, and returns true. Call with mu.
func (s *Source) forget(e entry) bool {
	if s.attached {
		s.gone = append(s.gone, e)
	}
	return true
}

// saveIfDue saves if positions have changed and the last save is long enough
// ago.
func (s *Source) saveIfDue() error {
	s.mu.Lock()
	due := s.state != nil && s.dirty && !s.closed && time.Since(s.saved) >= s.opts.SaveEvery
	s.mu.Unlock()
	if !due || !s.saving.TryLock() {
		return nil
	}
	s.saving.Unlock()
	return s.save()
}

// The first bytes of compressed files.
var (
	gzipMagic = []byte{0x1f, 0x8b}
	zstdMagic = []byte{0x28, 0xb5, 0x2f, 0xfd}
)

// packedHead returns the magic bytes at the start of a file, or nil.
func packedHead(file *os.File) []byte {
	head := make([]byte, 4)
	n, _ := file.ReadAt(head, 0) // an error comes again when lines are read
	for _, magic := range [][]byte{gzipMagic, zstdMagic} {
		if bytes.HasPrefix(head[:n], magic) {
			return magic
		}
	}
	return nil
}
