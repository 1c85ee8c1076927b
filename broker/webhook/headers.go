package webhook

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/textproto"
	"slices"
	"strconv"
	"strings"

	"github.com/semel-dev/semel/internal/structured"
	"github.com/semel-dev/semel/pipeline"
)

// These are the headers of a request.
const (
	idempotencyKeyHeader = "Idempotency-Key"
	scopeHeader          = "Semel-Scope"
	attemptHeader        = "Semel-Attempt"
	tokenHeader          = "Semel-Token"
	redriveHeader        = "Semel-Redrive"
	pipelineHeader       = "Semel-Pipeline"
)

func (s *Sink) setHeaders(req *http.Request, it *pipeline.Item) {
	m := &it.Message
	for i := range m.Headers { // the trace context always passes
		switch name, value := m.Headers[i].Name, string(m.Headers[i].Value); {
		case !printable(value):
		case strings.EqualFold(name, "traceparent"):
			req.Header.Set(name, value)
		case strings.EqualFold(name, "tracestate"):
			req.Header.Add(name, value)
		}
	}
	for _, name := range s.opts.Forward {
		if value, ok := m.Header(name); ok && printable(string(value)) {
			req.Header.Set(name, string(value))
		}
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", contentType(it))
	}
	for name, values := range s.opts.Headers {
		if textproto.CanonicalMIMEHeaderKey(name) == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[textproto.CanonicalMIMEHeaderKey(name)] = slices.Clone(values)
	}
	set := func(name, value string) { req.Header.Set(name, value) }
	req.Header.Del(idempotencyKeyHeader)
	// In this spelling it is the same header. Under its usual spelling net/http
	// would repeat the request by itself, with the attempt number of the first
	// request. A request that was certainly not sent is still repeated.
	req.Header["Idempotency-key"] = []string{idempotencyKey(it)}
	if scope := it.Call.Key.Scope; printable(scope) && scope != "" {
		set(scopeHeader, scope)
	}
	set(attemptHeader, strconv.Itoa(max(it.Attempt, 1)))
	if it.Token != 0 {
		set(tokenHeader, strconv.FormatUint(uint64(it.Token), 10))
	}
	if it.Redrive > 0 {
		set(redriveHeader, strconv.Itoa(it.Redrive))
	}
	if s.opts.Pipeline != "" {
		set(pipelineHeader, s.opts.Pipeline)
	}
}

// digestPrefix begins a digest that replaces an id. Ids with this prefix are
// replaced too.
const digestPrefix = "sha256:"

// idempotencyKey returns the id if it is valid in a header, and otherwise a
// digest of it. Both are the same for every delivery of the key. An id that a receiver
// would read as another one, or as two, is a string in quotes, as RFC 9651 has it.
func idempotencyKey(it *pipeline.Item) string {
	id := it.Call.Key.ID
	if len(id) <= 255 && id != "" && printable(id) && !strings.HasPrefix(id, digestPrefix) {
		if structured.IsString(id) || strings.Contains(id, ",") {
			return structured.Quote(id)
		}
		return id
	}
	sum := sha256.Sum256([]byte(id))
	return digestPrefix + base64.RawURLEncoding.EncodeToString(sum[:])
}

// ofConnection are headers of the connection, which the HTTP client sets.
var ofConnection = []string{"Connection", "Content-Length", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade"}

// token reports whether a text is a valid header name.
func token(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(c rune) bool {
		return c <= ' ' || c > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// printable reports whether a text is visible ASCII, with spaces only inside.
func printable(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return text == "" || text[0] != ' ' && text[len(text)-1] != ' '
}

// contentType returns the content type of the message, or a guess from its
// first byte.
func contentType(it *pipeline.Item) string {
	for _, name := range []string{"content-type", "Content-Type", "contentType"} {
		if value, ok := it.Message.Header(name); ok && printable(string(value)) {
			return string(value)
		}
	}
	if body := bytes.TrimLeft(it.Message.Body, " \t\r\n"); len(body) > 0 && (body[0] == '{' || body[0] == '[') {
		return "application/json"
	}
	return "application/octet-stream"
}
