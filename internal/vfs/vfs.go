// Package vfs is the file layer of the embedded store: small enough that a
// second implementation can lose, tear and refuse writes as real disks do.
package vfs

import "io"

// FS is a file system. Names are paths as the operating system has them.
// Methods return errors that errors.Is compares with io/fs's, and syscall.ENOSPC
// and syscall.EIO where they apply. Safe for concurrent use.
type FS interface {
	// MkdirAll makes a directory and its parents, as mode 0o700.
	MkdirAll(dir string) error
	// Create makes a new file, open for reading and writing; fs.ErrExist if
	// there is one.
	Create(name string) (File, error)
	// Open opens an existing file for reading and writing.
	Open(name string) (File, error)
	// ReadFile returns the whole content of a file.
	ReadFile(name string) ([]byte, error)
	// List returns the names, without directory, in a directory, sorted.
	List(dir string) ([]string, error)
	// Rename replaces newName by oldName at once; durable after SyncDir.
	Rename(oldName, newName string) error
	// Remove deletes a file; durable after SyncDir.
	Remove(name string) error
	// SyncDir makes creations, renames and removals in a directory durable.
	SyncDir(dir string) error
	// Lock takes the exclusive lock of a file and writes holder into it. If
	// another process has the lock it returns a *LockedError.
	Lock(name, holder string) (io.Closer, error)
}

// File is an open file. ReadAt and WriteAt may be called at once.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the file's content and length durable. After an error what
	// was written since the last Sync may be gone, and a later Sync that
	// succeeds proves nothing.
	Sync() error
	// Truncate sets the length; what is added reads as zero.
	Truncate(size int64) error
	// Allocate makes the file at least size bytes long, with its blocks
	// reserved so that writes into it do not run out of space. What is added
	// reads as zero.
	Allocate(size int64) error
	// Size returns the length.
	Size() (int64, error)
}

// LockedError says who holds a lock.
type LockedError struct {
	Name   string
	Holder string
}

// Error implements error.
func (e *LockedError) Error() string {
	return e.Name + " is held by " + e.Holder
}
