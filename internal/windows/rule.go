package windows

import (
	"slices"

	"github.com/semel-dev/semel/stream"
)

// rule says which windows a pane is part of. Times are in milliseconds.
type rule struct {
	size, every, slice int64 // of tumbling and hopping windows
	gap, most          int64 // of sessions
	correct            int64
}

func newRule(agg *stream.Aggregate) rule {
	over := agg.Over
	return rule{
		size: over.Size().Milliseconds(), every: over.Every().Milliseconds(), slice: over.Slice().Milliseconds(),
		gap: over.Gap().Milliseconds(), most: over.Most().Milliseconds(), correct: agg.Correct.Milliseconds(),
	}
}

// floor returns the greatest multiple of a step that is not greater than a number.
func floor(n, step int64) int64 {
	rest := n % step
	if rest < 0 {
		rest += step
	}
	return n - rest
}

// endAfter returns the end of the first tumbling or hopping window that ends after a time.
func (r *rule) endAfter(t int64) int64 { return floor(t-r.size, r.every) + r.every + r.size }

// last returns the end of the last window that a pane is part of.
func (r *rule) last(p *pane) int64 {
	if r.gap > 0 {
		return p.first
	}
	return floor(p.start, r.every) + r.size
}

// nextEnd returns the first end of a tumbling or hopping window that is not emitted.
func (r *rule) nextEnd(p *progress, key string) int64 {
	if p.Partly > 0 && key > p.Cursor {
		return p.Partly
	}
	return r.endAfter(max(p.Partly, p.Emitted))
}

// nextDue returns the end of a group's first window that is not emitted, or never.
func (r *rule) nextDue(p *progress, g *group) int64 {
	due, next := never, int64(0)
	if r.gap == 0 {
		next = r.nextEnd(p, g.key)
	}
	for i := range g.panes {
		end := max(g.panes[i].first, next)
		if end < due && end <= r.last(&g.panes[i]) && !p.done(end, g.key) {
			due = end
		}
	}
	return due
}

// gone reports whether a pane is not needed any longer.
func (r *rule) gone(p *progress, key string, of *pane) bool {
	last := r.last(of)
	return p.done(last, key) && last+r.correct <= p.Watermark
}

// window returns the panes of the window that ends at a time, in order. It may be the same
// slice.
func (r *rule) window(panes []pane, end int64) []pane {
	other := func(p pane) bool {
		if r.gap > 0 {
			return p.first != end
		}
		return p.start < end-r.size || p.first > end
	}
	if !slices.ContainsFunc(panes, other) {
		return panes
	}
	return slices.DeleteFunc(slices.Clone(panes), other)
}
