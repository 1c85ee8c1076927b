package httpsrc

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/semel-dev/semel/internal/coding"
)

const (
	// mostOpen bounds connections and requests. A connection takes about 20 KiB, and up
	// to MaxHeaderBytes while a header arrives.
	mostOpen = 4096
	// minRate is how many bytes of a body must arrive in each second.
	minRate = 64 << 10
	// closeGrace is how long Close waits until the answers are written. Then it closes
	// the connections of senders whose requests are not whole, or who do not read.
	closeGrace = 2 * time.Second
	// chunk is how many bytes of a body are taken from the bound at a time.
	chunk = 32 << 10

	full = "too many requests are in progress: send it again"
)

// count bounds the connections. One beyond the bound is closed: its sender gets no
// answer, and sends again.
func (s *Source) count(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if s.conns.Add(1) > s.opts.most {
			_ = conn.Close() // no request has been read
		}
	case http.StateHijacked, http.StateClosed:
		s.conns.Add(-1)
	}
}

// limitTime limits how long the body of a request may take, and the answer. If many
// connections are open, this one closes after its answer, so that idle connections do
// not keep other senders away.
func (s *Source) limitTime(w http.ResponseWriter, r *http.Request) {
	if s.conns.Load() > s.opts.most/2 {
		w.Header().Set("Connection", "close")
	}
	length := r.ContentLength
	if length < 0 || length > s.opts.MaxBody {
		length = s.opts.MaxBody
	}
	limit := s.opts.patience + time.Duration(length/minRate)*time.Second
	now, control := time.Now(), http.NewResponseController(w)
	_ = control.SetReadDeadline(now.Add(limit)) // every connection of net/http supports it
	_ = control.SetWriteDeadline(now.Add(limit + s.opts.Wait + s.opts.patience))
}

// hold is the memory that one request takes from the bound. It has one user at a time.
type hold struct {
	of    *Source
	bytes int64
}

// add takes n more bytes. It reports whether they are within the bound. A request alone
// always is.
func (h *hold) add(n int64) bool {
	h.bytes += n
	now := h.of.held.Add(n)
	return now <= h.of.opts.MaxBytes || now == h.bytes
}

func (h *hold) release() {
	h.of.held.Add(-h.bytes)
	h.bytes = 0
}

// body reads the body of a request, or returns the answer that refuses it. It takes
// from the bound what has arrived, not what was announced: senders that trickle keep
// nothing from others.
// header is what the message takes besides its body.
func (s *Source) body(w http.ResponseWriter, r *http.Request, header int64, held *hold) ([]byte, *answer) {
	decode, known := coding.Of(r.Header)
	switch {
	case !known:
		w.Header().Set("Accept-Encoding", coding.Known)
		w.Header().Set("Connection", "close") // the body is not read
		return nil, &answer{status: http.StatusUnsupportedMediaType, text: fmt.Sprintf("a body with Content-Encoding: %.100q cannot be read: send it with %s, or without", r.Header["Content-Encoding"], coding.Known)}
	case r.ContentLength > s.opts.MaxBody:
		return nil, s.tooLarge(w)
	}
	if now := s.held.Load(); now > 0 && now+r.ContentLength > s.opts.MaxBytes || !held.add(header) {
		return nil, later(full)
	}
	from, length := io.Reader(http.MaxBytesReader(w, r.Body, s.opts.MaxBody)), r.ContentLength
	if decode != nil {
		from, length = decode.Reader(from, s.opts.MaxBody), -1
	}
	body, err := readAll(from, length, held)
	var large *http.MaxBytesError
	switch {
	case err == nil:
		held.add(header + int64(len(body)) - held.bytes) // the rest of the buffer is not used
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return body, nil
	case errors.As(err, &large), errors.Is(err, coding.ErrLarge):
		return nil, s.tooLarge(w)
	}
	w.Header().Set("Connection", "close") // the rest is not read
	switch {
	case errors.Is(err, errFull):
		return nil, later(full)
	case errors.Is(err, coding.ErrInvalid):
		return nil, &answer{status: http.StatusBadRequest, text: "the body is not what its Content-Encoding says: it cannot be decompressed"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, &answer{status: http.StatusRequestTimeout, text: "the body took too long: send it again"}
	}
	return nil, &answer{status: http.StatusBadRequest, text: "the body could not be read"}
}

// errFull means that a body does not fit into the bound.
var errFull = errors.New("httpsrc: too many bytes in memory")

// readAll reads a body of a known length, or of an unknown one if it is negative.
func readAll(r io.Reader, length int64, held *hold) ([]byte, error) {
	var body []byte
	for {
		if len(body) == cap(body) {
			more := max(chunk, len(body))
			if rest := length - int64(len(body)); rest >= 0 {
				more = min(more, int(rest)+1) // one more, to see the end
			}
			if !held.add(int64(more)) {
				return nil, errFull
			}
			body = slices.Grow(body, more)
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func (s *Source) tooLarge(w http.ResponseWriter) *answer {
	w.Header().Set("Connection", "close") // the rest is not read
	return &answer{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("the body is longer than %d bytes", s.opts.MaxBody)}
}
