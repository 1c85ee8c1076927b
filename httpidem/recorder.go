package httpidem

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// maxHead bounds the headers of a kept response in bytes.
const maxHead = 64 << 10

// fate says what is known of a request that ran.
type fate uint8

const (
	answered fate = iota // the response says it
	released             // it took no effect
	unknown              // it may have taken effect, and there is no whole response
)

// recorder passes a response on to the client and keeps a copy. It is a
// http.ResponseWriter and a http.Flusher. It has no Unwrap, because what is written past
// it would not be kept.
//
// If the client does not wait any longer, leave gives it another answer. What the handler
// writes then is only kept.
type recorder struct {
	opts   *Options
	origin string       // the Origin of the request
	memory *reservation // the memory for the copy
	work   work
	body   whole // what the handler reads
	holds  bool  // the end of a response waits until it is recorded
	called bool  // the request is a call of a tool

	mu     sync.Mutex // guards the fields below
	client http.ResponseWriter
	header http.Header // what the handler sees: that of the client, until separate
	apart  bool        // header is not that of the client
	fate   fate
	status int // 0 before the final header
	kept   answer
	length string  // the Content-Length of the response, if the handler has set it
	rest   int64   // the bytes of it that are still to come
	last   []byte  // the last byte of the response, which the client gets from end
	full   bool    // the response is not kept whole
	events *events // of a stream that answers a call; nil for others

	// What tells a whole response from a part of one: see isPart.
	empty     bool // its status has no body, whatever its header says
	early     bool // it began before its handler could know that the lease was lost, or was flushed
	ended     bool // the proxy has seen its end
	withdrawn bool // its handler wanted to answer with an error after it had begun
	unwanted  bool // it was cut off, because it is not kept and the client has left
}

func newRecorder(w http.ResponseWriter, r *http.Request, opts *Options, memory *reservation) *recorder {
	return &recorder{opts: opts, memory: memory, origin: r.Header.Get("Origin"), client: w, header: w.Header()}
}

// separate gives the handler a header of its own. Call it before the handler writes, if
// leave may be called concurrently.
func (c *recorder) separate() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.header, c.apart = c.header.Clone(), true
}

func (c *recorder) Header() http.Header { return c.header }

func (c *recorder) WriteHeader(status int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(status)
}

func (c *recorder) writeHeader(status int) {
	if c.status != 0 {
		c.withdrawn = c.withdrawn || status >= 500 && c.status < 500
		return
	}
	for _, name := range []string{c.opts.Profile.Marker, Executed, Expires} {
		delete(c.header, name) // only a replay has it
	}
	if status >= 200 {
		c.empty = status == http.StatusNoContent || status == http.StatusNotModified
		if c.status = status; !c.empty {
			c.length = c.header.Get("Content-Length")
		}
		c.early = c.work.Err() == nil
		c.rest, _ = strconv.ParseInt(c.length, 10, 64) // 0 if the end of the response is that of its handler
		c.keep()
	}
	if c.client == nil {
		return
	}
	client := c.client.Header()
	if c.apart {
		clear(client)
		for name, values := range c.header {
			client[name] = values
		}
	}
	c.opts.Profile.accepted(client, !c.opts.released(status, c.header))
	c.client.WriteHeader(status)
}

// keep keeps the header, and says whether the response can be kept whole.
func (c *recorder) keep() {
	c.kept = answer{status: c.status, origin: c.origin, header: c.replayed()}
	stream := isStream(c.header.Get("Content-Type"))
	if stream && c.called && c.header.Get("Content-Encoding") == "" {
		c.events, stream = &events{most: c.opts.MaxResponse, memory: c.memory}, false
	}
	c.full = size(c.kept.header)+len(c.origin) > maxHead || stream || len(c.header.Values("Trailer")) > 0
}

// isStream reports whether a content type is that of a stream of events.
func isStream(contentType string) bool { return strings.HasPrefix(contentType, "text/event-stream") }

// replayed returns the headers that are kept. Those that Connection names belong to the
// connection.
func (c *recorder) replayed() []line {
	kept := make([]line, 0, len(c.header))
	for _, name := range c.opts.kept {
		for _, value := range c.header[name] {
			kept = append(kept, line{name, value})
		}
	}
	for _, names := range c.header["Connection"] {
		for name := range strings.SplitSeq(names, ",") {
			kept = slices.DeleteFunc(kept, func(l line) bool { return strings.EqualFold(l.name, strings.TrimSpace(name)) })
		}
	}
	return kept
}

func (c *recorder) Write(data []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(http.StatusOK)
	if c.events != nil {
		c.writeEvents(data)
		return len(data), nil
	}
	if !c.full && (int64(len(c.kept.body)+len(data)) > c.opts.MaxResponse || !c.memory.take(int64(len(data)))) {
		c.full, c.kept.body = true, nil
	}
	if !c.full {
		c.kept.body = append(c.kept.body, data...)
	}
	c.rest -= int64(len(data))
	if c.pass(c.last); c.holds && c.rest == 0 && len(data) > 0 {
		c.last = append(c.last[:0], data[len(data)-1])
		c.pass(data[:len(data)-1])
	} else {
		c.last = nil
		c.pass(data)
	}
	if c.full && c.client == nil {
		// The response may have no end. A handler may undo its work because of the error.
		if c.fate == answered {
			c.fate, c.unwanted = unknown, true
		}
		return 0, errUnwanted
	}
	return len(data), nil
}

// writeEvents passes a piece of a stream on immediately. Only the last byte of the response waits
// until it is recorded, with what its piece has behind it. A call continues when its client leaves.
func (c *recorder) writeEvents(data []byte) {
	c.rest -= int64(len(data))
	if c.last != nil {
		return // a later piece: the client needs nothing behind the response
	}
	if end := c.events.add(data); end > 0 && c.holds {
		c.last = bytes.Clone(data[end-1:])
		data = data[:end-1]
	}
	c.pass(data)
}

// responded reports whether the response of a call has come in a stream of events, and
// forsaken whether the client has left a stream without one.
func (c *recorder) responded() (responded, forsaken bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	responded = c.events != nil && c.events.response != nil
	return responded, c.events != nil && c.client == nil && !responded
}

// brokeOff reports whether the service broke off a stream that answers a call. It may have
// sent the response before.
func (c *recorder) brokeOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events != nil
}

// unanswered reports whether a client that called a tool has a stream that ended without the
// response, and cannot ask for the rest of it.
func (c *recorder) unanswered() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events != nil && c.events.response == nil && !c.events.over && !c.events.resumes && c.client != nil
}

// pass writes to the client.
func (c *recorder) pass(data []byte) {
	if c.client == nil || len(data) == 0 {
		return
	}
	if _, err := c.client.Write(data); err != nil {
		c.client = nil // it has left; the rest is kept for its next try
	}
}

// end passes the last byte of a response on. A response without a Content-Length ends
// with its handler. It returns false if the client has a part of a response, which it must
// not take for the whole. A client that can ask for the rest of a stream does not.
func (c *recorder) end() (whole bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fate == unknown {
		return c.client == nil || c.events != nil && c.events.resumes
	}
	c.pass(c.last)
	c.last = nil
	return true
}

// upstream notes how the response of a service ended: with io.EOF, or it broke off.
func (c *recorder) upstream(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended = errors.Is(err, io.EOF); !c.ended {
		c.fate = unknown
	}
}

var errUnwanted = errors.New("httpidem: the client has left, and the response is not kept")

// Flush implements http.Flusher.
func (c *recorder) Flush() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writeHeader(http.StatusOK)
	c.early = true
	if c.client != nil {
		_ = http.NewResponseController(c.client).Flush() // it fails if the client has left
	}
}

// refuse answers instead of the handler, if nothing was sent yet, and notes what is known
// of the request.
func (c *recorder) refuse(f *refusal, known fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fate = known
	c.send(f)
}

// leave answers a client that waits no longer, if nothing was sent yet. What the handler
// writes later is only kept. The connection ends, because the next request on it would
// wait for the handler.
func (c *recorder) leave(f *refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w := c.client; w != nil && c.send(f) {
		_ = http.NewResponseController(w).Flush() // it fails if the client has left
	}
}

func (c *recorder) send(f *refusal) bool {
	if c.status != 0 || c.client == nil {
		return false
	}
	clear(c.client.Header())
	c.client.Header().Set("Connection", "close")
	f.write(c.client, &c.opts.Profile)
	c.client = nil
	return true
}

// answer returns the kept response, and the fate of the request.
func (c *recorder) answer() (*answer, fate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.events != nil && c.events.response != nil {
		c.fate = answered // whatever came behind it
	} else if c.fate == answered && c.isPart() {
		c.fate = unknown
	}
	if c.fate != answered {
		return nil, c.fate
	}
	c.writeHeader(http.StatusOK) // a handler that writes nothing answers 200
	c.trailers()
	if c.opts.released(c.status, c.header) {
		return nil, released
	}
	if c.called && (!c.full || c.events != nil) {
		if c.fate = c.readResponse(); c.fate != answered {
			return nil, c.fate
		}
	} else if c.length != "" && c.length != strconv.Itoa(len(c.kept.body)) {
		c.full = true // it is longer than it said
	}
	c.kept.at = time.Now()
	if c.opts.window != semel.Forever {
		c.kept.until = c.kept.at.Add(c.opts.window)
	}
	if c.full {
		c.kept = answer{status: c.status, at: c.kept.at, until: c.kept.until, lost: true}
		return &c.kept, answered
	}
	// net/http has told the client the type of a body that came without one.
	if _, set := c.header["Content-Type"]; !set && c.header.Get("Content-Encoding") == "" && len(c.kept.body) > 0 {
		c.kept.header = append(c.kept.header, line{"Content-Type", http.DetectContentType(c.kept.body)})
		slices.SortStableFunc(c.kept.header, func(a, b line) int { return strings.Compare(a.name, b.name) })
	}
	return &c.kept, answered
}

// isPart reports whether the handler returned before the end of its response. A handler
// that returns because its lease was lost says nothing: a response that was on its way
// then is whole only if it has reached its length.
func (c *recorder) isPart() bool {
	switch {
	case c.ended, c.unwanted: // unless it was cut off because it is of no use
		return false
	case c.withdrawn:
		return true
	case c.status == 0:
		return c.work.Err() != nil
	case c.empty:
		return false
	case c.length != "":
		return c.rest > 0
	default:
		return c.early && c.work.Err() != nil
	}
}

// readResponse replaces the kept answer to a call by its JSON-RPC response, and says what is
// known of the call.
func (c *recorder) readResponse() fate {
	if c.events == nil && c.length != "" && c.length != strconv.Itoa(len(c.kept.body)) {
		c.full = true // it is longer than it said
		return answered
	}
	if c.events != nil {
		switch {
		case c.events.response != nil:
			c.kept.body = c.events.response
		case c.events.over:
			c.full = true
			return answered
		default:
			return unknown // it may still work
		}
	}
	r, ok := readResponse(c.kept.body)
	switch {
	case !ok:
		c.full = c.status == http.StatusOK // an error page is kept as it is
	case c.opts.noEffect(&r):
		return released
	case c.events == nil:
		c.kept.body = withoutID(c.kept.body)
	}
	return answered
}

// trailers passes the trailers on, which the handler has set behind its response. An
// answer with trailers is not kept.
func (c *recorder) trailers() {
	declared := strings.FieldsFunc(strings.Join(c.header.Values("Trailer"), ","), func(r rune) bool { return r == ',' || r == ' ' })
	for name, values := range c.header {
		late := strings.HasPrefix(name, http.TrailerPrefix)
		c.full = c.full || late
		if c.client != nil && (late || slices.ContainsFunc(declared, func(d string) bool { return strings.EqualFold(d, name) })) {
			c.client.Header()[name] = values
		}
	}
}

// wasCutOff reports whether the response was cut off because it was of no use: it is not kept,
// and the client has left. Then the request took effect, because its response had begun.
func (c *recorder) wasCutOff() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unwanted {
		c.fate = answered
	}
	return c.unwanted
}

// sent reports whether the client has got an answer, or the beginning of one.
func (c *recorder) sent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status != 0 || c.client == nil
}

// work is the context of a request that holds a key.
type work struct {
	context.Context
	recorder *recorder
}

type recorderKey struct{}

// Value implements context.Context.
func (w *work) Value(key any) any {
	if key == (recorderKey{}) {
		return w.recorder
	}
	return w.Context.Value(key)
}

// recorderOf returns the recorder of a request that holds a key, or nil.
func recorderOf(ctx context.Context) *recorder {
	c, _ := ctx.Value(recorderKey{}).(*recorder)
	return c
}
