package parkedcmd

import (
	"errors"
	"fmt"
	"time"

	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/term"
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
		how := facts.TooOld(m, r.spec, now)
		if how == "" {
			rest = append(rest, m)
			continue
		}
		old = how
		err = errors.Join(err, r.report(r.out(), m, facts.NotRedriven, facts.WhyTooOld(how, r.spec), ""))
	}
	if n := len(r.list) - len(rest); n > 0 && !foretold {
		err = errors.Join(err, fmt.Errorf("%s: not redriven: %d of %s, %s than keys are remembered (%s): a copy may have had its effect, and the effect would repeat. "+
			"Check the target. --past-window redrives these messages; semel parked done and skip settle them", r.spec.Name, n, term.Plural(len(r.list), "message"), old, schema.Duration(window)))
	}
	return rest, err
}
