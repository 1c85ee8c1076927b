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

// leave takes out of what is redriven the messages that are of longer ago than
// their keys are remembered: a copy that was done meanwhile may be forgotten,
// and the effect would be a second one without a word. It prints a line for each,
// and returns what is left, with an error if it is not only foretold.
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

// keptSince returns from when on a copy of a message may be remembered, and how to
// say that this is too long ago. Where keys expire by the times of messages, that
// is the message's own time if it is the earlier one.
func keptSince(m *pipeline.Parked, p *config.Pipeline) (since time.Time, old string) {
	if own := m.Message.Time; p.Transaction.Time == "event" && !own.IsZero() && (m.At.IsZero() || own.Before(m.At)) {
		return own, "older"
	}
	return m.At, "put aside longer ago"
}

// pastWindow reports whether a time is longer ago than a window. Of a message
// without a time it is not known.
func pastWindow(since time.Time, window time.Duration, now time.Time) bool {
	return window != semel.Forever && !since.IsZero() && now.Sub(since) > window
}
