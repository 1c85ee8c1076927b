// Package faultfs is an in-memory file system that loses, tears and refuses
// writes as real disks do. It lets a test check a store's crash safety at every
// operation.
//
// The file system keeps two states: the state that the program sees and the
// state on disk. A write reaches the disk with [vfs.File.Sync], and a directory
// change with [vfs.FS.SyncDir]. Nothing reaches the disk before that. Syncing a
// file does not make its name durable, and no operation waits for another.
//
//   - [FS.Survive] returns the state after a loss of power.
//   - [FS.CrashAt] causes a crash at a chosen operation.
//   - [FS.SetHook] makes operations fail.
//   - [FS.SetFree] limits the space on the disk.
//   - [FS.FlipBit] corrupts a file.
package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"sync"

	"github.com/semel-dev/semel/vfs"
)

// ErrCrashed is the error of every operation after a crash.
var ErrCrashed = errors.New("faultfs: crashed")

// OpKind names an operation.
type OpKind uint8

// The operations. Those from MkdirAll to Sync change the file system and are
// counted. The others only read.
const (
	MkdirAll OpKind = iota + 1
	Create
	Rename
	Remove
	SyncDir
	Lock
	Write
	Truncate
	Allocate
	Sync
	Open
	ReadFile
	List
	Read
	Size
)

// String returns the operation's name.
func (k OpKind) String() string {
	names := [...]string{"none", "mkdir", "create", "rename", "remove", "syncdir", "lock", "write",
		"truncate", "allocate", "sync", "open", "readfile", "list", "read", "size"}
	if int(k) < len(names) {
		return names[k]
	}
	return "invalid"
}

// Op is one operation, as a hook sees it.
type Op struct {
	// N numbers the operations that change the file system, from 1. It is 0 for
	// other operations.
	N    int
	Kind OpKind
	Name string
	// Offset and Bytes are the position and length of a write. For operations
	// that set a size, Bytes is that size.
	Offset, Bytes int64
}

// String describes the operation for a log.
func (o Op) String() string {
	return fmt.Sprintf("%d: %s %s [%d+%d]", o.N, o.Kind, o.Name, o.Offset, o.Bytes)
}

// FS is the file system. It has one durable root directory. Create one with
// [New]. An FS is safe for concurrent use.
type FS struct {
	mu      sync.Mutex // guards all fields below, and all nodes and files
	seen    entries    // the state that the program sees
	disk    entries    // the state after a loss of power
	pending []change   // changes from disk to seen, in order
	locks   map[string]string
	count   int
	crashAt int
	crashed bool
	free    int64 // negative means unlimited
	hook    func(Op) error
}

// entries maps the names in the file system to nodes. A directory has a nil
// node.
type entries map[string]*node

// change is one directory change that is not yet on disk.
type change struct {
	dir    string
	remove string // name to remove, or ""
	add    string // name to add, or ""
	node   *node  // the node to add
}

func (c change) apply(to entries) {
	if c.remove != "" {
		delete(to, c.remove)
	}
	if c.add != "" {
		to[c.add] = c.node
	}
}

var _ vfs.FS = (*FS)(nil)

// New returns an empty file system with unlimited space.
func New() *FS {
	return &FS{seen: entries{}, disk: entries{}, locks: make(map[string]string), free: -1}
}

// Ops returns the number of started operations that change the file system.
func (f *FS) Ops() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

// CrashAt crashes the file system at the n-th operation that changes it, as
// counted by Ops. That operation and all later ones fail with ErrCrashed. The
// effect of the n-th operation stays unsynced: [FS.Survive] decides whether it
// is on disk. 0 means never.
func (f *FS) CrashAt(n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashAt = n
}

// Crashed reports whether the file system has crashed.
func (f *FS) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// SetHook sets a hook that runs before each operation, also before several at once. If the hook returns an
// error, the operation does nothing and returns that error. A Sync that fails this way loses its
// data: no later Sync writes the data, but reads still show it, as from a page cache. The hook
// may call the methods of FS that are not methods of vfs.FS. A nil hook removes it.
func (f *FS) SetHook(hook func(Op) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = hook
}

// SetFree sets how many bytes are free. A write that needs more writes as much
// as fits and fails with syscall.ENOSPC. An Allocate that needs more fails and
// allocates nothing. A negative value means unlimited.
func (f *FS) SetFree(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = bytes
}

// Files returns the names of all files, sorted.
func (f *FS) Files() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for name, n := range f.seen {
		if n != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// FlipBit inverts one bit (0 to 7) of the byte at an offset of a file, both in
// the seen state and on disk.
func (f *FS) FlipBit(name string, offset int64, bit uint) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.seen[filepath.Clean(name)]
	if n == nil || offset < 0 || offset >= n.size {
		return &fs.PathError{Op: "flip", Path: name, Err: fs.ErrNotExist}
	}
	n.flip(offset, bit)
	return nil
}

// begin counts an operation and decides whether it fails. If crashing is true,
// the crash happens at this operation and its effect stays unsynced.
func (f *FS) begin(kind OpKind, name string, offset, bytes int64) (crashing bool, err error) {
	f.mu.Lock()
	if f.crashed {
		f.mu.Unlock()
		return false, pathError(kind, name, ErrCrashed)
	}
	op := Op{Kind: kind, Name: name, Offset: offset, Bytes: bytes}
	if kind <= Sync {
		f.count++
		op.N = f.count
		if f.count == f.crashAt {
			f.crashed = true
			f.mu.Unlock()
			return true, pathError(kind, name, ErrCrashed)
		}
	}
	hook := f.hook
	f.mu.Unlock()
	if hook != nil {
		if err := hook(op); err != nil {
			return false, pathError(kind, name, err)
		}
	}
	return false, nil
}

func pathError(kind OpKind, name string, err error) error {
	return &fs.PathError{Op: kind.String(), Path: name, Err: err}
}

// change applies op to the seen state, unless begin refuses the operation. At a
// crash it still applies op, because [FS.Survive] decides what reaches the
// disk.
func (f *FS) change(kind OpKind, name string, offset, bytes int64, op func() error) error {
	crashing, err := f.begin(kind, name, offset, bytes)
	if err != nil && !crashing {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if failed := op(); failed != nil && err == nil {
		return pathError(kind, name, failed)
	}
	return err
}

// link adds a directory change to the seen state and to the pending changes.
func (f *FS) link(c change) {
	c.apply(f.seen)
	f.pending = append(f.pending, c)
}

// isDir reports whether the program sees a directory of that name.
func (f *FS) isDir(dir string) bool {
	n, ok := f.seen[dir]
	return filepath.Dir(dir) == dir || dir == "." || ok && n == nil
}

// MkdirAll implements vfs.FS. Like a new file, a new directory is durable after
// SyncDir of its parent.
func (f *FS) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	return f.change(MkdirAll, dir, 0, 0, func() error {
		var missing []string
		for d := dir; !f.isDir(d); d = filepath.Dir(d) {
			if f.seen[d] != nil {
				return fs.ErrExist
			}
			missing = append(missing, d)
		}
		for _, d := range slices.Backward(missing) {
			f.link(change{dir: filepath.Dir(d), add: d})
		}
		return nil
	})
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	name = filepath.Clean(name)
	n := newNode()
	err := f.change(Create, name, 0, 0, func() error {
		switch _, exists := f.seen[name]; {
		case exists:
			return fs.ErrExist
		case !f.isDir(filepath.Dir(name)):
			return fs.ErrNotExist
		}
		f.link(change{dir: filepath.Dir(name), add: name, node: n})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &file{fs: f, name: name, node: n}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string) (vfs.File, error) {
	n, err := f.find(Open, name)
	if err != nil {
		return nil, err
	}
	return &file{fs: f, name: filepath.Clean(name), node: n}, nil
}

// find looks up a file.
func (f *FS) find(kind OpKind, name string) (*node, error) {
	name = filepath.Clean(name)
	if _, err := f.begin(kind, name, 0, 0); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.seen[name]
	if n == nil {
		return nil, pathError(kind, name, fs.ErrNotExist)
	}
	return n, nil
}

// ReadFile implements vfs.FS.
func (f *FS) ReadFile(name string) ([]byte, error) {
	n, err := f.find(ReadFile, name)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	content := make([]byte, n.size)
	n.readAt(content, 0)
	return content, nil
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]string, error) {
	dir = filepath.Clean(dir)
	if _, err := f.begin(List, dir, 0, 0); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isDir(dir) {
		return nil, pathError(List, dir, fs.ErrNotExist)
	}
	var names []string
	for name := range f.seen {
		if filepath.Dir(name) == dir && name != dir {
			names = append(names, filepath.Base(name))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Rename implements vfs.FS. Within one directory, a crash leaves either the old
// name or the new one, never both and never neither.
func (f *FS) Rename(oldName, newName string) error {
	oldName, newName = filepath.Clean(oldName), filepath.Clean(newName)
	return f.change(Rename, oldName, 0, 0, func() error {
		n := f.seen[oldName]
		switch {
		case n == nil || !f.isDir(filepath.Dir(newName)):
			return fs.ErrNotExist
		case f.isDir(newName):
			return fs.ErrExist
		case oldName == newName:
			return nil
		}
		oldDir, newDir := filepath.Dir(oldName), filepath.Dir(newName)
		if oldDir == newDir {
			f.link(change{dir: newDir, remove: oldName, add: newName, node: n})
			return nil
		}
		f.link(change{dir: newDir, add: newName, node: n})
		f.link(change{dir: oldDir, remove: oldName})
		return nil
	})
}

// Remove implements vfs.FS. Open files stay usable, as on Unix.
func (f *FS) Remove(name string) error {
	name = filepath.Clean(name)
	return f.change(Remove, name, 0, 0, func() error {
		n := f.seen[name]
		if n == nil {
			return fs.ErrNotExist
		}
		f.give(n.backed)
		f.link(change{dir: filepath.Dir(name), remove: name})
		return nil
	})
}

// give returns space to the disk.
func (f *FS) give(bytes int64) {
	if f.free >= 0 {
		f.free += bytes
	}
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	dir = filepath.Clean(dir)
	if _, err := f.begin(SyncDir, dir, 0, 0); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isDir(dir) {
		return pathError(SyncDir, dir, fs.ErrNotExist)
	}
	var rest []change
	for _, c := range f.pending {
		if c.dir == dir {
			c.apply(f.disk)
		} else {
			rest = append(rest, c)
		}
	}
	f.pending = rest
	return nil
}

// Lock implements vfs.FS. A lock ends with its Close or with a crash.
func (f *FS) Lock(name, holder string) (io.Closer, error) {
	name = filepath.Clean(name)
	err := f.change(Lock, name, 0, int64(len(holder)), func() error {
		if other, locked := f.locks[name]; locked {
			return &vfs.LockedError{Name: name, Holder: other}
		}
		if !f.isDir(filepath.Dir(name)) {
			return fs.ErrNotExist
		}
		n := f.seen[name]
		if n == nil {
			n = newNode()
			f.link(change{dir: filepath.Dir(name), add: name, node: n})
		}
		n.truncate(0)
		n.writeAt([]byte(holder), 0)
		f.locks[name] = holder
		return nil
	})
	var locked *vfs.LockedError
	if errors.As(err, &locked) {
		return nil, locked
	}
	if err != nil {
		return nil, err
	}
	return &lock{fs: f, name: name}, nil
}

// lock is a held lock.
type lock struct {
	fs   *FS
	name string
	once sync.Once
}

// Close implements io.Closer.
func (l *lock) Close() error {
	l.once.Do(func() {
		l.fs.mu.Lock()
		defer l.fs.mu.Unlock()
		delete(l.fs.locks, l.name)
	})
	return nil
}
