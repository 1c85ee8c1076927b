package httpidem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/semel-dev/semel"
)

// NewAtomic is [New] for effects that commit together with their keys. do runs an effect
// as semel.Guard.DoCall does, in a transaction that it commits, with the same errors.
// guard is the guard of that store. Package pgidem is New for PostgreSQL.
//
// The client gets the response after the commit. If the transaction is rolled back, the
// request took no effect, and a repetition runs. It is rolled back if the status is 500
// or above, or is one of Profile.Release, and if next panics. If it cannot be committed,
// or the response is longer than MaxResponse, the client gets 500. do may run next again
// after a rollback.
//
// Options.Wait defaults to 2 s, because a second request would otherwise wait inside the
// store, with a connection. Responses with a status of 1xx are not sent, and Flush does nothing.
func NewAtomic(guard *semel.Guard, do DoFunc, next http.Handler, opts *Options) (http.Handler, error) {
	if do == nil {
		return nil, fmt.Errorf("httpidem: NewAtomic: the function that runs effects is nil: %w", semel.ErrInvalidRequest)
	}
	m, err := newMiddleware(guard, next, opts)
	if err != nil {
		return nil, err
	}
	m.do = do
	orElse(&m.opts.Wait, 2*time.Second)
	m.opts.release = append(slices.Clone(m.opts.release), http.StatusInternalServerError/100)
	return m, nil
}

// DoFunc runs an effect under a key, as semel.Guard.DoCall does.
type DoFunc func(ctx context.Context, call semel.Call, effect semel.Func) (semel.Outcome, error)

// held is a response that waits for a commit. It is a http.ResponseWriter.
type held struct {
	header http.Header // what the handler sees
	sent   http.Header // what the client gets
	status int
	body   []byte
	most   int64
	over   bool // the body was longer than most
}

func (h *held) Header() http.Header { return h.header }

func (h *held) WriteHeader(status int) {
	if h.status == 0 && status >= 200 {
		h.status, h.sent = status, h.header.Clone()
	}
}

var errTooLong = errors.New("httpidem: the response is too long")

func (h *held) Write(data []byte) (int, error) {
	if h.over = h.over || int64(len(h.body)+len(data)) > h.most; h.over {
		h.body = nil
		return 0, errTooLong
	}
	h.body = append(h.body, data...)
	return len(data), nil
}

// send sends the response.
func (h *held) send(w http.ResponseWriter) {
	to := w.Header()
	clear(to)
	for name, values := range h.sent {
		to[name] = values
	}
	w.WriteHeader(h.status)
	_, _ = w.Write(h.body) // the client may have left
	for name, values := range h.header {
		if h.sent[name] == nil { // trailers
			to[name] = values
		}
	}
}
