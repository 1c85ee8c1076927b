package httpidem_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel/httpidem"
)

// Services that break HTTP after they have read a request. Nothing is sent twice.
func TestInvalidHTTPResponseOfTheServiceIsNotRetried(t *testing.T) {
	t.Parallel()
	const ok = "HTTP/1.1 201 Created\r\n"
	for name, c := range map[string]struct {
		answer string
		status int    // of the first answer; 0 if it is cut off
		kept   string // the body of a repetition; empty if the outcome is unknown
	}{
		"closes its half of the connection": {"", 502, ""},
		"answers in another protocol":       {"SMTP ready\r\n", 502, ""},
		"sends two lengths":                 {ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\nabc", 502, ""},
		"ends in its header":                {ok + "Content-Le", 502, ""},
		"sends less than its length":        {ok + "Content-Length: 9\r\n\r\nabc", 0, ""},
		"sends a broken chunk":              {ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n", 0, ""},
		"ends without the last chunk":       {ok + "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", 0, ""},
		"sends more than its length":        {ok + "Content-Length: 2\r\n\r\nabc", 201, "ab"},
		"sends a body until the end":        {ok + "Connection: close\r\n\r\nabc", 201, "abc"},
		"sends informational answers first": {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 3) + ok + "Content-Length: 3\r\n\r\nabc", 201, "abc"},
		"sends informational answers only":  {strings.Repeat("HTTP/1.1 103 Early Hints\r\nX: "+strings.Repeat("x", 1000)+"\r\n\r\n", 20_000), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran atomic.Int32
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { listener.Close() })
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go answerRaw(conn, c.answer, &ran)
				}
			}()
			server := proxyTo(t, "http://"+listener.Addr().String(), httpidem.ProxyOptions{})
			first, err := send(t.Context(), server.URL, strings.NewReader("a"), withKey("k"))
			switch {
			case c.status == 0:
				if err == nil && first.err == nil {
					t.Errorf("the client got a whole answer: %v", first.Response)
				}
			case err != nil || first.StatusCode != c.status:
				t.Errorf("%v, want %d: %v", first, c.status, err)
			}
			if again := settled(t, server.URL, "k"); c.kept == "" {
				again.must(t, 409, httpidem.OutcomeUnknown)
			} else if again.must(t, 201, ""); string(again.body) != c.kept {
				t.Errorf("the repetition got %q, want %q", again.body, c.kept)
			}
			if n := ran.Load(); n != 1 {
				t.Errorf("the service got %d requests", n)
			}
		})
	}
}

// answerRaw reads a request, answers with these bytes, and closes its half of the
// connection.
func answerRaw(conn net.Conn, answer string, ran *atomic.Int32) {
	defer conn.Close()
	r, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	ran.Add(1)
	if _, err := io.WriteString(conn, answer); err != nil {
		return // the proxy has closed the connection
	}
	if conn.(*net.TCPConn).CloseWrite() == nil {
		_, _ = io.Copy(io.Discard, conn) // until the proxy closes its half
	}
}
