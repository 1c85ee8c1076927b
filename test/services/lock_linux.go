package services

import (
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"strconv"
	"syscall"
)

// Lock takes the exclusive lock of a file or directory, and creates a file that
// does not exist. It waits for the lock if wait is set, and otherwise returns
// [ErrLocked]. Close releases the lock, and so does the end of the process.
func Lock(name string, wait bool) (io.Closer, error) {
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = os.OpenFile(name, os.O_CREATE|os.O_RDONLY, 0o600)
	}
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if !wait {
		how |= syscall.LOCK_NB
	}
	for {
		err = syscall.Flock(int(file.Fd()), how)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if errors.Is(err, syscall.EWOULDBLOCK) {
		err = ErrLocked
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return heldLock{file}, nil
}

// heldLock is the file of a held lock.
type heldLock struct{ *os.File }

// Close releases the lock also for a child, which has all files of its parent until it executes
// its program.
func (l heldLock) Close() error {
	return errors.Join(syscall.Flock(int(l.Fd()), syscall.LOCK_UN), l.File.Close())
}

// lockPort claims a port among all processes and users of the machine. It does
// not bind the port. The claim is a name in the abstract socket namespace,
// which leaves no file.
func lockPort(port int) (io.Closer, error) {
	return net.Listen("unix", "@semel-port-"+strconv.Itoa(port))
}
