//go:build unix

package clients

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
)

// journal records effects. The driver posts each effect to it, and the answer says how the
// effect ends.
type journal struct {
	*httptest.Server
	// plan says how the effects end, in their order: ok, large, fail, unknown, permanent, or
	// hold, which waits for letGo and is then ok. The last word holds for all others.
	plan  []string
	large string
	held  chan struct{} // closed by letGo
	letGo func()

	mu      sync.Mutex // guards the fields below
	entries []entry
	changed chan struct{} // closed with each entry
}

// entry is an effect that has begun.
type entry struct {
	Key     string
	Attempt int
	Token   string
	PID     int
	plan    string
}

// happened reports whether the effect took place.
func (e *entry) happened() bool { return e.plan == "ok" || e.plan == "large" || e.plan == "hold" }

// mayHave reports whether the effect may have taken place, as far as its client knows.
func (e *entry) mayHave() bool { return e.happened() || e.plan == "unknown" }

func newJournal(t *testing.T, plan []string) *journal {
	t.Helper()
	if len(plan) == 0 {
		plan = []string{"ok"}
	}
	j := &journal{plan: plan, large: strings.Repeat("x", 2<<20), held: make(chan struct{}), changed: make(chan struct{})}
	j.letGo = sync.OnceFunc(func() { close(j.held) })
	j.Server = httptest.NewServer(http.HandlerFunc(j.write))
	t.Cleanup(func() {
		j.letGo()
		j.Close()
	})
	return j
}

func (j *journal) write(w http.ResponseWriter, r *http.Request) {
	var e entry
	if err := json.NewDecoder(r.Body).Decode(&e); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	j.mu.Lock()
	n := len(j.entries)
	e.plan = j.plan[min(n, len(j.plan)-1)]
	if e.plan == "hold" && n >= len(j.plan) {
		e.plan = "ok"
	}
	j.entries = append(j.entries, e)
	close(j.changed)
	j.changed = make(chan struct{})
	j.mu.Unlock()
	answer := map[string]any{"result": map[string]any{"effect": n + 1, "key": e.Key, "text": "é ☃ \" \\ \u0000", "list": []any{1, 2.5, true, nil}}}
	switch e.plan {
	case "hold":
		<-j.held
	case "large":
		answer["result"] = j.large
	case "fail", "unknown", "permanent":
		answer = map[string]any{"fail": e.plan}
	}
	_ = json.NewEncoder(w).Encode(answer) // the driver may have been killed
}

// all returns the entries, and a channel that is closed with the next one.
func (j *journal) all() ([]entry, <-chan struct{}) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.entries[:len(j.entries):len(j.entries)], j.changed
}
