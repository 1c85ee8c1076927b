package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"syscall"
)

const (
	// These ports are below the ephemeral range, from which an outgoing
	// connection could take a port before the server does. The bus ports of a
	// Redis cluster (port + 10000) are below it too.
	firstPort, lastPort = 15000, 21999
	portTries           = 20
	// As many ports below these are for callers who need a port without a
	// listener.
	freePorts = 5000
)

var errPortTaken = errors.New("port is taken")

// startSomewhere starts the server on its port, or on any port if that is 0.
// The port stays claimed while the server is down.
func (s *Server) startSomewhere(ctx context.Context) error {
	given := s.port != 0
	for range portTries {
		if !given {
			s.port = firstPort + rand.IntN(lastPort-firstPort+1)
		}
		var err error
		if s.owns, err = claimPort(s.port); err == nil {
			err = s.launch(ctx)
		}
		if given || !errors.Is(err, errPortTaken) {
			return err
		}
		s.releasePort()
	}
	return fmt.Errorf("no free port found between %d and %d: %w", firstPort, lastPort, errPortTaken)
}

// releasePort releases the claim of the server's port.
func (s *Server) releasePort() {
	if s.owns != nil {
		_ = s.owns.Close() // the lock ends even if Close returns an error
		s.owns = nil
	}
}

// FreeAddr returns an address of this machine without a listener. Until release
// is called, no server of this package and no other caller gets its port, in
// any process. Outgoing connections and programs that ask the system for a free
// port never get it.
func FreeAddr() (addr string, release func(), err error) {
	for range portTries {
		port := firstPort - 1 - rand.IntN(freePorts)
		if claim, err := claimPort(port); err == nil {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), func() { _ = claim.Close() }, nil
		}
	}
	return "", nil, fmt.Errorf("services: no free port found between %d and %d: %w", firstPort-freePorts, firstPort-1, errPortTaken)
}

// claimPort claims a port that can be bound now. The claim ends when it is
// closed, or with the process.
func claimPort(port int) (io.Closer, error) {
	claim, err := lockPort(port)
	if err != nil {
		return nil, errPortTaken
	}
	if !free(port) {
		return nil, errors.Join(errPortTaken, claim.Close())
	}
	return claim, nil
}

// free reports whether a port can be bound now. Meanwhile this process starts no other one: a
// child has all files of its parent until it executes its program, and would keep the port.
func free(port int) bool {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && listener.Close() == nil
}
