package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/pipeline"
)

// leave takes out of what is redriven the messages that were put aside longer ago
// than their keys are remembered: a copy that was done meanwhile may be forgotten,
// and the effect would be a second one without a word. It prints a line for each,
// and returns what is left, with an error if it is not only foretold.
func (r *retry) leave(now time.Time, foretold bool) (rest []*pipeline.Parked, err error) {
	window := r.spec.Window
	for _, m := range r.list {
		if !pastWindow(m, window, now) {
			rest = append(rest, m)
			continue
		}
		reason := "put aside longer ago than its key is remembered, which is " + config.Duration(window)
		err = errors.Join(err, r.report(r.out(), m, outcomeLeft, reason, ""))
	}
	if n := len(r.list) - len(rest); n > 0 && !foretold {
		err = errors.Join(err, fmt.Errorf("%s: not redriven: %d of %s, put aside longer ago than keys are remembered (%s): had a copy its effect meanwhile, nobody knows it any more, and it would happen again. "+
			"Look at the target: --past-window redrives them all the same, semel parked done and skip settle them", r.spec.Name, n, plural(len(r.list), "message"), config.Duration(window)))
	}
	return rest, err
}

// pastWindow reports whether a message was put aside longer ago than a window. Of
// one without a time it is not known.
func pastWindow(m *pipeline.Parked, window time.Duration, now time.Time) bool {
	return window != semel.Forever && !m.At.IsZero() && now.Sub(m.At) > window
}
