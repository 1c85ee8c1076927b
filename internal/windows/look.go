package windows

import (
	"time"

	"github.com/semel-dev/semel/stream"
)

// Fate is what becomes of a further message of a window.
type Fate string

const (
	// Open: the window takes messages.
	Open Fate = "open"
	// Closing: it takes none, and its result is not written yet.
	Closing Fate = "closing"
	// Corrected: its result is written, and written again after a further message.
	Corrected Fate = "corrected"
	// Final: a further message is late.
	Final Fate = "final"
)

// Window is what a partition knows of a window of one group key.
type Window struct {
	// Start and End are those of the result. A session has no other end than the time of
	// its last message.
	Start, End time.Time
	Fate       Fate
	// Closes is the watermark at which the window is closed, and Late the one from which
	// a message is late.
	Closes, Late time.Time
	// Result has the messages so far. It is nil if there are none, or if they are no
	// longer known.
	Result *stream.Closed
}

// At returns the windows of a group key that have a time, by their ends. No transaction is
// open. If no session has the time, the list has the session that a message of that time
// would begin.
func (s *State) At(key string, when int64) (list []Window, err error) {
	r, g := &s.rule, s.groups.get([]byte(key))
	if g == nil {
		g = &group{key: key}
	}
	add := func(end int64, w Window) {
		if err != nil {
			return
		}
		w.Closes, w.Late = timeOf(end), timeOf(end+r.correct)
		w.Fate = s.fate(end, key)
		if w.Fate != Final && len(r.window(g.panes, end)) > 0 {
			err = s.result(g, end, func(c *stream.Closed) error { w.Result = c; return nil })
		}
		list = append(list, w)
	}
	if r.gap == 0 {
		var p pane
		p.start, p.first = r.sliceOf(when)
		for end := range r.ends(&p, p.start, never) {
			w := Window{Start: timeOf(end - r.size), End: timeOf(end)}
			if r.days != nil {
				w.Start = timeOf(p.start)
			}
			add(end, w)
		}
		return list, err
	}
	for _, p := range g.panes {
		if p.start-r.gap <= when && when < p.first {
			add(p.first, Window{Start: timeOf(p.start), End: timeOf(p.first - r.gap - 1)})
		}
	}
	if len(list) == 0 {
		add(when+r.gap+1, Window{Start: timeOf(when), End: timeOf(when)})
	}
	return list, err
}

func (s *State) fate(end int64, key string) Fate {
	p := &s.present
	switch {
	case end > p.Watermark:
		return Open
	case s.rule.correct > 0 && end+s.rule.correct > p.Watermark:
		return Corrected
	case !p.done(end, key) && len(s.rule.window(s.panesOf(key), end)) > 0:
		return Closing
	}
	return Final
}

func (s *State) panesOf(key string) []pane {
	if g := s.groups.get([]byte(key)); g != nil {
		return g.panes
	}
	return nil
}
