// Package vfs is the file layer under everything that must survive a crash.
// [OS] is the file system of the operating system.
//
// The layer is small, so that a second implementation can lose, tear and refuse
// writes as real disks do. The crash suite storetest.RunCrash gives a store such
// an implementation. A store of another module can run that suite if it does
// all its file work through an [FS]. Other users do not need this package.
package vfs

import "io"

// FS is a file system. Names are paths of the operating system. Errors wrap
// those of io/fs, and syscall.ENOSPC and syscall.EIO where they apply. An FS is
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
	// List returns the names, without directory, in a directory, sorted.
	List(dir string) ([]string, error)
	// Rename gives oldName the name newName and replaces a file that had it. The
	// change is atomic, and durable after SyncDir.
	Rename(oldName, newName string) error
	// Remove deletes a file. The change is durable after SyncDir.
	Remove(name string) error
	// SyncDir makes creations, renames and removals in a directory durable.
	SyncDir(dir string) error
	// Lock creates a file, locks it exclusively and writes holder into it. It
	// does not wait: if the lock is held it returns a *LockedError. The lock
	// ends with Close, or with the process.
	Lock(name, holder string) (io.Closer, error)
}

// File is an open file. Its methods are safe for concurrent use, except Close.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes content and length of the file durable. After an error,
	// writes since the last Sync may be lost, even if a later Sync succeeds.
	Sync() error
	// Truncate sets the length. Added bytes read as zero.
	Truncate(size int64) error
	// Allocate makes the file at least size bytes long and reserves its blocks,
	// so that writes into it do not run out of space. Added bytes read as zero.
	Allocate(size int64) error
	// Size returns the length.
	Size() (int64, error)
}

// LockedError says who holds a lock.
type LockedError struct {
	// Name is the path of the lock file.
	Name string
	// Holder is the text that the holder gave to Lock.
	Holder string
}

// Error implements error.
func (e *LockedError) Error() string {
	return e.Name + " is held by " + e.Holder
}
