package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
)

// Socket listens on a unix socket, which the group of the process may use too. It replaces
// the socket of a process that has ended.
func Socket(path string) (net.Listener, error) {
	listener, err := Unix(path)
	if errors.Is(err, syscall.EADDRINUSE) && abandoned(path) {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		listener, err = Unix(path)
	}
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o660); err != nil { //nolint:gosec // the group is meant to use it
		_ = listener.Close()
		return nil, fmt.Errorf("socket: %w", err)
	}
	return listener, nil
}

// Unix listens on a unix socket that only the user of this process can use. A caller that wants
// more users changes its mode afterwards: in the other order, any user could connect in between.
func Unix(path string) (*net.UnixListener, error) {
	listener, err := private().Listen(context.Background(), "unix", path)
	if err != nil {
		return nil, err
	}
	return listener.(*net.UnixListener), nil
}

// abandoned reports whether no process listens on a socket.
func abandoned(path string) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&fs.ModeSocket == 0 {
		return false
	}
	conn, err := net.Dial("unix", path)
	if err == nil {
		_ = conn.Close() // only its being there counts
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
