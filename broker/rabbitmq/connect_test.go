package rabbitmq_test

import (
	"io"
	"net"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/rabbitmq"
)

// TestConnectRetriesWhenTheServerDiesInTheHandshake cuts the connection after the client's
// first bytes, as a server does that is killed.
func TestConnectRetriesWhenTheServerDiesInTheHandshake(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(conn, make([]byte, 8))
			_ = conn.(*net.TCPConn).SetLinger(0) // the client gets a reset
			conn.Close()
		}
	}()
	_, err = rabbitmq.OpenSource(t.Context(), &rabbitmq.SourceOptions{Client: rabbitmq.Client{Addrs: []string{listener.Addr().String()}}, Queue: "q"})
	if got := semel.Classify(err); got != semel.ClassRetryable {
		t.Errorf("%v is %v, want that it is tried again", err, got)
	}
}
