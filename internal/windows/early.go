package windows

import (
	"cmp"
	"slices"

	"github.com/semel-dev/semel/stream"
)

// Fresh reports whether there are early results that differ from the last ones.
func (s *State) Fresh() bool { return len(s.fresh) > 0 }

// Preview passes the present results of open windows that have changed since the last
// call to fn, of at most a number of groups, and returns how many groups that were. It is
// called after Emit.
func (s *State) Preview(most int, fn func(*stream.Closed) error) (n int, err error) {
	list := make([]*group, 0, len(s.fresh))
	for g := range s.fresh {
		list = append(list, g)
	}
	slices.SortFunc(list, func(a, b *group) int { return cmp.Compare(a.key, b.key) })
	for _, g := range list[:min(most, len(list))] {
		for _, end := range s.openEnds(g) {
			if err := s.result(g, end, fn); err != nil {
				return n, err
			}
		}
		delete(s.fresh, g)
		s.shown[g] = true
		n++
	}
	if len(s.fresh) == 0 {
		s.until = s.txn + 1
	}
	return n, nil
}

// openEnds returns the ends of a group's open windows with panes that have changed.
func (s *State) openEnds(g *group) (ends []int64) {
	for i := range g.panes {
		if p := &g.panes[i]; p.txn >= s.since {
			ends = slices.AppendSeq(ends, s.rule.ends(p, s.present.Watermark, never))
		}
	}
	slices.Sort(ends)
	return slices.Compact(ends)
}
