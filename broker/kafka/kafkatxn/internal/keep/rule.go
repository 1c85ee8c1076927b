package keep

import (
	"math"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/days"
	"github.com/semel-dev/semel/stream"
)

// RuleOf returns the rule of a Keep. Keys are remembered for a window. The rule is for one
// State.
func RuleOf(k *stream.Keep, window time.Duration) Rule {
	rule := Rule{Grace: k.Grace.Milliseconds(), MaxAhead: k.MaxAhead.Milliseconds()}
	switch {
	case k.First != nil:
		rule.First, rule.Apart = true, milliseconds(window)
	case k.Newest != nil:
		rule.Window = milliseconds(window)
	default:
		rule.Size, rule.Gap, rule.Most = k.Last.Size().Milliseconds(), k.Last.Gap().Milliseconds(), k.Last.Most().Milliseconds()
		if zone := k.Last.Zone(); zone != nil {
			rule.Days = days.New(zone, int64(k.Last.Size()/(24*time.Hour)))
		}
	}
	return rule
}

// milliseconds returns the length of a window, which may be forever.
func milliseconds(window time.Duration) int64 {
	if window >= semel.Forever {
		return math.MaxInt64
	}
	return max(window.Milliseconds(), 1)
}
