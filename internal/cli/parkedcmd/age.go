package parkedcmd

import (
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// leave excludes messages older than the window of their keys from a redrive. A
// copy may have been processed since then and forgotten, and the redrive would
// silently cause a second effect. It prints a line for each excluded message and
// returns the rest. Unless this is a forecast, it also returns an error.
func (r *retry) leave(now time.Time, foretold bool) (rest []*pipeline.Parked, err error) {
	window, old := r.spec.Window, ""
	for _, m := range r.list {
		since, how := keptSince(m, r.spec)
		if !pastWindow(since, window, now) {
			rest = append(rest, m)
			continue
		}
		old = how
		reason := how + " than its key is remembered: " + schema.Duration(window)
		err = errors.Join(err, r.report(r.out(), m, outcomeLeft, reason, ""))
	}
	if n := len(r.list) - len(rest); n > 0 && !foretold {
		err = errors.Join(err, fmt.Errorf("%s: not redriven: %d of %s, %s than keys are remembered (%s): a copy may have had its effect, and the effect would repeat. "+
			"Check the target. --past-window redrives these messages; semel parked done and skip settle them", r.spec.Name, n, term.Plural(len(r.list), "message"), old, schema.Duration(window)))
	}
	return rest, err
}

// keptSince returns the time from which a copy of a message may be remembered,
// and the text for a time that is too long ago. If keys expire by message time,
// and the message's own time is earlier, that time is used.
func keptSince(m *pipeline.Parked, p *config.Pipeline) (since time.Time, old string) {
	if own := m.Message.Time; p.Transaction.Time == "event" && !own.IsZero() && (m.At.IsZero() || own.Before(m.At)) {
		return own, "older"
	}
	return m.At, "parked longer ago"
}

// pastWindow reports whether a time is longer ago than a window. A message
// without a time is never past its window.
func pastWindow(since time.Time, window time.Duration, now time.Time) bool {
	return window != semel.Forever && !since.IsZero() && now.Sub(since) > window
}
