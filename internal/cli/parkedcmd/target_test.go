package parkedcmd_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// target is a webhook that refuses some ids and records every request.
type target struct {
	*httptest.Server
	mu       sync.Mutex
	refused  map[string]bool
	accepted []string // id and redrive count
}

// newTarget starts a webhook that refuses these ids.
func newTarget(t *testing.T, refused ...string) *target {
	t.Helper()
	w := &target{refused: map[string]bool{}}
	for _, id := range refused {
		w.refused[id] = true
	}
	w.Server = httptest.NewServer(http.HandlerFunc(func(answer http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var m struct{ ID string }
		_ = json.Unmarshal(body, &m)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.refused[m.ID] {
			answer.WriteHeader(http.StatusUnprocessableEntity)
			// The token is quoted without its scheme, once across the end of the part that is kept.
			token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
			fmt.Fprintf(answer, "token %s expired %s%s", token, strings.Repeat(".", 480), token)
			return
		}
		w.accepted = append(w.accepted, m.ID+r.Header.Get("Semel-Redrive"))
	}))
	t.Cleanup(w.Close)
	return w
}

// accept makes the webhook accept all ids.
func (w *target) accept() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.refused)
}

// seen returns the accepted ids, each with its redrive count.
func (w *target) seen() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.accepted, " ")
}
