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

// Lock takes the exclusive lock of a file or directory; a file is made if there
// is none. It waits for it, or returns [ErrLocked] at once. Closing the file
// gives the lock back, and so does the end of the process.
func Lock(name string, wait bool) (*os.File, error) {
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
	return file, nil
}

// lockPort claims a port among all processes of the machine, whoever's they are. It
// does not bind it: the claim is a name in the abstract namespace of sockets, which
// leaves no file.
func lockPort(port int) (io.Closer, error) {
	return net.Listen("unix", "@semel-port-"+strconv.Itoa(port))
}
