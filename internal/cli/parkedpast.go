package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
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
		reason := how + " than its key is remembered, which is " + schema.Duration(window)
		err = errors.Join(err, r.report(r.out(), m, outcomeLeft, reason, ""))
	}
	if n := len(r.list) - len(rest); n > 0 && !foretold {
		err = errors.Join(err, fmt.Errorf("%s: not redriven: %d of %s, %s than keys are remembered (%s): had a copy its effect meanwhile, nobody knows it any more, and it would happen again. "+
			"Look at the target: --past-window redrives them all the same, semel parked done and skip settle them", r.spec.Name, n, plural(len(r.list), "message"), old, schema.Duration(window)))
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
	return m.At, "put aside longer ago"
}

// pastWindow reports whether a time is longer ago than a window. A message
// without a time is never past its window.
func pastWindow(since time.Time, window time.Duration, now time.Time) bool {
	return window != semel.Forever && !since.IsZero() && now.Sub(since) > window
}
