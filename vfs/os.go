package vfs

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// OS is the file system of the operating system. The zero value is ready to
// use. It does not follow a symbolic link that replaces a file: Open, ReadFile and
// Lock return a [*LinkError] then. The directory of a file may be a link.
type OS struct{}

var _ FS = OS{}

// MkdirAll implements FS.
func (OS) MkdirAll(dir string) error { return os.MkdirAll(dir, 0o700) }

// Create implements FS. Only the file's owner may read it, because a store
// holds a secret and readable results.
func (OS) Create(name string) (File, error) {
	return open(name, os.O_RDWR|os.O_CREATE|os.O_EXCL)
}

// Open implements FS.
func (OS) Open(name string) (File, error) { return open(name, os.O_RDWR) }

// ReadFile implements FS.
func (OS) ReadFile(name string) ([]byte, error) {
	f, err := openNoFollow(name, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, err
	}
	return data, nil
}

// List implements FS.
func (OS) List(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	names, err := d.Readdirnames(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	sort.Strings(names)
	return names, nil
}

// Rename implements FS.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// SyncDir implements FS.
func (OS) SyncDir(dir string) error { return syncDir(dir) }

// Lock implements FS. The lock is the system's advisory lock. It ends when the
// process ends, for whatever reason, so a leftover lock file locks nothing.
func (OS) Lock(name, holder string) (io.Closer, error) {
	f, err := openNoFollow(name, os.O_RDWR|os.O_CREATE)
	if err != nil {
		return nil, err
	}
	taken, err := tryLock(f)
	if err == nil && !taken {
		err = &LockedError{Name: name, Holder: readHolder(f)}
	}
	if err == nil {
		err = writeHolder(f, holder)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return heldLock{f}, nil
}

// heldLock is the file of a held lock.
type heldLock struct{ *os.File }

// Close releases the lock before it closes the file. A recently forked process
// shares the file, and with it the lock, until it executes its own program.
func (l heldLock) Close() error { return errors.Join(unlock(l.File), l.File.Close()) }

func writeHolder(f *os.File, holder string) error {
	if err := f.Truncate(0); err != nil {
		return err
	}
	_, err := f.WriteAt([]byte(holder+"\n"), 0)
	return err
}

// readHolder returns the text that the holder wrote. The holder may still be
// writing it, so the result can be empty. That only makes the error message
// less specific.
func readHolder(f *os.File) string {
	b := make([]byte, 1024)
	n, _ := f.ReadAt(b, 0) // on an error the first n bytes are still usable
	if holder := strings.TrimSpace(string(b[:n])); holder != "" {
		return holder
	}
	return "another process"
}

// osFile is a file of the operating system.
type osFile struct{ *os.File }

func open(name string, flag int) (File, error) {
	f, err := openNoFollow(name, flag)
	if err != nil {
		return nil, err
	}
	return osFile{f}, nil
}

// openNoFollow opens a file that is not a symbolic link. Another user who may write
// the directory could plant a link, so that this process changes a file of its choice.
func openNoFollow(name string, flag int) (*os.File, error) {
	name = filepath.Clean(name)
	f, err := os.OpenFile(name, flag|noFollow, 0o600)
	if err != nil {
		if target, notLink := os.Readlink(name); notLink == nil {
			return nil, &LinkError{Name: name, Target: target}
		}
		return nil, err
	}
	return f, nil
}

// Sync implements File.
func (f osFile) Sync() error { return syncData(f.File) }

// Allocate implements File.
func (f osFile) Allocate(size int64) error {
	have, err := f.Size()
	if err != nil || have >= size {
		return err
	}
	if err := reserve(f.File, have, size-have); !errors.Is(err, errors.ErrUnsupported) {
		return err
	}
	return f.writeZeros(have, size)
}

// writeZeros reserves blocks on file systems that have no system call for it.
func (f osFile) writeZeros(from, to int64) error {
	zeros := make([]byte, 1<<20)
	for from < to {
		n := min(int64(len(zeros)), to-from)
		if _, err := f.WriteAt(zeros[:n], from); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// Size implements File.
func (f osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}
