package httpidem

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/semel-dev/semel"
)

// New returns a handler that runs each request with a key once. It passes the requests
// without a key to next, and those whose method takes no key: see [Ignore].
//
// The body of a request with a key is read whole before next gets it. next continues
// when the client leaves: its request has a context that does not end with the
// connection, and the key's lease is extended while next runs. If next panics, it is not
// known whether the request took effect.
//
// Errors of the options are named together, and wrap semel.ErrInvalidRequest.
func New(guard *semel.Guard, next http.Handler, opts *Options) (http.Handler, error) {
	m, err := newMiddleware(guard, next, opts)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func newMiddleware(guard *semel.Guard, next http.Handler, opts *Options) (*middleware, error) {
	if guard == nil || next == nil {
		return nil, fmt.Errorf("httpidem: New: guard and handler are required: %w", semel.ErrInvalidRequest)
	}
	m := &middleware{guard: guard, next: next}
	if opts != nil {
		m.opts = *opts
	}
	if err := m.opts.complete(guard); err != nil {
		return nil, err
	}
	m.ignore = Ignore(next, m.opts.Profile.Headers...)
	m.memory.most = m.opts.MaxBuffered
	m.callers = callerLimit{most: m.opts.MaxPerCaller, active: map[string]int{}}
	m.keys.most = m.opts.MaxKeysPerCaller
	m.coalescer = coalescer{most: m.opts.MaxWaiters, mostOfKey: m.opts.MaxWaitersPerKey, running: map[semel.Key]*leader{}}
	return m, nil
}

// Ignore returns a handler for requests that take no key. It passes all of them to next.
// If one has a key in one of these headers, its response has the header
// Idempotency-Status: ignored. Some clients send a key with each request.
func Ignore(next http.Handler, headers ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range headers {
			if r.Header.Get(name) != "" {
				w.Header().Set("Idempotency-Status", "ignored")
			}
		}
		next.ServeHTTP(w, r)
	})
}

type middleware struct {
	guard     *semel.Guard
	do        DoFunc // commits the effect together with its key; nil if it does not
	next      http.Handler
	ignore    http.Handler // next, for methods that take no key
	opts      Options
	memory    memoryBudget
	callers   callerLimit
	keys      quota
	coalescer coalescer
}

func (m *middleware) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &m.opts.Profile
	if !slices.Contains(p.Methods, r.Method) {
		m.ignore.ServeHTTP(w, r)
		return
	}
	memory := reservation{of: &m.memory}
	defer memory.end()
	var body []byte
	if p.KeyPointer != "" { // the key may be in the body
		var ok bool
		if body, ok = m.read(w, r, &memory); !ok {
			return
		}
		r = withBody(r.Context(), r, body, &whole{})
	}
	var id string
	var err error
	if p.MCP {
		var done bool
		if w, id, err, done = m.callIn(w, r, body, &memory); done {
			return
		}
	} else {
		id, err = p.keyOf(r.Header, body)
	}
	sent, badTime := p.firstSent(r.Header)
	switch {
	case errors.Is(err, errNoKey) && !p.Required:
		m.next.ServeHTTP(w, r)
		return
	case errors.Is(err, errNoKey):
		m.refuse(w, KeyMissing, "Send "+p.carrier()+" with a new random value for each operation, and the same value when you repeat it.")
		return
	case cmp.Or(err, badTime) != nil:
		m.refuse(w, KeyInvalid, sentence(cmp.Or(err, badTime)))
		return
	}
	caller, err := m.opts.Scope(r)
	if err != nil || caller == "" {
		deny(w, err, p)
		return
	}
	if !m.callers.enter(caller) {
		m.overloaded(w)
		return
	}
	e := &exchange{middleware: m, w: w, r: r, caller: caller, asked: memory, kept: reservation{of: &m.memory}}
	memory = reservation{of: &m.memory} // the exchange has it
	defer func() {
		if !e.left { // otherwise the end of the recording does it
			e.end()
		}
	}()
	if body == nil {
		var ok bool
		if body, ok = m.read(w, r, &e.asked); !ok {
			return
		}
	}
	fingerprint, err := m.opts.prints.of(r, body, r.Header.Get(p.FirstSent), &m.memory)
	if err != nil {
		m.overloaded(w)
		return
	}
	e.body = body
	e.call = semel.Call{Key: Key(m.opts.Route, caller, id), Fingerprint: fingerprint, Origin: r.Method + " " + r.URL.EscapedPath(), Time: sent}
	e.serve()
}

// callIn returns the key of a call of a tool, and the writer for its client. Messages that
// take no key are done with.
func (m *middleware) callIn(w http.ResponseWriter, r *http.Request, body []byte, memory *reservation) (client http.ResponseWriter, id string, err error, done bool) {
	p := &m.opts.Profile
	plain := reservation{of: &m.memory}
	defer plain.end()
	if body, err = m.opts.prints.content(r, body, &plain); err != nil {
		m.overloaded(w)
		return w, "", err, true
	}
	calls, batch, err := readCalls(body)
	if err != nil {
		m.refuse(w, BodyUnreadable, "Nothing has run. "+sentence(err))
		return w, "", err, true
	}
	for _, c := range calls {
		id, err = c.keyOf(r.Header, p)
		switch {
		case errors.Is(err, errNoKey) && !p.Required:
		case batch:
			m.refuse(w, KeyInvalid, "Nothing has run. A batch has a call that takes a key: send each call by itself.")
			return w, "", err, true
		case c.id == nil:
			m.refuse(w, KeyInvalid, "Nothing has run. A call with a key needs an id, which is a string or a number.")
			return w, "", err, true
		default:
			return &call{ResponseWriter: w, id: bytes.Clone(c.id)}, id, err, false
		}
	}
	memory.give(requestCost) // a stream of notifications may last for days
	if len(calls) > 0 {
		m.next.ServeHTTP(w, r)
	} else {
		m.ignore.ServeHTTP(w, r)
	}
	return w, "", nil, true
}

// withBody returns the request with a context, and with a body that was read: reader
// reads it again.
func withBody(ctx context.Context, r *http.Request, body []byte, reader *whole) *http.Request {
	out := r.WithContext(ctx)
	reader.Reset(body)
	out.Body, out.ContentLength, out.TransferEncoding = reader, int64(len(body)), nil
	if len(out.Trailer) > 0 { // only a body in chunks can have them
		out.ContentLength, out.TransferEncoding = -1, []string{"chunked"}
	}
	return out
}

// whole is a body that was read.
type whole struct{ bytes.Reader }

// Close implements io.Closer.
func (*whole) Close() error { return nil }

// read returns the body of a request. If it is not ok, the request has its answer. The
// body's memory is reserved there.
func (m *middleware) read(w http.ResponseWriter, r *http.Request, memory *reservation) (body []byte, ok bool) {
	most := m.opts.MaxBody
	if r.ContentLength >= 0 {
		most = min(most, r.ContentLength)
	}
	if r.ContentLength > m.opts.MaxBody {
		m.tooLarge(w)
		return nil, false
	}
	if !memory.take(most + requestCost) {
		m.overloaded(w)
		return nil, false
	}
	var err error
	if r.ContentLength >= 0 {
		body = make([]byte, r.ContentLength)
		_, err = io.ReadFull(r.Body, body)
	} else {
		body, err = io.ReadAll(io.LimitReader(r.Body, m.opts.MaxBody+1))
	}
	if err == nil && int64(len(body)) <= m.opts.MaxBody {
		memory.give(most - int64(len(body)))
		return body, true
	}
	memory.end()
	if err != nil {
		m.refuse(w, BodyUnreadable, "Nothing has run. Repeat the request.")
	} else {
		m.tooLarge(w)
	}
	return nil, false
}

func (m *middleware) overloaded(w http.ResponseWriter) {
	(&refusal{problem: Overloaded, detail: "Nothing has run. Repeat the request.", after: time.Second}).write(w, &m.opts.Profile)
}

func (m *middleware) tooLarge(w http.ResponseWriter) {
	w.Header().Set("Connection", "close") // the rest of the body is not read
	m.refuse(w, BodyTooLarge, fmt.Sprintf("Nothing has run. A request with a key may have a body of %d bytes.", m.opts.MaxBody))
}

// mostInFlight limits the Retry-After for a request in flight. Its lease is extended while
// it runs and says nothing of its end: most requests end much earlier.
const mostInFlight = 10 * time.Second

// refused answers a request that did not run, or whose handler gave no answer.
func (m *middleware) refused(w http.ResponseWriter, err error, ran bool) {
	var inFlight *semel.InFlightError
	switch {
	case errors.As(err, &inFlight):
		after := min(max(time.Until(inFlight.LeaseEnd), time.Second), mostInFlight)
		(&refusal{problem: InFlight, detail: "Repeat the request later to get its answer.", after: after}).write(w, &m.opts.Profile)
	case !ran && errors.Is(err, semel.ErrStoreUnavailable):
		unavailable(w, &m.opts.Profile)
	case errors.Is(err, semel.ErrMismatch):
		m.refuse(w, KeyReused, "Another request was sent with this key. Use a new key for a new operation, and repeat a request unchanged.")
	case errors.Is(err, semel.ErrLate):
		m.refuse(w, KeyExpired, "Nothing has run now. The request is older than the time for which keys are kept, so it is not known whether it ran before. Look whether its effect is there.")
	case errors.Is(err, semel.ErrResultNotKept):
		notKept(w, &m.opts.Profile)
	case errors.Is(err, semel.ErrOutcomeUnknown), ran && m.do == nil:
		m.refuse(w, OutcomeUnknown, "The first request with this key did not end. It does not run again by itself. Ask the operator, or look whether its effect is there.")
	case errors.Is(err, errQuota):
		(&refusal{problem: Overloaded, detail: "Nothing has run. The caller has used too many new keys in an hour.", after: m.keys.left()}).write(w, &m.opts.Profile)
	case errors.Is(err, semel.ErrInvalidKey):
		m.refuse(w, KeyInvalid, "Key or caller are too long.")
	case ran && !errors.Is(err, semel.ErrStoreUnavailable):
		m.refuse(w, RolledBack, "Its transaction could not be committed, or its response is too long. A repetition runs again.")
	default:
		unavailable(w, &m.opts.Profile)
	}
}

func (m *middleware) refuse(w http.ResponseWriter, problem Problem, detail string) {
	(&refusal{problem: problem, detail: detail}).write(w, &m.opts.Profile)
}

// sentence returns an error as a sentence.
func sentence(err error) string {
	text := err.Error()
	return string(bytes.ToUpper([]byte(text[:1]))) + text[1:] + "."
}
