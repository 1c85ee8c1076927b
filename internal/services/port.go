package services

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
)

const (
	// Ports below the ephemeral range, in which an outgoing connection could
	// take one before the server does, and such that the bus of a Redis
	// cluster (port + 10000) lies below it too.
	firstPort, lastPort = 15000, 21999
	portTries           = 20
	// As many below them are for who wants a port at which nobody listens.
	freePorts = 5000
)

var errPortTaken = errors.New("port is taken")

// startSomewhere starts the server on its port, or on any if that is 0. The port
// stays claimed while the server is down.
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

// releasePort gives the claim of the server's port up.
func (s *Server) releasePort() {
	if s.owns != nil {
		_ = s.owns.Close() // the lock ends with it, whatever it returns
		s.owns = nil
	}
}

// FreeAddr returns an address of this machine at which nobody listens. Until
// release is called, no server of this package gets its port and no other caller,
// in whatever process; outgoing connections and who asks the system for any port do
// not get it at all.
func FreeAddr() (addr string, release func(), err error) {
	for range portTries {
		port := firstPort - 1 - rand.IntN(freePorts)
		if claim, err := claimPort(port); err == nil {
			return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), func() { _ = claim.Close() }, nil
		}
	}
	return "", nil, fmt.Errorf("services: no free port found between %d and %d: %w", firstPort-freePorts, firstPort-1, errPortTaken)
}

// claimPort claims a port that can be bound now. The claim ends when it is closed,
// and with the process.
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

// free reports whether a port can be bound now.
func free(port int) bool {
	listener, err := net.Listen("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	return err == nil && listener.Close() == nil
}
