package httpidem

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
)

// Replayed is the header that marks a kept answer. Its value is true.
const Replayed = "Idempotent-Replayed"

// New returns a handler that runs each request with a key once. It passes the requests
// without a key to next, and those whose method takes no key.
//
// The body of a request with a key is read whole before next gets it. next continues
// when the client leaves: its request has a context that does not end with the
// connection, and the key's lease is extended while next runs. If next panics, it is not known whether the
// request took effect.
//
// Errors of the options are named together, and wrap semel.ErrInvalidRequest.
func New(guard *semel.Guard, next http.Handler, opts *Options) (http.Handler, error) {
	if guard == nil || next == nil {
		return nil, fmt.Errorf("httpidem: New: guard and handler are required: %w", semel.ErrInvalidRequest)
	}
	m := &middleware{guard: guard, next: next}
	if opts != nil {
		m.opts = *opts
	}
	if err := m.opts.complete(guard.Store()); err != nil {
		return nil, err
	}
	return m, nil
}

type middleware struct {
	guard    *semel.Guard
	next     http.Handler
	opts     Options
	buffered atomic.Int64 // bytes of bodies in progress
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !slices.Contains(m.opts.Methods, r.Method) {
		m.next.ServeHTTP(w, r)
		return
	}
	id, err := keyOf(r.Header, m.opts.Headers, m.opts.Strict)
	switch {
	case errors.Is(err, errNoKey) && !m.opts.Required:
		m.next.ServeHTTP(w, r)
		return
	case errors.Is(err, errNoKey):
		refuse(w, http.StatusBadRequest, KeyMissing, "The request needs a key", fmt.Sprintf("Send the header %s with a new random value for each operation, and the same value when you repeat it.", m.opts.Headers[0]))
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, KeyInvalid, "The key is not valid", sentence(err))
		return
	}
	caller, err := m.opts.Scope(r)
	if err != nil || caller == "" {
		refuse(w, http.StatusUnauthorized, ScopeMissing, "It is not known who sends the request", "Requests with a key need credentials.")
		return
	}
	body, done, ok := m.read(w, r)
	if !ok {
		return
	}
	defer done()
	m.serve(w, r, m.call(r, caller, id, body), body)
}

// call returns the call of a request. The lengths in the id keep callers and keys apart.
func (m *middleware) call(r *http.Request, caller, id string, body []byte) semel.Call {
	return semel.Call{
		Key:         semel.Key{Scope: m.opts.Route, ID: strconv.Itoa(len(caller)) + ":" + caller + ":" + id},
		Fingerprint: fingerprint(r, body),
		Origin:      r.Method + " " + r.URL.EscapedPath(),
	}
}

// fingerprint is a digest of what must be the same when a request is repeated: method,
// host, path, query and body. Headers may differ, such as a token that was renewed.
func fingerprint(r *http.Request, body []byte) semel.Fingerprint {
	sum := sha256.New()
	for _, part := range [][]byte{[]byte(r.Method), []byte(r.Host), []byte(r.URL.EscapedPath()), []byte(r.URL.RawQuery), body} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		sum.Write(size[:])
		sum.Write(part)
	}
	return semel.Fingerprint(sum.Sum(nil)[:16])
}

// read returns the body of a request. If it is not ok, the request has its answer. done
// gives the memory back.
func (m *middleware) read(w http.ResponseWriter, r *http.Request) (body []byte, done func(), ok bool) {
	most := m.opts.MaxBody
	if r.ContentLength >= 0 {
		most = min(most, r.ContentLength)
	}
	if r.ContentLength > m.opts.MaxBody {
		m.tooLarge(w)
		return nil, nil, false
	}
	if m.buffered.Add(most) > m.opts.MaxBuffered {
		m.buffered.Add(-most)
		(&refusal{Overloaded, http.StatusServiceUnavailable, "Too many requests are in progress", "Nothing has run. Repeat the request.", time.Second}).write(w)
		return nil, nil, false
	}
	done = func() { m.buffered.Add(-most) }
	body, err := io.ReadAll(io.LimitReader(r.Body, m.opts.MaxBody+1))
	if err == nil && int64(len(body)) <= m.opts.MaxBody {
		return body, done, true
	}
	done()
	if err != nil {
		refuse(w, http.StatusBadRequest, BodyUnreadable, "The body could not be read", "Nothing has run. Repeat the request.")
	} else {
		m.tooLarge(w)
	}
	return nil, nil, false
}

func (m *middleware) tooLarge(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // the rest of the body is not read
	refuse(w, http.StatusRequestEntityTooLarge, BodyTooLarge, "The body is too large", fmt.Sprintf("Nothing has run. A request with a key may have a body of %d bytes.", m.opts.MaxBody))
}

// errReleased is the error of an effect that did not happen. The client has its answer.
var errReleased = errors.New("the response says that the request took no effect")

// serve runs a request, or answers for the first request with its key.
func (m *middleware) serve(w http.ResponseWriter, r *http.Request, call semel.Call, body []byte) {
	c := newRecorder(w, &m.opts)
	// The work and its record outlive the client.
	ctx := context.WithoutCancel(r.Context())
	ran := false
	out, err := m.guard.DoCall(ctx, call, func(ctx context.Context, _ semel.Claim) ([]byte, error) {
		ran = true
		inner := r.WithContext(context.WithValue(ctx, recorderKey{}, c))
		inner.Header = r.Header.Clone()
		inner.Header.Del("Upgrade") // an offer of HTTP/2, which a server may ignore
		inner.Body, inner.ContentLength, inner.TransferEncoding = io.NopCloser(bytes.NewReader(body)), int64(len(body)), nil
		m.next.ServeHTTP(c, inner)
		kept, known := c.answer()
		switch known {
		case released:
			return nil, errReleased
		case unknown:
			return nil, fmt.Errorf("httpidem: there is no whole response: %w", semel.ErrOutcomeUnknown)
		}
		return kept.encode(), nil
	})
	switch {
	case ran && c.sent(): // if the store has failed since, the key stays claimed
	case err != nil:
		m.refused(w, err, ran)
	default:
		replay(w, out.Result.Data)
	}
}

// replay answers with a kept answer.
func replay(w http.ResponseWriter, data []byte) {
	kept, err := decode(data)
	if err != nil {
		refuse(w, http.StatusConflict, ResponseNotKept, "The answer cannot be read", "The request took effect. Its answer was kept by another version of this service.")
		return
	}
	if kept.lost {
		notKept(w)
		return
	}
	h := w.Header()
	for name, values := range kept.header {
		h[name] = values
	}
	h.Set(Replayed, "true")
	if kept.status != http.StatusNoContent && kept.status != http.StatusNotModified {
		h.Set("Content-Length", strconv.Itoa(len(kept.body)))
	}
	if h["Content-Type"] == nil {
		h["Content-Type"] = nil // net/http would guess one
	}
	w.WriteHeader(kept.status)
	_, _ = w.Write(kept.body) // the client may have left
}

func notKept(w http.ResponseWriter) {
	refuse(w, http.StatusConflict, ResponseNotKept, "The answer is not kept", "The request took effect. Its answer was too large to keep, so it cannot be repeated.")
}

// refused answers a request that did not run, or whose handler gave no answer.
func (m *middleware) refused(w http.ResponseWriter, err error, ran bool) {
	var inFlight *semel.InFlightError
	switch {
	case errors.As(err, &inFlight):
		after := time.Second
		if !inFlight.LeaseEnd.IsZero() {
			after = max(time.Until(inFlight.LeaseEnd), after)
		}
		(&refusal{InFlight, http.StatusConflict, "The first request with this key still runs", "Repeat the request later to get its answer.", after}).write(w)
	case errors.Is(err, semel.ErrMismatch):
		refuse(w, http.StatusUnprocessableEntity, KeyReused, "The key belongs to another request", "Another request was sent with this key. Use a new key for a new operation, and repeat a request unchanged.")
	case errors.Is(err, semel.ErrResultNotKept):
		notKept(w)
	case errors.Is(err, semel.ErrOutcomeUnknown), ran:
		refuse(w, http.StatusConflict, OutcomeUnknown, "It is not known whether the request took effect", "The first request with this key did not end. It does not run again by itself. Ask the operator, or look whether its effect is there.")
	case errors.Is(err, semel.ErrInvalidKey):
		refuse(w, http.StatusBadRequest, KeyInvalid, "The key is not valid", "Key or caller are too long.")
	default:
		(&refusal{StoreUnavailable, http.StatusServiceUnavailable, "The request cannot be checked now", "Nothing has run. Repeat the request.", time.Second}).write(w)
	}
}

func refuse(w http.ResponseWriter, status int, problem Problem, title, detail string) {
	(&refusal{problem: problem, status: status, title: title, detail: detail}).write(w)
}

// sentence returns an error as a sentence.
func sentence(err error) string {
	text := err.Error()
	return string(bytes.ToUpper([]byte(text[:1]))) + text[1:] + "."
}
