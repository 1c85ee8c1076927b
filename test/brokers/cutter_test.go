package brokers

import (
	"net"
	"sync"
	"testing"
)

// cutter stands between the program and the broker, and cuts connections.
type cutter struct {
	listener net.Listener
	mu       sync.Mutex
	upstream string
	open     map[net.Conn]*int // the bytes that may still pass to the broker, or nil for no limit
	cuts     int
}

func newCutter(t *testing.T, upstream string) *cutter {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{listener: listener, upstream: upstream, open: map[net.Conn]*int{}}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { c.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		c.disconnect(0)
		serving.Wait()
	})
	return c
}

func (c *cutter) addr() string { return c.listener.Addr().String() }

// count returns how many connections were cut.
func (c *cutter) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cuts
}

// disconnect ends all connections as soon as so many bytes have passed to the broker. The
// program does not learn which requests arrived: answers no longer pass.
func (c *cutter) disconnect(after int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for conn := range c.open {
		if after == 0 {
			conn.Close()
			continue
		}
		c.open[conn] = &after
	}
}

func (c *cutter) serve(client net.Conn) {
	defer client.Close()
	broker, err := net.Dial("tcp", c.upstream)
	if err != nil {
		return
	}
	defer broker.Close()
	c.mu.Lock()
	c.open[client] = nil
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.open, client)
		c.mu.Unlock()
	}()
	var both sync.WaitGroup
	both.Go(func() {
		c.copy(client, client, broker, false)
		client.Close()
	})
	c.copy(client, broker, client, true)
	broker.Close()
	client.Close()
	both.Wait()
}

// copy copies until the connection of the client is cut.
func (c *cutter) copy(client, to, from net.Conn, sends bool) {
	buffer := make([]byte, 4096)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		c.mu.Lock()
		limit, passes := c.open[client], n
		switch {
		case limit != nil && !sends:
			passes = 0 // the answer is lost
		case limit != nil:
			passes = min(n, *limit)
			*limit -= passes
		}
		over := limit != nil && *limit == 0
		if over && sends {
			c.cuts++
		}
		c.mu.Unlock()
		if _, err := to.Write(buffer[:passes]); err != nil || over {
			return
		}
	}
}
