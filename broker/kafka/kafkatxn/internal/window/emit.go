package window

import (
	"cmp"
	"container/heap"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel/stream"
)

// timers has groups by times.
type timers struct {
	groups map[int64][]*group
	times  times // of groups
}

// add adds a group. A time may have a group twice.
func (t *timers) add(at int64, g *group) {
	if t.groups == nil {
		t.groups = map[int64][]*group{}
	}
	of, ok := t.groups[at]
	if !ok {
		heap.Push(&t.times, at)
	}
	t.groups[at] = append(of, g)
}

// first returns the first time up to a limit.
func (t *timers) first(limit int64) (int64, bool) {
	if len(t.times) == 0 || t.times[0] > limit {
		return 0, false
	}
	return t.times[0], true
}

// pop removes the first time and returns its groups.
func (t *timers) pop() []*group {
	at := heap.Pop(&t.times).(int64)
	list := t.groups[at]
	delete(t.groups, at)
	return list
}

// times is a heap.
type times []int64

func (t times) Len() int           { return len(t) }
func (t times) Less(i, j int) bool { return t[i] < t[j] }
func (t times) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *times) Push(x any)        { *t = append(*t, x.(int64)) }
func (t *times) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// plan notes when the next window of a group is due. A new pane was added, or a session
// has changed.
func (s *State) plan(g *group, p *pane) {
	if due := s.rule.nextDue(&s.Present, g); due < g.due {
		s.setDue(g, due)
	}
	if s.rule.correct > 0 {
		s.drops.add(s.rule.last(p)+s.rule.correct, g)
	}
}

func (s *State) setDue(g *group, due int64) {
	g.due = due
	if due == never {
		return
	}
	s.due.add(due, g)
	if due == s.leftEnd {
		s.left = nil
	}
}

// next returns the end of the first window up to a limit that is not emitted, and whether
// there is one. The watermark is then at the limit, so that nothing changes that end.
func (s *State) next(limit int64) (end int64, ok bool) {
	for {
		at, ok := s.due.first(limit)
		if !ok || s.left != nil && s.leftEnd == at {
			return at, ok
		}
		list := s.due.groups[at]
		found := list[:0]
		for _, g := range list {
			if g.due != at {
				continue // planned for another time since
			}
			if due := s.rule.nextDue(&s.Present, g); due != at {
				s.setDue(g, due) // a session that has grown
				continue
			}
			found = append(found, g)
		}
		if len(found) == 0 {
			s.due.pop()
			continue
		}
		sortByKey(found, 0)
		found = slices.Compact(found)
		s.due.groups[at] = found
		s.left, s.leftEnd = found, at
		return at, true
	}
}

// few is a number of groups that are quickly compared one with another.
const few = 32

// sortByKey sorts groups by their keys. There may be millions, which are all over the
// memory. So it sorts by the next few bytes of each key, which it copies into one list.
// Then it sorts those groups that have these bytes in common. All keys are known to have
// the same first bytes.
func sortByKey(list []*group, same int) {
	if len(list) < few {
		slices.SortFunc(list, func(a, b *group) int { return strings.Compare(a.key, b.key) })
		return
	}
	common := len(list[0].key) // how many first bytes are the same
	for _, g := range list {
		n := same
		for n < min(common, len(g.key)) && g.key[n] == list[0].key[n] {
			n++
		}
		common = n
	}
	sorted := make([]sortable, len(list))
	for i, g := range list {
		sorted[i] = sortableOf(g, common)
	}
	sorted = sortByBytes(sorted)
	for i := range sorted {
		list[i] = sorted[i].group
	}
	for to, from := 0, 0; from < len(sorted); from = to {
		for to = from + 1; to < len(sorted) && sorted[to].bytes == sorted[from].bytes; to++ {
		}
		if to-from > 1 && sorted[from].more() {
			sortByKey(list[from:to], common+keyBytes)
		}
	}
}

// sortable is a group with some bytes of its key: seven of them, and then how many there are.
type sortable struct {
	bytes uint64
	group *group
}

const keyBytes = 7 // of a sortable

// sortableOf returns a group with the bytes of its key behind the first ones.
func sortableOf(g *group, first int) sortable {
	var next [keyBytes + 1]byte
	copy(next[:keyBytes], g.key[first:])
	next[keyBytes] = byte(min(len(g.key)-first, keyBytes+1))
	return sortable{binary.BigEndian.Uint64(next[:]), g}
}

// more reports whether the key has further bytes. Otherwise all groups with these bytes
// have the same key.
func (s sortable) more() bool { return byte(s.bytes) > keyBytes }

// sortByBytes sorts groups by their bytes. It compares nothing: it takes a pass over the
// list for each byte.
func sortByBytes(list []sortable) []sortable {
	next := make([]sortable, len(list))
	for shift := 0; shift < 64; shift += 8 {
		var at [256]int // how many have each byte, and then where the next one of them goes
		for i := range list {
			at[byte(list[i].bytes>>shift)]++
		}
		if at[byte(list[0].bytes>>shift)] == len(list) {
			continue
		}
		sum := 0
		for b, n := range at {
			at[b] = sum
			sum += n
		}
		for i := range list {
			b := byte(list[i].bytes >> shift)
			next[at[b]] = list[i]
			at[b]++
		}
		list, next = next, list
	}
	return list
}

// Due reports whether results of closed windows must be emitted.
func (s *State) Due() bool {
	_, due := s.next(s.Present.Watermark)
	return due
}

// Emit passes the new results of windows that the open transaction has corrected to fn.
// Then it passes at most a number of results of closed windows, and returns how many. After
// an error of fn, the transaction must be dropped.
func (s *State) Emit(most int, fn func(*stream.Closed) error) (n int, err error) {
	if err := s.revise(fn); err != nil { // first, while the panes are there
		return 0, err
	}
	p := &s.Present
	for n < most {
		end, ok := s.next(p.Watermark)
		if !ok {
			break
		}
		for len(s.left) > 0 && n < most {
			if n%together == 0 {
				s.fetched += fetch(s.left[:min(together, len(s.left))])
			}
			g := s.left[0]
			s.note(g)
			if err := s.result(g, end, fn); err != nil {
				return n, err
			}
			n++
			s.left, p.Partly, p.Cursor = s.left[1:], end, g.key
			s.trim(g)
			s.setDue(g, s.rule.nextDue(p, g))
		}
		if len(s.left) == 0 {
			p.Emitted, p.Partly, p.Cursor = end, 0, ""
			s.due.pop()
			s.left = nil
		}
	}
	return n, nil
}

// together is how many groups fetch reads.
const together = 32

// fetch reads groups and the data that they point to, which Emit needs next. They are all over
// the memory. Emit would wait for one after the other, and these reads overlap.
func fetch(groups []*group) (sum uint64) {
	for _, g := range groups {
		sum += g.txn + uint64(g.hash)
	}
	for _, g := range groups {
		if len(g.key) > 0 {
			sum += uint64(g.key[0])
		}
		if len(g.panes) > 0 && len(g.panes[0].acc) > 0 {
			sum += uint64(g.panes[0].acc[0])
		}
	}
	return sum
}

// revise passes the new results of corrected windows to fn.
func (s *State) revise(fn func(*stream.Closed) error) error {
	slices.SortFunc(s.revised, func(a, b windowID) int {
		return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.group.key, b.group.key))
	})
	s.revised = slices.Compact(s.revised)
	for _, w := range s.revised {
		if err := s.result(w.group, w.end, fn); err != nil {
			return err
		}
	}
	s.revised = s.revised[:0]
	return nil
}

// result passes the result of a window to fn.
func (s *State) result(g *group, end int64, fn func(*stream.Closed) error) error {
	panes := s.rule.window(g.panes, end)
	closed := s.closed.New()
	*closed = stream.Closed{Key: g.key, Start: timeOf(end - s.rule.size), End: timeOf(end), Revision: panes[0].late}
	if s.rule.days != nil {
		closed.Start = timeOf(panes[0].start)
	}
	if s.rule.gap > 0 {
		closed.Start, closed.End, closed.Revision = timeOf(panes[0].start), timeOf(end-s.rule.gap-1), 0
	}
	acc, err := s.load(&panes[0])
	if err != nil {
		return err
	}
	if closed.Acc = acc; !panes[0].stored() {
		closed.Acc = s.accs.Clone(acc)
	}
	for _, p := range panes[1:] {
		if acc, err = s.load(&p); err != nil {
			return err
		}
		if closed.Acc, err = s.agg.Func.Merge(closed.Acc, acc); err != nil {
			return err
		}
		closed.Revision += p.late
	}
	return fn(closed)
}

func timeOf(milliseconds int64) time.Time { return time.UnixMilli(milliseconds).UTC() }

// trim removes the panes that a group does not need any longer, and returns how many. It
// changes no list that an image may share: a pane that is left alone moves to the group's own
// memory, which an image has only if that pane was alone before.
func (s *State) trim(g *group) int {
	all := g.panes
	gone := func(p pane) bool { return s.rule.gone(&s.Present, g.key, &p) }
	first := slices.IndexFunc(all, func(p pane) bool { return !gone(p) })
	switch {
	case first < 0:
		g.panes = nil
	case len(all) > 1 && !slices.ContainsFunc(all[first+1:], func(p pane) bool { return !gone(p) }):
		g.panes = append(g.own[:0], all[first])
	case slices.ContainsFunc(all, gone):
		g.panes = slices.DeleteFunc(slices.Clone(all), gone)
	}
	return len(all) - len(g.panes)
}

// trimCommitted is trim without an open transaction.
func (s *State) trimCommitted(g *group) {
	before := weigh(g.key, g.panes)
	s.Count -= s.trim(g)
	s.Size += weigh(g.key, g.panes) - before
	if len(g.panes) == 0 {
		s.remove(g)
	}
}

// dropOld removes panes whose windows accept no more corrections. No transaction is open.
func (s *State) dropOld() {
	for {
		if _, ok := s.drops.first(s.Present.Watermark); !ok {
			return
		}
		for _, g := range s.drops.pop() {
			s.trimCommitted(g)
		}
	}
}

// catchUp removes what other transactions have emitted. No transaction is open.
func (s *State) catchUp() {
	p := &s.Present
	var seen []*group
	for {
		at, ok := s.due.first(max(p.Emitted, p.Partly))
		if !ok {
			break
		}
		for _, g := range s.due.pop() {
			if g.due == at {
				g.due = never
				seen = append(seen, g)
			}
		}
	}
	for _, g := range seen {
		s.trimCommitted(g)
		s.setDue(g, s.rule.nextDue(p, g))
	}
}

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
			ends = slices.AppendSeq(ends, s.rule.ends(p, s.Present.Watermark, never))
		}
	}
	slices.Sort(ends)
	return slices.Compact(ends)
}
