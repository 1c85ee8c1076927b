package ask

import (
	"fmt"
	"net"
	"os"
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

// checkPeer returns an error if the other end of a connection belongs to another user
// than this process or root.
func checkPeer(c net.Conn) error {
	unix, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%T is not a Unix socket", c)
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return err
	}
	var peer *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if own := os.Geteuid(); int(peer.Uid) != own && peer.Uid != 0 {
		return fmt.Errorf("the process runs as user %d and answers only that user and root, not user %d", own, peer.Uid)
	}
	return nil
}
