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

// body reads the body of a request as it was sent, or returns the answer that refuses it. It
// takes from the bound what has arrived, not what was announced: senders that trickle keep
// nothing from others.
// header is what the message takes besides its body.
func (s *Source) body(w http.ResponseWriter, r *http.Request, header int64, held *hold) ([]byte, *answer) {
	if r.ContentLength > s.opts.MaxBody {
		w.Header().Set("Connection", "close") // the body is not read
		return nil, tooLarge(s.opts.MaxBody)
	}
	if now := s.held.Load(); now > 0 && now+r.ContentLength > s.opts.MaxBytes || !held.add(header) {
		return nil, later(full)
	}
	body, err := readAll(http.MaxBytesReader(w, r.Body, s.opts.MaxBody), r.ContentLength, held)
	if err == nil {
		_ = http.NewResponseController(w).SetReadDeadline(time.Time{})
		return body, nil
	}
	w.Header().Set("Connection", "close") // the rest is not read
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return nil, tooLarge(s.opts.MaxBody)
	case errors.Is(err, errFull):
		return nil, later(full)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return nil, later("the body took too long: send it again")
	}
	return nil, &answer{status: http.StatusBadRequest, text: "the body could not be read"}
}

// errFull means that a body does not fit into the bound.
var errFull = errors.New("httpsrc: too many bytes in memory")

// readAll reads a body of a known length, or of an unknown one if it is negative. What it
// returns takes as much of the bound as it has bytes.
func readAll(r io.Reader, length int64, held *hold) ([]byte, error) {
	var body []byte
	var taken int64
	for {
		if len(body) == cap(body) {
			more := max(chunk, len(body))
			if rest := length - int64(len(body)); rest >= 0 {
				more = min(more, int(rest)+1) // one more, to see the end
			}
			taken += int64(more)
			if !held.add(int64(more)) {
				return nil, errFull
			}
			body = slices.Grow(body, more)
		}
		n, err := r.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if errors.Is(err, io.EOF) {
			held.add(int64(len(body)) - taken) // the rest of the buffer is not used
			return body, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

func tooLarge(limit int64) *answer {
	return &answer{status: http.StatusRequestEntityTooLarge, text: fmt.Sprintf("the body is longer than %d bytes", limit)}
}
