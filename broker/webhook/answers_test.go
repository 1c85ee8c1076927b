package webhook

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/peertest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestServerAnswersAreClassifiedAsDocumented has the rows of webhooks in the table of
// broker/ANSWERS.md.
func TestServerAnswersAreClassifiedAsDocumented(t *testing.T) {
	t.Parallel()
	status := func(code int, header ...string) func(t *testing.T) error {
		return func(t *testing.T) error {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if len(header) > 0 {
					w.Header().Set(header[0], header[1])
				}
				w.Header().Set("Content-Type", "text/html")
				w.WriteHeader(code)
				_, _ = io.WriteString(w, "<html>a page of a proxy</html>")
			}))
			defer server.Close()
			return peertest.DeliverOne(t, newSink(t, Options{URL: server.URL}), "{}")
		}
	}
	bytes := func(text string) func(t *testing.T) error {
		return func(t *testing.T) error {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				conn, _, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				_, _ = io.WriteString(conn, text)
				_ = conn.Close()
			}))
			defer server.Close()
			return peertest.DeliverOne(t, newSink(t, Options{URL: server.URL}), "{}")
		}
	}
	peertest.RunAnswers(t, "Webhook", []peertest.Answer{
		{Name: "no connection", Means: peertest.Server, Deliver: func(t *testing.T) error {
			return peertest.DeliverOne(t, newSink(t, Options{URL: "http://" + servicestest.FreeAddr(t)}), "{}")
		}},
		{Name: "401, 407, 503, and 429 with `Retry-After`", Means: peertest.Server, Deliver: peertest.Same(status(401), status(407), status(503), status(429, "Retry-After", "1"))},
		{Name: "502 and 504, which come from a proxy", Means: peertest.ServerInDoubt, Deliver: peertest.Same(status(502), status(504))},
		{Name: "a cut connection", Means: peertest.ServerInDoubt, Deliver: bytes("")},
		{Name: "half of the header", Means: peertest.ServerInDoubt, Deliver: bytes("HTTP/1.1 200 OK\r\nContent-Le")},
		{Name: "silence for `timeout`", Means: peertest.ServerInDoubt, Deliver: func(t *testing.T) error {
			return peertest.DeliverOne(t, newSink(t, Options{URL: "http://" + peertest.Silent(t), Timeout: 50 * time.Millisecond}), "{}")
		}},
		{Name: "2xx, even with half a body", Means: peertest.Delivered, Deliver: peertest.Same(status(200), status(204), bytes("HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{"))},
		{Name: "403, 408, 409, 425, 429, 500 and other 5xx", Means: peertest.Message, Deliver: peertest.Same(status(403), status(408), status(409), status(425), status(429), status(500), status(507))},
		{Name: "other 4xx, and 3xx", Means: peertest.MessageForGood, Deliver: peertest.Same(status(400), status(404), status(413), status(422), status(301))},
	})
}
