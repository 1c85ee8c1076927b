package file

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// begin loads the saved positions and finds the files.
func (s *Source) begin() (err error) {
	s.begun = true
	if s.state != nil {
		if s.known, s.remembered, err = s.state.load(); err != nil {
			return err
		}
	}
	if !s.opts.Follow {
		return s.find()
	}
	s.skip = s.opts.FromEnd && !s.remembered
	if err := s.look(); err != nil {
		return err
	}
	s.skip = false
	if err := s.findMoved(); err != nil || s.state == nil {
		return err
	}
	return s.save() // so that no more is skipped the next time
}

// find lists the files to read, in the order of the patterns.
func (s *Source) find() error {
	for _, pattern := range s.patterns {
		err := s.glob(pattern, func(path string, info os.FileInfo) error {
			id := identityOf(path, info)
			if s.byID[id] == nil {
				s.add(path, id).last = true
				s.isAhead(id, info.Size())
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// isAhead notes the size of a file that will be opened when its turn comes.
func (s *Source) isAhead(id identity, size int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ahead == nil {
		s.ahead = map[identity]int64{}
	}
	s.ahead[id] = size
}

// glob calls do for each regular file that matches a pattern, in the order of
// their names. Files that are not regular are skipped, unless the pattern names
// them.
func (s *Source) glob(pattern string, do func(path string, info os.FileInfo) error) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("file: %s: %w", pattern, err)
	}
	slices.Sort(paths)
	for _, path := range paths {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return fmt.Errorf("file: %w", err)
		case info.Mode().IsRegular():
			if err := do(path, info); err != nil {
				return err
			}
		case path == pattern:
			return fmt.Errorf("file: %s is not a regular file: %w", path, semel.ErrInvalidRequest)
		}
	}
	return nil
}

func (s *Source) add(path string, id identity) *tail {
	f := &tail{source: s, path: path, id: id, partition: pipeline.NewPartition(path), size: -1}
	s.tails = append(s.tails, f)
	s.byID[id] = f
	return f
}

// drop forgets a file that was never read or was read completely.
func (s *Source) drop(f *tail) {
	delete(s.byID, f.id)
	s.tails = slices.DeleteFunc(s.tails, func(x *tail) bool { return x == f })
}

// look finds files that are new, have changed or have disappeared.
func (s *Source) look() error {
	s.looked = time.Now()
	for _, f := range s.byID {
		f.present = false
	}
	for _, pattern := range s.patterns {
		err := s.glob(pattern, func(path string, info os.FileInfo) error {
			id := identityOf(path, info)
			f := s.byID[id]
			if f == nil {
				f = s.add(path, id)
				if err := f.open(); errors.Is(err, fs.ErrNotExist) {
					s.drop(f) // it was just renamed: the next look finds it
					return nil
				} else if err != nil {
					return err
				}
			}
			f.path, f.present, f.gone, f.last = path, true, time.Time{}, false
			f.lookAt(info)
			return nil
		})
		if err != nil {
			return err
		}
	}
	for _, f := range s.byID {
		if !f.present {
			if err := s.lookAfter(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// lookAt checks whether a file may have new data.
func (f *tail) lookAt(info os.FileInfo) (changed bool) {
	changed = info.Size() != f.size || !info.ModTime().Equal(f.changed)
	f.size, f.changed = info.Size(), info.ModTime()
	if changed {
		f.dry = false
	}
	return changed
}

// lookAfter reads a file whose name no pattern matches any longer, until no data
// was added for a while.
func (s *Source) lookAfter(f *tail) error {
	if f.life == nil || f.ended {
		s.drop(f)
		return nil
	}
	info, err := f.life.file.Stat()
	if err != nil {
		return f.explain(err)
	}
	changed := f.lookAt(info)
	switch {
	case changed || f.gone.IsZero():
		f.gone = s.looked
	case f.dry && s.looked.Sub(f.gone) >= max(lingers, s.opts.Poll):
		f.last, f.dry = true, false
	}
	return nil
}

// leave ends the reading of a file. Its items may still be in progress.
func (s *Source) leave(f *tail) {
	s.tails = slices.DeleteFunc(s.tails, func(x *tail) bool { return x == f })
	if f.packed != nil {
		_ = f.packed.Close() // all was read
	}
	if !f.present && s.opts.Follow {
		delete(s.byID, f.id)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f.life.over, s.dirty = true, true
}

// findMoved looks for files that were renamed while no process read them, so no
// pattern matches them.
func (s *Source) findMoved() error {
	s.mu.Lock()
	known := slices.Clone(s.known)
	s.mu.Unlock()
	for _, e := range known {
		names, err := os.ReadDir(filepath.Dir(e.Path))
		if err != nil {
			continue // its directory is gone too
		}
		for _, name := range names {
			path := filepath.Join(filepath.Dir(e.Path), name.Name())
			info, err := os.Stat(path)
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			id := identityOf(path, info)
			if s.byID[id] != nil || id.inode == 0 || id.inode != e.Inode {
				continue
			}
			if err := s.follow(path, id, &e); err != nil {
				return err
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.known = slices.DeleteFunc(s.known, func(e entry) bool {
		return e.missedLong(now) && s.forget(e)
	})
	for i := range s.known {
		if e := &s.known[i]; e.Missed == 0 {
			e.Missed, s.dirty = now.Unix(), true
			if s.attached {
				s.changes = append(s.changes, *e)
			}
		}
	}
	return nil
}

// follow continues a moved file if it is the known one.
func (s *Source) follow(path string, id identity, e *entry) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was moved again, or removed
	}
	if err != nil {
		return fmt.Errorf("file: %w", err)
	}
	same := packedHead(file) == nil && e.matches(file, false)
	if err := file.Close(); err != nil || !same {
		return err
	}
	f := s.add(path, id)
	f.gone = s.looked
	err = f.open()
	if errors.Is(err, fs.ErrNotExist) {
		s.drop(f) // it was moved again, or removed
		return nil
	}
	return err
}

// open opens the file and continues at its saved position.
func (f *tail) open() error {
	s := f.source
	s.mu.Lock()
	delete(s.ahead, f.id)
	s.mu.Unlock()
	file, err := os.Open(f.path)
	if err != nil {
		return f.explain(err)
	}
	info, err := file.Stat()
	if err != nil {
		return errors.Join(f.explain(err), file.Close())
	}
	if id := identityOf(f.path, info); id != f.id {
		// Another file has taken the name since it was found.
		if s.byID[id] != nil { // and is already being read
			return errors.Join(f.explain(fs.ErrNotExist), file.Close())
		}
		delete(s.byID, f.id)
		f.id = id
		s.byID[id] = f
	}
	magic := packedHead(file)
	if magic != nil && s.opts.Follow {
		f.dry, f.ended, f.size = true, true, info.Size()
		s.tails = slices.DeleteFunc(s.tails, func(x *tail) bool { return x == f })
		return file.Close()
	}
	if magic != nil {
		packed, err := unpack(file, magic)
		if err != nil {
			return errors.Join(f.explain(err), file.Close())
		}
		f.packed = packed
	}
	e, known := s.resume(file, f.id, f.path, magic != nil)
	if !known && s.skip {
		e.Offset, err = lastLineEnd(file, info.Size())
		if err == nil {
			e.Print, err = printOf(file, e.Offset, false)
		}
		if err != nil {
			return errors.Join(f.explain(err), file.Close())
		}
	}
	if err := f.start(file, e); err != nil {
		return errors.Join(err, file.Close())
	}
	s.enlist(f.life)
	return nil
}

// enlist includes the position of a file in the saved ones from now on.
func (s *Source) enlist(l *life) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lives = append(s.lives, l)
	s.dirty = true
}

// restart begins a truncated file from its beginning, as another generation. This is saved
// before its lines are read, so that a second rewrite does not get the same number after a crash.
func (f *tail) restart() error {
	s := f.source
	file, err := os.Open(f.path)
	if err == nil {
		var info os.FileInfo
		if info, err = file.Stat(); err == nil && identityOf(f.path, info) != f.id {
			// The name belongs to another file now.
			err = errors.Join(file.Close(), fs.ErrNotExist)
		}
	}
	s.mu.Lock()
	old := f.life
	old.over, old.forgotten = true, true
	e := old.saved.rewritten()
	s.mu.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		// Read it through the open descriptor.
		file, err = old.file, nil
		s.mu.Lock()
		s.lives = slices.DeleteFunc(s.lives, func(l *life) bool { return l == old })
		s.mu.Unlock()
	}
	if err != nil {
		return f.explain(err)
	}
	e.Path, e.Device, e.Inode = f.path, f.id.device, f.id.inode
	if err := f.start(file, e); err != nil {
		return err
	}
	s.enlist(f.life)
	if s.state == nil {
		return nil
	}
	return s.save()
}

// lastLineEnd returns the start of an incomplete last line.
func lastLineEnd(file *os.File, size int64) (int64, error) {
	buffer := make([]byte, 64<<10)
	for end := size; end > 0; {
		from := max(0, end-int64(len(buffer)))
		part := buffer[:end-from]
		if _, err := file.ReadAt(part, from); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return from + int64(i) + 1, nil
		}
		end = from
	}
	return 0, nil
}

// unpack decompresses a file.
func unpack(file *os.File, magic []byte) (io.ReadCloser, error) {
	if bytes.Equal(magic, gzipMagic) {
		return gzip.NewReader(file)
	}
	d, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(1<<30))
	if err != nil {
		return nil, err
	}
	return d.IOReadCloser(), nil
}
