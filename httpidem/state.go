package httpidem

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// StatePattern is the pattern under which http.ServeMux has the handler of [NewState].
const StatePattern = "/.well-known/idempotency/{key}"

// KeyState is what the handler of [NewState] answers.
type KeyState struct {
	// State is one of:
	//   - absent: no request with the key is known. It never ran, or took no effect, or was
	//     forgotten. In a transaction, it may run.
	//   - in-flight: the first request runs, or its process died and the lease has not
	//     ended.
	//   - done: it took effect. A repetition gets the kept response.
	//   - response-not-kept: it took effect, and its response is not kept.
	//   - unknown: it may have taken effect. It does not run again by itself.
	State string `json:"state"`
	// Status is the status of the response, if it is known.
	Status int `json:"status,omitempty"`
	// FirstSeen is when the first request with the key came, or ended if the store keeps
	// only that. LeaseEnd is when the lease of an in-flight request ends, unless it is
	// extended. Executed is when the response was complete, and Expires when the key is
	// forgotten. Each is missing if it is not known.
	FirstSeen time.Time `json:"first_seen,omitzero"`
	LeaseEnd  time.Time `json:"lease_end,omitzero"`
	Executed  time.Time `json:"executed,omitzero"`
	Expires   time.Time `json:"expires,omitzero"`
}

// NewState returns a handler that says what is known of a key: a [KeyState] as JSON. A
// client that got no answer asks it before it gives up. The key is the path value key, so
// register the handler under [StatePattern] or another pattern with {key}. It takes GET and
// HEAD, changes nothing, and blocks for one store call.
//
// It uses Scope, Route and Profile of the options of [New]. A caller gets the state of its
// own keys only: those of others are absent.
//
// A guard whose store is no [semel.Inspector] is an error that wraps
// semel.ErrInvalidRequest, and so are wrong options.
func NewState(guard *semel.Guard, opts *Options) (http.Handler, error) {
	if guard == nil {
		return nil, fmt.Errorf("httpidem: NewState: the guard is nil: %w", semel.ErrInvalidRequest)
	}
	if _, ok := semel.As[semel.Inspector](guard.Store()); !ok {
		return nil, fmt.Errorf("httpidem: NewState: the store of the guard cannot look keys up: %w", semel.ErrInvalidRequest)
	}
	s := &state{guard: guard}
	if opts != nil {
		s.opts = *opts
	}
	if err := s.opts.complete(guard); err != nil {
		return nil, err
	}
	return s, nil
}

type state struct {
	guard *semel.Guard
	opts  Options
}

func (s *state) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p := &s.opts.Profile
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		w.WriteHeader(http.StatusMethodNotAllowed)
		return
	}
	id := r.PathValue("key")
	err := p.valid(id)
	if strings.HasPrefix(id, `"`) { // as in the header
		id, err = p.parse(id)
	}
	if err != nil {
		(&refusal{problem: KeyInvalid, detail: sentence(err)}).write(w, nil)
		return
	}
	caller, err := s.opts.Scope(r)
	if err != nil || caller == "" {
		deny(w, err, nil)
		return
	}
	key := Key(s.opts.Route, caller, id)
	record, err := s.guard.Look(r.Context(), key)
	if err != nil {
		(&refusal{problem: StoreUnavailable, detail: "Repeat the request.", after: time.Second}).write(w, nil)
		return
	}
	record.Result.Data = s.opts.decrypt(record.Result.Data, key)
	body, err := json.Marshal(stateOf(&record))
	if err != nil {
		panic(err) // a text, a number and times
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body) // the client may have left
}

func stateOf(r *semel.Record) *KeyState {
	s := &KeyState{State: "absent", FirstSeen: r.FirstSeen.UTC(), LeaseEnd: r.LeaseEnd.UTC(), Expires: r.Expires.UTC()}
	switch r.State {
	case semel.Claimed:
		s.State = "in-flight"
	case semel.Unknown:
		s.State = "unknown"
	case semel.Done:
		s.State = "response-not-kept"
		if a, err := decode(r.Result.Data); err == nil {
			s.Status, s.Executed = a.status, a.at.UTC()
			if !a.lost {
				s.State = "done"
			}
		}
	}
	return s
}

type keyKey struct{}

// KeyOf returns the key in the store of a request that the middleware passes on, from the
// context of that request. It is the same for every spelling of the header: "q-1" in quotes
// and q-1 without are one key. A handler that writes the key to an outbox, or sends it on, uses
// this one. ok is false for a request without a key.
func KeyOf(ctx context.Context) (k semel.Key, ok bool) {
	k, ok = ctx.Value(keyKey{}).(semel.Key)
	return k, ok
}

// Key returns the key in the store for the key of a caller on a route. Operators look it
// up with it. The length of the caller's name keeps name and key apart.
func Key(route, caller, key string) semel.Key {
	return semel.Key{Scope: route, ID: strconv.Itoa(len(caller)) + ":" + caller + ":" + key}
}
