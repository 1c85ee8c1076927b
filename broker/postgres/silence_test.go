package postgres_test

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/url"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/postgres"
)

// silentAt returns the address of a proxy. When it is armed, it passes on the next COMMIT, and
// from then on no answer: neither to that connection nor to new ones.
func silentAt(t *testing.T, address string) (at string, arm func()) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	target := u.Host
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	var armed, silent atomic.Bool
	pass := func(to, from net.Conn, ends func([]byte) bool) {
		defer to.Close()
		defer from.Close()
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if err != nil {
				return
			}
			if ends(buffer[:n]) {
				_, _ = io.Copy(io.Discard, from) // until the other side gives up
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	go func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", target)
			if err != nil {
				_ = client.Close()
				continue
			}
			go pass(server, client, func(sent []byte) bool {
				if armed.Load() && bytes.Contains(bytes.ToLower(sent), []byte("commit\x00")) {
					silent.Store(true)
				}
				return false
			})
			go pass(client, server, func([]byte) bool { return silent.Load() })
		}
	}()
	u.Host = listener.Addr().String()
	return u.String(), func() { armed.Store(true) }
}

// TestASilentServerLeavesACommitInDoubt has the server commit, and not answer.
func TestASilentServerLeavesACommitInDoubt(t *testing.T) {
	t.Parallel()
	address := servers.Database(t)
	pool := open(t, address)
	exec(t, pool, outTable)
	for i, name := range []string{"sink", "session"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at, arm := silentAt(t, address)
			w := ways(t, at, open(t, at), &row)[i]
			arm()
			it := item("k"+name, "m"+name)
			w.process(t.Context(), append(items(), it))
			if !errors.Is(it.Err, semel.ErrOutcomeUnknown) || !errors.Is(it.Err, postgres.ErrSilent) {
				t.Errorf("the message ends with %v, which must say that the server is silent and the outcome unknown", it.Err)
			}
		})
	}
}
