// Package vfs is the file layer under all code that must survive a crash. [OS]
// is the file system of the operating system.
//
// The interface is small so that a test implementation can lose, tear and
// refuse writes as real disks do. The crash suite storetest.RunCrash gives a
// store such an implementation. A store in another module can run that suite if
// it does all its file work through an [FS]. Other users do not need this
// package.
package vfs

import (
	"fmt"
	"io"
	"syscall"
)

// FS is a file system. Names are paths of the operating system. Errors wrap the
// errors of io/fs, and syscall.ENOSPC or syscall.EIO where they apply. An FS is
// safe for concurrent use.
type FS interface {
	// MkdirAll creates a directory and its parents with mode 0o700.
	MkdirAll(dir string) error
	// Create creates a file and opens it for reading and writing. It returns
	// fs.ErrExist if the file exists.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// ReadFile returns the whole content of a file.
	ReadFile(name string) ([]byte, error)
	// List returns the sorted names in a directory, without the directory's
	// path.
	List(dir string) ([]string, error)
	// Rename renames oldName to newName and replaces an existing file of that
	// name. The change is atomic. It is durable after SyncDir.
	Rename(oldName, newName string) error
	// Remove deletes a file. The change is durable after SyncDir.
	Remove(name string) error
	// SyncDir makes the creations, renames and removals in a directory durable.
	SyncDir(dir string) error
	// Lock creates a file, locks it exclusively and writes holder into it. It
	// does not wait: if the lock is held, it returns a *LockedError. The lock
	// ends with Close or when the process ends.
	Lock(name, holder string) (io.Closer, error)
}

// File is an open file. Its methods are safe for concurrent use, except Close.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the content and length of the file durable. After an error,
	// writes since the last Sync may be lost, even if a later Sync succeeds.
	Sync() error
	// Truncate sets the length of the file. Added bytes read as zero.
	Truncate(size int64) error
	// Allocate makes the file at least size bytes long and reserves its blocks,
	// so that writes within that size do not run out of space. Added bytes read
	// as zero.
	Allocate(size int64) error
	// Size returns the length of the file.
	Size() (int64, error)
}

// LockedError reports that another holder has a lock.
type LockedError struct {
	// Name is the path of the lock file.
	Name string
	// Holder is the text that the holder passed to Lock.
	Holder string
}

// Error implements error.
func (e *LockedError) Error() string {
	return e.Name + " is held by " + e.Holder
}

// LinkError reports a symbolic link where a file of its own was expected.
type LinkError struct {
	// Name is the path of the link.
	Name string
	// Target is the path that the link has.
	Target string
}

// Error implements error.
func (e *LinkError) Error() string {
	return fmt.Sprintf("%s is a symbolic link to %q and is not followed, because another user of the directory could have planted it. Remove the link (rm %[1]s), or put the file itself in its place", e.Name, e.Target)
}

// Unwrap returns ELOOP, with which open(2) refuses a link under O_NOFOLLOW.
func (e *LinkError) Unwrap() error { return syscall.ELOOP }
