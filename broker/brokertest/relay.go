package brokertest

import (
	"bytes"
	"encoding/hex"
	"net"
	"sync"
	"testing"
)

// relay stands between a connector and its server. It passes on what it gets, until it
// loses an answer or cuts the connector off.
type relay struct {
	address  string
	listener net.Listener

	mu      sync.Mutex // guards all fields below
	open    map[net.Conn]bool
	gone    bool          // no connection lasts
	knocked chan struct{} // closed when a connection was refused
	loss    *loss         // or nil
}

// loss is an answer that is lost, with its connection.
type loss struct {
	// marker is in the answer or, with behind above 0, in the request. That is then the
	// number of the lost answer on the connection, from the request on.
	marker string
	behind int
	conn   net.Conn      // has passed the request
	lost   chan struct{} // closed when the answer is lost
}

func newRelay(tb testing.TB, server string) *relay {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	r := &relay{address: listener.Addr().String(), listener: listener, open: map[net.Conn]bool{}, knocked: make(chan struct{})}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			upstream, err := net.Dial("tcp", server)
			if err != nil || !r.enter(client, upstream) {
				client.Close()
				if err == nil {
					upstream.Close()
				}
				continue
			}
			running.Go(func() { r.pass(client, upstream, client, (*loss).inRequest) })
			running.Go(func() { r.pass(upstream, client, client, (*loss).inAnswer) })
		}
	})
	tb.Cleanup(func() {
		r.disconnect()
		running.Wait()
	})
	return r
}

// enter notes the two ends of a connection, unless the connector is cut off.
func (r *relay) enter(conns ...net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, conn := range conns {
		r.open[conn] = true
	}
	if r.gone {
		select {
		case <-r.knocked:
		default:
			close(r.knocked)
		}
	}
	return !r.gone
}

// disconnect ends all connections, and refuses further ones permanently.
func (r *relay) disconnect() {
	r.listener.Close()
	r.away()
}

// away ends all connections, and refuses further ones until back is called. The channel is closed
// when it has refused one: then the connector has noticed.
func (r *relay) away() (knocked <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone, r.knocked = true, make(chan struct{})
	for conn := range r.open {
		conn.Close()
	}
	return r.knocked
}

// back takes connections again.
func (r *relay) back() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = false
}

// lose loses the next answer that has the marker or, with behind above 0, the answer with
// that number behind a request that has it. The channel is closed when that has happened.
func (r *relay) lose(marker string, behind int) <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loss = &loss{marker: marker, behind: behind, lost: make(chan struct{})}
	return r.loss.lost
}

// pass copies from one end of the connection of a client to the other, until that ends or
// must end.
func (r *relay) pass(from, to, client net.Conn, ends func(l *loss, client net.Conn, data []byte) bool) {
	defer from.Close()
	defer to.Close()
	const most = 64 << 10
	buffer := make([]byte, 0, 2*most)
	for {
		n, err := from.Read(buffer[len(buffer) : len(buffer)+most])
		data := buffer[:len(buffer)+n] // with the end of the data before it, because a marker may be cut in two
		r.mu.Lock()
		ended := n > 0 && r.loss != nil && ends(r.loss, client, data)
		if ended {
			close(r.loss.lost)
			r.loss = nil
		}
		r.mu.Unlock()
		if ended || err != nil {
			return
		}
		if _, err := to.Write(data[len(buffer):]); err != nil {
			return
		}
		kept := min(len(data), 256)
		buffer = append(buffer[:0], data[len(data)-kept:]...)
	}
}

// inRequest finds the request whose answer is lost. The request passes.
func (l *loss) inRequest(client net.Conn, data []byte) bool {
	if l.behind > 0 && l.conn == nil && l.has(data) {
		l.conn = client
	}
	return false
}

// inAnswer reports whether data is the answer to lose, or its end.
func (l *loss) inAnswer(client net.Conn, data []byte) bool {
	if l.behind == 0 {
		return l.has(data)
	}
	if l.conn != client {
		return false
	}
	l.behind--
	return l.behind == 0
}

// has reports whether data has the marker, as it is or in the hexadecimal form of some
// databases.
func (l *loss) has(data []byte) bool {
	return bytes.Contains(data, []byte(l.marker)) || bytes.Contains(data, []byte(hex.EncodeToString([]byte(l.marker))))
}
