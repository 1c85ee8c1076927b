package admin

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
)

// shortcut returns a short path to a directory, through its open file.
func shortcut(dir string) (at string, release func(), err error) {
	open, err := os.Open(dir)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("/proc/self/fd/%d", open.Fd()), func() { _ = open.Close() }, nil
}

// checkPeer returns an error if the other end of an accepted connection belongs to
// another user than this process or root.
func checkPeer(c net.Conn) error {
	user, err := peer(c)
	if err != nil {
		return err
	}
	if own := os.Geteuid(); user != own && user != 0 {
		return fmt.Errorf("the process runs as user %d and answers only that user and root, not user %d", own, user)
	}
	return nil
}

// checkHolder returns an error if the process that listens in the directory of a store
// belongs to a user who may not speak for the store. The user of this process, root and
// the owner of the directory may.
func checkHolder(c net.Conn, dir string) error {
	user, err := peer(c)
	if err != nil {
		return err
	}
	if user == os.Geteuid() || user == 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if owner, ok := info.Sys().(*syscall.Stat_t); !ok || int(owner.Uid) != user {
		return &ForeignError{filepath.Join(dir, socketName), user}
	}
	return nil
}

// peer returns the user of the process at the other end of a connection. For a client
// that is the process that listens.
func peer(c net.Conn) (user int, err error) {
	unix, ok := c.(*net.UnixConn)
	if !ok {
		return 0, fmt.Errorf("%T is not a Unix socket", c)
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return 0, err
	}
	var of *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		of, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, failed
	}
	return int(of.Uid), nil
}
