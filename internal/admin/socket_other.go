//go:build !linux

package admin

import (
	"fmt"
	"net"
)

// shortcut fails: only Linux has a short path to every open directory.
func shortcut(dir string) (at string, release func(), err error) {
	return "", nil, fmt.Errorf("%s is too long for a socket, whose path may have %d bytes: move the store to a shorter path", dir, mostPath)
}

// checkPeer accepts every connection: the mode of the socket keeps other users away.
func checkPeer(net.Conn) error { return nil }

// checkHolder accepts every process: only Linux is asked who listens.
func checkHolder(net.Conn, string) error { return nil }
