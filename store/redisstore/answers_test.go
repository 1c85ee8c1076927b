package redisstore

import (
	"bytes"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/peertest"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// liar passes requests to a server. It answers requests that contain a word itself: with the
// answer, or with a cut connection if the answer is empty.
func liar(t *testing.T, upstream, word string, answer func() (text string, lies bool)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	serve := func(client net.Conn) {
		defer client.Close()
		server, err := net.Dial("tcp", upstream)
		if err != nil {
			return
		}
		defer server.Close()
		go func() {
			_, _ = io.Copy(client, server) // ends with the connection
			_ = client.Close()
		}()
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			if err != nil {
				return
			}
			if text, lies := answer(); lies && bytes.Contains(buffer[:n], []byte(word)) {
				if _, err := io.WriteString(client, text); err != nil || text == "" {
					return
				}
				continue
			}
			if _, err := server.Write(buffer[:n]); err != nil {
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
			go serve(client)
		}
	}()
	return listener.Addr().String()
}

// TestServerAnswersAreClassifiedAsDocumented has the rows of Redis in the table of broker/ANSWERS.md. A
// store that fails is never the fault of a message.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	const half = "*1\r\n$5" // the claim waits for the other half
	claim := func(text string) func(t *testing.T) error {
		return func(t *testing.T) error {
			var lies atomic.Bool
			at := liar(t, redisAddr(t), "EVALSHA", func() (string, bool) { return text, lies.Load() })
			timeout := time.Minute
			if text == half {
				timeout = 2 * time.Second
			}
			s := inTime(t, func() (*Store, error) {
				client, err := NewClient(t.Context(), "redis://"+at, unhurried(&ClientOptions{Timeout: timeout}))
				if err != nil {
					return nil, err
				}
				t.Cleanup(client.Close)
				return New(t.Context(), client, &Options{Prefix: servicestest.Prefix()})
			})
			lies.Store(true)
			_, err := askFor(t.Context(), s, request(semel.Key{Scope: t.Name(), ID: "k"}))
			if err == nil {
				return nil
			}
			return &pipeline.StoreError{Err: err}
		}
	}
	var refused []func(t *testing.T) error
	for _, code := range []string{"OOM", "READONLY", "LOADING", "CLUSTERDOWN", "NOREPLICAS", "MISCONF", "BUSY", "NOAUTH", "WRONGPASS", "NOPERM"} {
		refused = append(refused, claim("-"+code+" refused by the test\r\n"))
	}
	peertest.RunAnswers(t, "Redis", []peertest.Answer{
		{Name: "`OOM`, `READONLY`, `LOADING`, `CLUSTERDOWN`, `NOREPLICAS`, `MISCONF`, `BUSY`, `NOAUTH`, `WRONGPASS`, `NOPERM`", Means: peertest.Server, Deliver: peertest.Same(refused...)},
		{Name: "another error, an answer that is not of Redis, half an answer, a cut connection", Means: peertest.ServerInDoubt, Deliver: peertest.Same(
			claim("-ERR something else\r\n"), claim("HTTP/1.1 503 Service Unavailable\r\n\r\n<html>"), claim(half), claim(""))},
	})
}
