package idemcheck

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"
)

// probePath begins the paths at which an Upstream tells what it saw.
const probePath = "/.idemcheck/"

// longest is how long an Upstream waits for its gate, or streams.
const longest = time.Minute

// Upstream is the service behind an implementation under test. It counts how often each
// check took effect, and misbehaves as the request says. The query says it:
//
//	check=ID          the check that counts this request
//	status=201        the status of the answer
//	bytes=100         a body of so many bytes; without it, the body has the number of the run
//	kind=gzip         the body is gzip, latin (no valid UTF-8), nul, untyped (no Content-Type), empty
//	header=NAME: TEXT a header of the answer; it may repeat
//	early             103 before the answer
//	trailer           the answer has a trailer
//	flush             the answer is sent in two parts
//	gate              the answer waits until the probe opens the gate, for a minute at most
//	end=reset         no answer: the connection is reset when the body was read
//	end=half          the connection closes in the middle of the answer
//	end=short         Content-Length is more than what comes
//	end=stream        the answer does not end until the client leaves, for a minute at most
//	first             the words above count for the first run only
//	upgrade           101, and then it sends back what it gets
//
// A JSON-RPC message gets a response whose result has the number of the run. The words for it
// are status, gate, end=reset and first, and:
//
//	kind=events       a stream with progress before the gate, and then the response
//	tool=failed       a result with isError
//	error=-32602      an error with this code
//
// GET /.idemcheck/ID answers with what a check did, as [Seen]. With ?runs=N it waits for
// the N-th run to begin, for ten seconds at most. POST /.idemcheck/ID opens the gate.
//
// It keeps the counts until it is dropped. It may be used concurrently.
type Upstream struct {
	mu     sync.Mutex // guards checks and their content
	checks map[string]*checked
}

// Seen is what an Upstream saw of a check.
type Seen struct {
	// Runs is how often the check took effect.
	Runs int `json:"runs"`
	// Header is that of its last request.
	Header http.Header `json:"header,omitempty"`
}

type checked struct {
	Seen
	more   chan struct{} // closed and replaced when a run begins
	gate   chan struct{} // closed when the gate opens
	opened bool
}

// NewUpstream returns an Upstream that has seen nothing.
func NewUpstream() *Upstream { return &Upstream{checks: map[string]*checked{}} }

// Runs returns how often a check took effect.
func (u *Upstream) Runs(id string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.check(id).Runs
}

// Open opens the gate of a check.
func (u *Upstream) Open(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if c := u.check(id); !c.opened {
		c.opened = true
		close(c.gate)
	}
}

// check returns the record of a check. The caller holds mu.
func (u *Upstream) check(id string) *checked {
	c := u.checks[id]
	if c == nil {
		c = &checked{more: make(chan struct{}), gate: make(chan struct{})}
		u.checks[id] = c
	}
	return c
}

// ServeHTTP implements http.Handler.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if id, ok := strings.CutPrefix(r.URL.Path, probePath); ok {
		u.probe(w, r, id)
		return
	}
	// The effect happens when the whole request is there.
	sent, err := io.ReadAll(io.LimitReader(r.Body, mostRead))
	if _, rest := io.Copy(io.Discard, r.Body); err != nil || rest != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	query := r.URL.Query()
	u.mu.Lock()
	c := u.check(query.Get("check"))
	c.Runs++
	c.Header = r.Header.Clone()
	run, gate := c.Runs, c.gate
	close(c.more)
	c.more = make(chan struct{})
	u.mu.Unlock()

	rpc := messageOf(sent, run)
	if query.Has("first") && run > 1 {
		if query = nil; rpc == nil {
			fmt.Fprintf(w, "run %d", run)
			return
		}
	}
	if rpc != nil && query.Get("kind") == "events" {
		rpc.begin(w)
	}
	if query.Has("gate") {
		timer := time.NewTimer(longest)
		defer timer.Stop()
		select {
		case <-gate:
		case <-timer.C:
		case <-r.Context().Done():
			return
		}
	}
	if rpc != nil {
		rpc.answer(w, query)
	} else {
		behave(w, r, run)
	}
}

// mostRead is the most of a body that an Upstream looks at.
const mostRead = 1 << 20

// message is a JSON-RPC message that an Upstream answers.
type message struct {
	JSONRPC string
	ID      json.RawMessage
	run     int
	batch   bool
	streams bool // its answer has begun
}

// messageOf returns the message in a body, or nil. Of a batch it is the first one.
func messageOf(body []byte, run int) *message {
	m, list := &message{run: run}, []message{}
	if json.Unmarshal(body, &list) == nil && len(list) > 0 {
		m = &message{JSONRPC: list[0].JSONRPC, ID: list[0].ID, run: run, batch: true}
	} else if json.Unmarshal(body, m) != nil {
		return nil
	}
	if m.JSONRPC != "2.0" {
		return nil
	}
	if m.ID == nil { // a notification
		m.ID = json.RawMessage("null")
	}
	return m
}

// begin begins a stream with progress.
func (m *message) begin(w http.ResponseWriter) {
	m.streams = true
	w.Header().Set("Content-Type", "text/event-stream")
	fmt.Fprintf(w, "event: message\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":%s,\"progress\":1}}\n\n", m.ID)
	_ = http.NewResponseController(w).Flush() // the client may have left
}

// answer answers as the query says.
func (m *message) answer(w http.ResponseWriter, query url.Values) {
	if query.Get("end") == "reset" {
		breakOff(w)
	}
	body := fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"run %d"}],"isError":%t}}`, m.ID, m.run, query.Get("tool") == "failed")
	if code, err := strconv.Atoi(query.Get("error")); err == nil {
		body = fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":%d,"message":"run %d"}}`, m.ID, code, m.run)
	}
	switch {
	case m.streams:
		fmt.Fprintf(w, "event: message\ndata: %s\n\n", body)
		return
	case m.batch:
		body = "[" + body + "]"
	}
	w.Header().Set("Content-Type", "application/json")
	if status, err := strconv.Atoi(query.Get("status")); err == nil && status >= 200 && status <= 599 {
		w.WriteHeader(status)
	}
	_, _ = io.WriteString(w, body) // the client may have left
}

// probe tells what was seen of a check, or opens its gate.
func (u *Upstream) probe(w http.ResponseWriter, r *http.Request, id string) {
	if r.Method == http.MethodPost {
		u.Open(id)
	}
	want, _ := strconv.Atoi(r.URL.Query().Get("runs"))
	timer := time.NewTimer(10 * time.Second)
	defer timer.Stop()
	for waits := true; ; {
		u.mu.Lock()
		c := u.check(id)
		seen, more := c.Seen, c.more
		u.mu.Unlock()
		if seen.Runs >= want || !waits {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(seen) // the client may have left
			return
		}
		select {
		case <-more:
		case <-timer.C:
			waits = false
		case <-r.Context().Done():
			waits = false
		}
	}
}

// behave answers as the query says.
func behave(w http.ResponseWriter, r *http.Request, run int) {
	query, h := r.URL.Query(), w.Header()
	if query.Has("upgrade") {
		upgrade(w)
		return
	}
	if query.Get("end") == "reset" {
		breakOff(w)
	}
	if query.Has("early") {
		h.Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("Link")
	}
	status, err := strconv.Atoi(query.Get("status"))
	if err != nil || status < 200 || status > 599 {
		status = http.StatusOK
	}
	for _, line := range query["header"] {
		if name, text, ok := strings.Cut(line, ": "); ok {
			h.Add(name, text)
		}
	}
	body := content(h, query.Get("kind"), query.Get("bytes"), run)
	if query.Has("trailer") {
		h.Set("Trailer", "Check-Sum")
		defer h.Set("Check-Sum", "sum "+strconv.Itoa(run))
	}
	if query.Get("end") == "short" {
		h.Set("Content-Length", strconv.Itoa(len(body)+100))
	}
	w.WriteHeader(status)
	if status == http.StatusNoContent || status == http.StatusNotModified {
		return
	}
	half := len(body) / 2
	_, _ = w.Write(body[:half]) // the client may have left
	control := http.NewResponseController(w)
	if end := query.Get("end"); query.Has("flush") || end == "half" || end == "short" {
		_ = control.Flush() // the client may have left
		if end == "half" {
			breakOff(w)
		}
	}
	_, _ = w.Write(body[half:]) // the client may have left
	if query.Get("end") == "short" {
		_ = control.Flush() // the client may have left
		breakOff(w)
	}
	if query.Get("end") == "stream" {
		stream(w, r)
	}
}

// content returns the body of an answer, and sets the headers that describe it.
func content(h http.Header, kind, size string, run int) []byte {
	body := []byte("run " + strconv.Itoa(run))
	if n, err := strconv.Atoi(size); err == nil && n >= 0 && n <= 64<<20 {
		body = bytes.Repeat([]byte("."), n)
		copy(body, "run "+strconv.Itoa(run)+" ")
	}
	switch kind {
	case "empty":
		return nil
	case "gzip":
		h.Set("Content-Type", "application/json")
		h.Set("Content-Encoding", "gzip")
		var packed bytes.Buffer
		zip := gzip.NewWriter(&packed)
		fmt.Fprintf(zip, `{"run":%d}`, run)
		_ = zip.Close() // to memory
		return packed.Bytes()
	case "latin":
		h.Set("Content-Type", "text/plain; charset=iso-8859-1")
		return append(body, 0xe4, 0xff, 0xc0)
	case "nul":
		h.Set("Content-Type", "application/octet-stream")
		return append([]byte{0, 1, 0}, body...)
	case "untyped":
		h["Content-Type"] = nil // net/http would guess one
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
	}
	return body
}

// events is a piece of a stream. It is long, so that a stream is soon too long to be kept.
var events = strings.Repeat("data: more\n\n", 1000)

// stream sends events until the client leaves.
func stream(w http.ResponseWriter, r *http.Request) {
	end := time.NewTimer(longest)
	defer end.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(w, events); err != nil {
			return
		}
		if http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-tick.C:
		case <-end.C:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// breakOff resets the connection, or panics as net/http wants it if it has no connection
// of its own.
func breakOff(w http.ResponseWriter) {
	if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // the end is what counts
		}
		_ = conn.Close() // the end is what counts
	}
	panic(http.ErrAbortHandler)
}

// upgrade changes to a protocol that sends back what it gets.
func upgrade(w http.ResponseWriter) {
	conn, both, err := http.NewResponseController(w).Hijack()
	if err != nil {
		w.WriteHeader(http.StatusNotImplemented)
		return
	}
	defer func() { _ = conn.Close() }()           // the client may have left
	_ = conn.SetDeadline(time.Now().Add(longest)) // it works on every connection that is open
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err == nil {
		_, _ = io.Copy(conn, both) // until the client leaves
	}
}
