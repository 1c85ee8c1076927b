package webhook

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// SilentError says that a target takes requests and does not answer them.
type SilentError struct {
	// Target is the address without secrets. Since is the start of the first request
	// without an answer.
	Target string
	Since  time.Time
}

// Error implements error.
func (e *SilentError) Error() string {
	return fmt.Sprintf("%s has not answered since %s", e.Target, e.Since.UTC().Format(time.RFC3339))
}

// hearing is whether the target answers.
type hearing struct {
	mu    sync.Mutex // guards the fields below
	open  int        // requests without an answer
	since time.Time  // start of the first request since the last answer; zero if there is none
	gave  time.Time  // when a request was last given up
}

// asks notes that a request starts.
func (h *hearing) asks() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open++
	if h.since.IsZero() {
		h.since = time.Now()
	}
}

// ends notes that a request has an answer or an error, or was given up.
func (h *hearing) ends(givenUp bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open--
	switch {
	case givenUp:
		h.gave = time.Now()
	case h.open > 0:
		h.since = time.Now()
	default:
		h.since = time.Time{}
	}
}

// given is how long a request that was given up counts. Afterwards, nothing is known
// of the target.
const given = time.Minute

// Ready implements semel.Readier. It sends nothing. The error is a *SilentError if
// requests have had no answer for 8 s, or for four fifths of a longer timeout.
func (s *Sink) Ready(context.Context) error {
	h := &s.heard
	h.mu.Lock()
	defer h.mu.Unlock()
	patience := min(s.opts.Timeout, max(8*time.Second, s.opts.Timeout*4/5))
	if h.since.IsZero() || time.Since(h.since) < patience || h.open == 0 && time.Since(h.gave) > given {
		return nil
	}
	return &SilentError{s.target, h.since}
}
