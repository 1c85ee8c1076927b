package faultfs

import (
	"errors"
	"io"
	"io/fs"
	"sync/atomic"
	"syscall"
)

// file is an open file.
type file struct {
	fs     *FS
	name   string
	node   *node
	closed atomic.Bool
}

// ReadAt implements vfs.File.
func (f *file) ReadAt(p []byte, offset int64) (int, error) {
	if err := f.read(Read); err != nil {
		return 0, err
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if offset < 0 {
		return 0, pathError(Read, f.name, fs.ErrInvalid)
	}
	rest := max(f.node.size-offset, 0)
	if int64(len(p)) <= rest {
		f.node.readAt(p, offset)
		return len(p), nil
	}
	f.node.readAt(p[:rest], offset)
	return int(rest), io.EOF
}

// read begins a read operation.
func (f *file) read(kind OpKind) error {
	if f.closed.Load() {
		return pathError(kind, f.name, fs.ErrClosed)
	}
	_, err := f.fs.begin(kind, f.name, 0, 0)
	return err
}

// change begins an operation that changes the file.
func (f *file) change(kind OpKind, offset, bytes int64, op func() error) error {
	if f.closed.Load() {
		return pathError(kind, f.name, fs.ErrClosed)
	}
	if offset < 0 || bytes < 0 {
		return pathError(kind, f.name, fs.ErrInvalid)
	}
	return f.fs.change(kind, f.name, offset, bytes, op)
}

// WriteAt implements vfs.File.
func (f *file) WriteAt(p []byte, offset int64) (n int, err error) {
	err = f.change(Write, offset, int64(len(p)), func() error {
		n = len(p)
		if f.fs.take(f.node, offset+int64(len(p))) {
			f.node.writeAt(p, offset)
			return nil
		}
		n = int(min(max(f.node.backed+f.fs.free-offset, 0), int64(n)))
		if f.fs.take(f.node, offset+int64(n)) && n > 0 {
			f.node.writeAt(p[:n], offset)
		}
		return syscall.ENOSPC
	})
	if errors.Is(err, ErrCrashed) {
		n = 0
	}
	return n, err
}

// take reserves the space for a file up to a size. It reports whether there was
// enough.
func (f *FS) take(n *node, size int64) bool {
	need := max(size-n.backed, 0)
	if f.free >= 0 {
		if need > f.free {
			return false
		}
		f.free -= need
	}
	n.backed += need
	return true
}

// Sync implements vfs.File.
func (f *file) Sync() error {
	if f.closed.Load() {
		return pathError(Sync, f.name, fs.ErrClosed)
	}
	crashing, err := f.fs.begin(Sync, f.name, 0, 0)
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	switch {
	case err == nil:
		f.node.sync()
	case !crashing && !f.fs.crashed:
		f.node.lose()
	}
	return err
}

// Truncate implements vfs.File. It reserves no space, so a write into the added
// part can run out of space.
func (f *file) Truncate(size int64) error {
	return f.change(Truncate, 0, size, func() error {
		before := f.node.backed
		f.node.truncate(size)
		f.fs.give(before - f.node.backed)
		return nil
	})
}

// Allocate implements vfs.File.
func (f *file) Allocate(size int64) error {
	return f.change(Allocate, 0, size, func() error {
		if !f.fs.take(f.node, size) {
			return syscall.ENOSPC
		}
		f.node.size = max(f.node.size, size)
		return nil
	})
}

// Size implements vfs.File.
func (f *file) Size() (int64, error) {
	if err := f.read(Size); err != nil {
		return 0, err
	}
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	return f.node.size, nil
}

// Close implements vfs.File. It syncs nothing.
func (f *file) Close() error {
	if f.closed.Swap(true) {
		return pathError(Open, f.name, fs.ErrClosed)
	}
	return nil
}
