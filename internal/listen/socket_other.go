//go:build !linux

package listen

import "net"

// private is that of a unix socket. Only Linux takes its mode beforehand: elsewhere the umask of
// the process decides until the caller of Unix has changed the mode.
func private() *net.ListenConfig { return &net.ListenConfig{} }
