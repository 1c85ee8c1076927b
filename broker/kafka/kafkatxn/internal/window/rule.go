package window

import (
	"iter"
	"math"
	"slices"
	"time"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/days"
	"github.com/semel-dev/semel/stream"
)

// never is the time of a group key that has nothing to emit.
const never int64 = math.MaxInt64

type group struct {
	key    string
	panes  []pane // by start, and by first
	due    int64  // a time in due, at or before the end of the next window to emit; or never
	txn    uint64 // the last transaction that changed it
	hash   uint32 // of its key, if it is found by it and its number; or 0
	number uint32
	own    [1]pane
}

// newGroup returns a group without panes, which has memory for one.
func newGroup(key string) *group {
	g := &group{}
	g.init(key)
	return g
}

func (g *group) init(key string) {
	g.key, g.due = key, never
	g.panes = g.own[:0]
}

// pane is the accumulator of messages that belong to the same windows.
type pane struct {
	// start is the start of the slice or session.
	start int64
	// first is the end of the first window that the pane is part of.
	first int64
	// late counts the messages that came when the result of a window was written. Sessions
	// take no such messages; there it distinguishes windows with the same start, of which all but
	// one are closed.
	late uint64
	acc  []byte // or its place on disk: see stored
	txn  uint64 // the transaction that made acc
	at   int64  // where the changelog has it; not if the open transaction made acc
}

// done reports whether the result of a window and group key is emitted.
func done(p *state.Progress, end int64, key string) bool {
	return end <= p.Emitted || end < p.Partly || end == p.Partly && key <= p.Cursor
}

// rule says which windows a pane is part of. Times are in milliseconds.
type rule struct {
	size, every, slice int64 // of tumbling and hopping windows
	gap, most          int64 // of sessions
	correct            int64
	days               *days.Days // of tumbling windows in a time zone
}

func newRule(agg *stream.Aggregate) rule {
	over := agg.Over
	r := rule{
		size: over.Size().Milliseconds(), every: over.Every().Milliseconds(), slice: over.Slice().Milliseconds(),
		gap: over.Gap().Milliseconds(), most: over.Most().Milliseconds(), correct: agg.Correct.Milliseconds(),
	}
	if zone := over.Zone(); zone != nil {
		r.days = days.New(zone, int64(over.Size()/(24*time.Hour)))
	}
	return r
}

// isSingle reports whether each pane is a whole window, which ends where the pane says. So the
// windows that are stored stay as they are if the data of a time zone changes.
func (r *rule) isSingle() bool { return r.gap > 0 || r.days != nil }

// sliceOf returns the start of the slice that has a time, and the end of its first window.
func (r *rule) sliceOf(when int64) (start, first int64) {
	if r.days != nil {
		return r.days.Bounds(when)
	}
	start = floor(when, r.slice)
	return start, r.endAfter(start)
}

// floor returns the greatest multiple of a step that is not greater than a number.
func floor(n, step int64) int64 {
	rest := n % step
	if rest < 0 {
		rest += step
	}
	return n - rest
}

// endAfter returns the end of the first window that ends after a time, if panes are slices.
func (r *rule) endAfter(t int64) int64 { return floor(t-r.size, r.every) + r.every + r.size }

// last returns the end of the last window that a pane is part of.
func (r *rule) last(p *pane) int64 {
	if r.isSingle() {
		return p.first
	}
	return floor(p.start, r.every) + r.size
}

// ends yields the ends of the windows that a pane is part of, those after a time and up to
// another one.
func (r *rule) ends(p *pane, after, upTo int64) iter.Seq[int64] {
	return func(yield func(int64) bool) {
		if r.isSingle() {
			if p.first > after && p.first <= upTo {
				yield(p.first)
			}
			return
		}
		for end := max(p.first, r.endAfter(after)); end <= min(r.last(p), upTo) && yield(end); end += r.every {
		}
	}
}

// nextEnd returns the first end of a window that is not emitted, or a time before it.
func (r *rule) nextEnd(p *state.Progress, key string) int64 {
	if r.isSingle() {
		return 0
	}
	if p.Partly > 0 && key > p.Cursor {
		return p.Partly
	}
	return r.endAfter(max(p.Partly, p.Emitted))
}

// nextDue returns the end of a group's first window that is not emitted, or never.
func (r *rule) nextDue(p *state.Progress, g *group) int64 {
	due, next := never, r.nextEnd(p, g.key)
	for i := range g.panes {
		end := max(g.panes[i].first, next)
		if end < due && end <= r.last(&g.panes[i]) && !done(p, end, g.key) {
			due = end
		}
	}
	return due
}

// gone reports whether a pane is not needed any longer.
func (r *rule) gone(p *state.Progress, key string, of *pane) bool {
	last := r.last(of)
	return done(p, last, key) && last+r.correct <= p.Watermark
}

// window returns the panes of the window that ends at a time, in order. It may be the same
// slice.
func (r *rule) window(panes []pane, end int64) []pane {
	other := func(p pane) bool {
		if r.isSingle() {
			return p.first != end
		}
		return p.start < end-r.size || p.first > end
	}
	if !slices.ContainsFunc(panes, other) {
		return panes
	}
	isOf := func(p pane) bool { return !other(p) }
	if first := slices.IndexFunc(panes, isOf); first >= 0 && !slices.ContainsFunc(panes[first+1:], isOf) {
		return panes[first : first+1]
	}
	return slices.DeleteFunc(slices.Clone(panes), other)
}
