package listen

import (
	"net"
	"syscall"
)

// private is that of a unix socket which only the user of this process can use. Linux gives the
// file the mode that the socket has when it is bound, so there is no moment before.
func private() *net.ListenConfig {
	return &net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var refused error
		err := c.Control(func(fd uintptr) { refused = syscall.Fchmod(int(fd), 0o600) })
		if err != nil {
			return err
		}
		return refused
	}}
}
