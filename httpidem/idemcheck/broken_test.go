package idemcheck_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/httpidem"
	"github.com/semel-dev/semel/httpidem/idemcheck"
	"github.com/semel-dev/semel/store/memstore"
)

// answer is a whole answer that a broken implementation changes.
type answer struct {
	status int
	header http.Header
	body   []byte
}

// changed changes the answers of a handler. Those that a recorder cannot hold pass.
func changed(next http.Handler, change func(r *http.Request, a *answer)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, word := range []string{"end", "upgrade", "flush", "trailer", "early"} {
			if r.URL.Query().Has(word) {
				next.ServeHTTP(w, r)
				return
			}
		}
		recorder := httptest.NewRecorder()
		next.ServeHTTP(recorder, r)
		a := &answer{recorder.Code, recorder.Header().Clone(), recorder.Body.Bytes()}
		change(r, a)
		for name, lines := range a.header {
			w.Header()[name] = lines
		}
		w.WriteHeader(a.status)
		_, _ = w.Write(a.body) // the client may have left
	})
}

func isReplay(a *answer) bool { return a.header.Get("Idempotent-Replayed") == "true" }

// gunzip unpacks an answer, as clients of many languages do by themselves.
func gunzip(a *answer) {
	if a.header.Get("Content-Encoding") != "gzip" {
		return
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(a.body))
	if err != nil {
		return
	}
	if body, err := io.ReadAll(unpacked); err == nil {
		a.body = body
		a.header.Del("Content-Encoding")
		a.header.Del("Content-Length")
	}
}

// noHeartbeat is a store whose leases cannot be extended, although it says so.
type noHeartbeat struct{ semel.Store }

func (s noHeartbeat) Extend(_ context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	for i := range reqs {
		answers[i] = semel.ExtendAnswer{LeaseEnd: time.Now().Add(reqs[i].Lease)}
	}
	return nil
}

// TestABrokenImplementationIsFound checks implementations with one fault each. Only the
// items about that fault may be missed.
func TestABrokenImplementationIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		want  []int
		wrap  func(right http.Handler) http.Handler
		scope func(r *http.Request) (string, error)
		store func(semel.Store) semel.Store
		two   bool // two processes share the store
	}{
		"a replay is unpacked": {want: []int{43}, wrap: func(right http.Handler) http.Handler {
			return changed(right, func(_ *http.Request, a *answer) {
				if isReplay(a) {
					gunzip(a)
				}
			})
		}},
		"every answer is unpacked": {want: []int{43}, wrap: func(right http.Handler) http.Handler {
			return changed(right, func(_ *http.Request, a *answer) { gunzip(a) })
		}},
		"a replay is unpacked and still says gzip": {want: []int{43}, wrap: func(right http.Handler) http.Handler {
			return changed(right, func(_ *http.Request, a *answer) {
				if packed := a.header.Get("Content-Encoding"); isReplay(a) && packed != "" {
					gunzip(a)
					a.header.Set("Content-Encoding", packed)
				}
			})
		}},
		"a mismatch is refused with 400": {want: []int{16, 18}, wrap: func(right http.Handler) http.Handler {
			return changed(right, func(_ *http.Request, a *answer) {
				if a.status == http.StatusUnprocessableEntity && a.header.Get("Content-Type") == "application/problem+json" {
					a.status = http.StatusBadRequest
				}
			})
		}},
		"a name without its secret is a caller": {want: []int{31}, scope: func(r *http.Request) (string, error) {
			name, _, _ := r.BasicAuth()
			return name, nil
		}},
		"leases are not extended": {want: []int{51}, store: func(s semel.Store) semel.Store { return noHeartbeat{s} }, two: true},
		"a replay has a cookie": {want: []int{41}, wrap: func(right http.Handler) http.Handler {
			return changed(right, func(_ *http.Request, a *answer) {
				if isReplay(a) {
					a.header.Set("Set-Cookie", "session=other")
				}
			})
		}},
		"a replay has no marker": {want: []int{38}, wrap: func(right http.Handler) http.Handler {
			return changed(right, func(_ *http.Request, a *answer) { a.header.Del("Idempotent-Replayed") })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			memory, err := memstore.New(nil)
			if err != nil {
				t.Fatal(err)
			}
			store := semel.Store(memory)
			if c.store != nil {
				store = c.store(store)
			}
			scope := c.scope
			if scope == nil {
				scope = byPassword
			}
			one := func(upstream http.Handler, _ *url.URL) http.Handler {
				handler := guardedBy(t, store, upstream, &httpidem.Options{Scope: scope, MaxBody: 64 << 10, MaxResponse: 128 << 10})
				if c.wrap != nil {
					return c.wrap(handler)
				}
				return handler
			}
			upstream := idemcheck.NewUpstream()
			opts := targetOf(t, upstream, one)
			if c.two {
				second := targetOf(t, upstream, one)
				opts.Targets = append(opts.Targets, second.Targets...)
			}
			var missed []int
			for _, item := range check(t, opts).Missed(true) {
				missed = append(missed, item.Number)
				t.Logf("item %d: %s: %s", item.Number, item.Name, item.Seen)
			}
			if !slices.Equal(missed, c.want) {
				t.Errorf("missed are the items %v, want %v", missed, c.want)
			}
		})
	}
}
