package httpidem_test

import (
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/semel-dev/semel/httpidem"
)

// A caller whose access ended must not get an answer that was kept for it.
func TestARefusedCallerGetsNoKeptAnswer(t *testing.T) {
	t.Parallel()
	s := &service{handle: created}
	var refusal error
	server := front(t, newGuard(t, newStore(t), nil), s, &httpidem.Options{Scope: func(*http.Request) (string, error) { return "alice", refusal }})
	post(t, server.URL, "a", withKey("k")).must(t, 201, "")
	for _, c := range []struct {
		err       error
		status    int
		problem   httpidem.Problem
		challenge string
	}{
		{errors.New("the token has expired"), 401, httpidem.ScopeMissing, ""},
		{fmt.Errorf("wrapped: %w", &httpidem.Denied{Challenge: "Bearer"}), 401, httpidem.ScopeMissing, "Bearer"},
		{&httpidem.Denied{Status: 403}, 403, httpidem.ScopeDenied, ""},
		{&httpidem.Denied{Status: 503}, 503, httpidem.ScopeUnavailable, ""},
		{&httpidem.Denied{Status: 200}, 401, httpidem.ScopeMissing, ""},
	} {
		refusal = c.err
		r := post(t, server.URL, "a", withKey("k"))
		if r.must(t, c.status, c.problem); r.Header.Get("WWW-Authenticate") != c.challenge || r.Header.Get(httpidem.Replayed) != "" {
			t.Errorf("%v: the headers are %v", c.err, r.Header)
		}
	}
	refusal = nil
	if r := post(t, server.URL, "a", withKey("k")); r.Header.Get(httpidem.Replayed) != "true" {
		t.Errorf("the answer is %v %s", r.Response, r.body)
	}
	s.mustHaveRun(t, 1)
}
