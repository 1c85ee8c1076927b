package brokers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel/pipeline"
)

// ackPath is where a program tells what it acknowledges.
const ackPath = "/acknowledged"

// parkedBefore is the reason of a message that comes again after it was parked. redrive reads
// the first one.
const parkedBefore = "parked before"

// Prefixes of ids. Messages with ordered ids are published in the order of their
// numbers. The target refuses messages with refused ids until it is healed.
const (
	ordered = "k"
	other   = "x"
	refused = "r"
)

// aggregates is how many sequences the ordered messages make.
const aggregates = 16

// aggregateOf returns the sequence of a message.
func aggregateOf(id string) int {
	n, err := strconv.Atoi(id[1:])
	if err != nil {
		panic(err)
	}
	return n % aggregates
}

// journal is the target of the effects. It does not die.
type journal struct {
	mu      sync.Mutex
	changed chan struct{} // closed at the next change; nil if nothing waits for it

	tokens     map[string][]string // of the effects of each key
	acked      map[string]bool     // keys of acknowledged messages
	duplicates map[string]bool     // keys that were acknowledged as duplicates
	parked     int                 // acknowledged messages that are parked
	last       [aggregates]int     // the highest number of each aggregate that had its effect
	late       map[string]string   // ids whose order was not kept
	moved      map[string]bool     // ids whose order the broker did not keep, or that were parked
	wrong      []string
	limited    bool // the broker delivers a message only so often, so that some are parked before
	inOrder    bool // first effects of an aggregate come in the order of the numbers
	elsewhere  bool // effects are not here, so acknowledgements cannot be compared with them

	healed bool
	strike func()        // called in the next effect, which gets no answer
	hold   time.Duration // how long the next effect waits for its answer
	held   chan struct{} // closed then
}

func newJournal(inOrder, limited bool) *journal {
	return &journal{inOrder: inOrder, limited: limited, tokens: map[string][]string{}, acked: map[string]bool{}, duplicates: map[string]bool{}, late: map[string]string{}, moved: map[string]bool{}}
}

// ServeHTTP implements http.Handler.
func (j *journal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if r.URL.Path == ackPath {
		j.acknowledged(body)
		return
	}
	id := r.Header.Get("Idempotency-Key")
	j.mu.Lock()
	if strings.HasPrefix(id, refused) && !j.healed {
		j.mu.Unlock()
		w.WriteHeader(http.StatusUnprocessableEntity)
		return
	}
	j.effect(id, r.Header.Get("Semel-Token"))
	strike, hold, held := j.strike, j.hold, j.held
	j.strike, j.hold = nil, 0
	j.mu.Unlock()
	if strike != nil {
		strike()
		panic(http.ErrAbortHandler)
	}
	if hold > 0 {
		within(r.Context(), hold)
		close(held)
	}
}

// effect notes an effect. j.mu is held.
func (j *journal) effect(id, token string) {
	if slices.Contains(j.tokens[id], token) {
		j.wrong = append(j.wrong, fmt.Sprintf("%s had its effect twice under the token %s", id, token))
	}
	if a := aggregateOf(id); len(j.tokens[id]) == 0 && j.inOrder && strings.HasPrefix(id, ordered) {
		n, _ := strconv.Atoi(id[1:]) // aggregateOf has read it
		if n < j.last[a] {
			j.late[id] = fmt.Sprintf("%s had its first effect after that of %s%d", id, ordered, j.last[a])
		}
		j.last[a] = max(j.last[a], n)
	}
	j.tokens[id] = append(j.tokens[id], token)
}

// acknowledged compares what a program acknowledges with the effects.
func (j *journal) acknowledged(body []byte) {
	var list []acked
	err := json.Unmarshal(body, &list)
	j.mu.Lock()
	defer j.mu.Unlock()
	if err != nil {
		j.wrong = append(j.wrong, err.Error())
	}
	for _, a := range list {
		switch {
		case a.Parked != "":
			j.parked++
		case len(j.tokens[a.Key]) == 0 && !j.elsewhere:
			j.wrong = append(j.wrong, fmt.Sprintf("%s was acknowledged without an effect; a duplicate: %t", a.Key, a.Duplicate))
		}
		if a.Parked != "" && !strings.HasPrefix(a.Key, refused) {
			if !j.limited || a.Parked != pipeline.ReasonDeliveries && a.Parked != parkedBefore {
				j.wrong = append(j.wrong, a.Key+" was parked: "+string(a.Parked))
			}
			j.moved[a.Key] = true
		}
		j.acked[a.Key] = true
		if a.Duplicate {
			j.duplicates[a.Key] = true
		}
	}
	if j.changed != nil {
		close(j.changed)
		j.changed = nil
	}
}

// do calls fn with the lock.
func (j *journal) do(fn func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fn()
}

// settled returns how many keys are acknowledged.
func (j *journal) settled() (n int) {
	j.do(func() { n = len(j.acked) })
	return n
}

// await waits until n keys are acknowledged, or ctx ends.
func (j *journal) await(ctx context.Context, n int) {
	for {
		j.mu.Lock()
		if len(j.acked) >= n {
			j.mu.Unlock()
			return
		}
		if j.changed == nil {
			j.changed = make(chan struct{})
		}
		changed := j.changed
		j.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
