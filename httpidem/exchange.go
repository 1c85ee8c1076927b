package httpidem

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
)

// exchange is a request with a key, and its answer.
type exchange struct {
	*middleware
	w      http.ResponseWriter
	r      *http.Request
	caller string
	call   semel.Call
	body   []byte
	leader *leader     // nil unless other requests can wait for this one
	c      *recorder   // of the last run; nil if it did not run
	held   *held       // the client of c, if the effect commits with its key
	asked  reservation // for the request
	kept   reservation // for the response
	left   bool        // the client has its answer, which is recorded in the background

	own leader // the memory of leader
}

// serve runs the request, or answers for the first request with its key.
func (e *exchange) serve() {
	defer func() {
		if !e.left {
			e.finish(settled{}) // after a panic
		}
	}()
	// The work and its record outlive the client.
	ctx := context.WithoutCancel(e.r.Context())
	end := time.Now().Add(e.opts.Wait)
	var out semel.Outcome
	var err error
	answered := false
	_ = retry.Poll(e.r.Context(), end, func() bool {
		if e.leader == nil {
			if result := e.coalescer.wait(e.r.Context(), &e.call, end); result.ok {
				answered = true
				e.answer(result)
				return true
			}
			if e.opts.Wait > 0 { // one request of this process asks the store, and the others wait for it
				e.leader = e.coalescer.begin(&e.call, &e.own, false, time.Time{})
			}
		}
		out, err = e.once(ctx)
		elsewhere, wait := errors.AsType[*semel.InFlightError](err)
		if e.left || !wait {
			return true
		}
		if e.leader != nil {
			e.coalescer.note(e.leader, false, elsewhere.LeaseEnd)
		}
		return false
	})
	if !answered && !e.left {
		e.settle(out, err) // even if the client has left
	}
}

// end gives back what the request takes from others.
func (e *exchange) end() {
	e.kept.end()
	e.asked.end()
	e.callers.leave(e.caller)
}

// errReleased is the error of an effect that did not happen. The client has its answer.
var errReleased = errors.New("the response says that the request took no effect")

var errNotWhole = errors.New("httpidem: there is no whole response")

// run is the effect of the request.
func (e *exchange) run(ctx context.Context, claim semel.Claim) ([]byte, error) {
	if e.c == nil && !e.keys.take(e.caller) {
		return nil, errQuota
	}
	if e.leader == nil {
		e.leader = e.coalescer.begin(&e.call, &e.own, true, claim.LeaseEnd)
	} else {
		e.coalescer.note(e.leader, true, claim.LeaseEnd)
	}
	client := e.w
	if e.do != nil {
		e.held = &held{header: e.w.Header().Clone(), most: e.opts.MaxResponse}
		client = e.held
	}
	e.kept.end() // of a run that was rolled back
	e.kept.spare = requestCost
	e.c = newRecorder(client, e.r, &e.opts, &e.kept)
	e.c.work, e.c.holds, e.c.called = work{ctx, e.c}, e.do == nil, callOf(e.w) != nil
	inner := e.inner(&e.c.work, &e.c.body)
	if inner.Header["Upgrade"] != nil { // an offer of HTTP/2, which a server may ignore
		inner.Header = inner.Header.Clone()
		inner.Header.Del("Upgrade")
	}
	e.next.ServeHTTP(e.c, inner)
	kept, known := e.c.answer()
	switch {
	case e.held != nil && e.held.over:
		return nil, fmt.Errorf("httpidem: the response is longer than %d bytes", e.held.most)
	case known == released:
		return nil, errReleased
	case known == unknown && e.held != nil:
		return nil, errNotWhole // and so its transaction is rolled back
	case known == unknown:
		return nil, fmt.Errorf("%w: %w", errNotWhole, semel.ErrOutcomeUnknown)
	}
	return e.opts.encrypt(kept.encode(), e.call.Key), nil
}

// inner returns the request for the handler.
func (e *exchange) inner(ctx context.Context, reader *whole) *http.Request {
	out := withBody(context.WithValue(ctx, keyKey{}, e.call.Key), e.r, e.body, reader)
	if e.opts.HideKey {
		out.Header = out.Header.Clone()
		for _, name := range e.opts.Profile.Headers {
			delete(out.Header, name)
		}
	}
	return out
}

// settle answers the request, and those that wait for it.
func (e *exchange) settle(out semel.Outcome, err error) {
	if e.c == nil && out.Decision == semel.Undecided && (errors.Is(err, semel.ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded)) {
		// The outcome of the claim is unknown, and not that of a request. Or the store was
		// not even asked in time, because others wait for it.
		err = fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
	}
	result := e.result(out, err)
	e.finish(result) // first, because this client may be slow
	e.respond(out, result)
}

// result returns the result for all requests that wait for this one.
func (e *exchange) result(out semel.Outcome, err error) settled {
	return settled{data: out.Result.Data, err: err, ok: err == nil || e.c == nil && !errors.Is(err, semel.ErrInFlight)}
}

// respond answers the client, or ends the answer that the handler has begun.
func (e *exchange) respond(out semel.Outcome, result settled) {
	err := result.err
	switch {
	case e.held != nil && out.Decision != semel.Duplicate && (err == nil || errors.Is(err, errReleased)):
		e.held.send(e.w)
	case e.held == nil && e.c != nil && e.c.sent():
		// If the store has failed since, the key stays claimed.
		switch {
		case e.c.end():
		case e.c.unanswered():
			e.refused(e.w, err, true)
		case e.r.Context().Value(http.ServerContextKey) != nil:
			panic(http.ErrAbortHandler) // the only way in which net/http ends a response as a broken one
		}
	default:
		e.answer(result)
	}
}

// finish ends the wait of other requests for this one.
func (e *exchange) finish(result settled) {
	if e.leader != nil {
		e.coalescer.end(e.call.Key, e.leader, result)
		e.leader = nil
	}
}

// answer answers with a result of the store.
func (e *exchange) answer(result settled) {
	if e.opts.FailOpen && e.c == nil && errors.Is(result.err, semel.ErrStoreUnavailable) {
		e.w.Header().Set("Idempotency-Status", "unprotected")
		client := e.w
		if c := callOf(client); c != nil {
			client = c.ResponseWriter
		}
		e.next.ServeHTTP(client, e.inner(e.r.Context(), &whole{}))
		return
	}
	if result.err != nil {
		e.refused(e.w, result.err, e.c != nil)
		return
	}
	e.kept.end() // of a run that was rolled back
	e.kept.spare = requestCost
	size := int64(len(result.data))
	if callOf(e.w) != nil {
		size *= 2 // a copy gets the id of the call
	}
	if !e.kept.takeWhole(size) {
		(&refusal{problem: Overloaded, kept: true, detail: "The request took effect, and there is no memory to send its answer now. Repeat the request.", after: time.Second}).write(e.w, &e.opts.Profile)
		return
	}
	replay(e.w, e.r, &e.opts.Profile, e.opts.decrypt(result.data, e.call.Key))
}
