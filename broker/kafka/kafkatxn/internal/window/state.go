package window

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/stream"
)

// State holds the open windows of one partition. Changes belong to an open transaction
// until Commit or Drop ends it. All times are in milliseconds since the Unix epoch. One
// goroutine uses it at a time.
//
// The watermark never falls. A window is closed once the watermark has reached its end:
// no message can change its result. Closed windows are emitted in the order of their
// ends, and those of equal ends in the order of their group keys.
//
// A group key has panes. A pane is the accumulator of messages that belong to the same
// windows: a slice of hopping windows, a whole tumbling window, or a session. So the
// three kinds of windows differ only in how a message finds its pane, and in the panes of
// a window.
type State struct {
	state.Base[uint32] // by the numbers of groups
	agg                *stream.Aggregate
	rule               rule

	groups index
	// images are the groups that the open transaction has changed, in their former state.
	// saved has their panes, unless the group still has them.
	images []image
	saved  []pane
	// txn is the number of the open transaction.
	txn uint64
	// due has the group keys by the end of the next window to emit, or an earlier time.
	due timers
	// drops has the group keys by the times at which their windows accept no more
	// corrections.
	drops timers
	// left are the group keys whose window of the end leftEnd must still be emitted, in
	// order. It is nil if they are not known.
	left    []*group
	leftEnd int64
	// revised are the emitted windows that the open transaction has changed.
	revised []windowID
	// fresh are the groups that have changed since their early results, if the aggregate
	// has such. shown are those whose early results are in the open transaction. Panes
	// have changed since then if their transaction is since or a later one.
	fresh, shown map[*group]bool
	since, until uint64 // until replaces since at a commit
	acc          []byte // memory for an accumulator
	// spare are short accumulators of former transactions that no pane has any longer. The next
	// ones take their memory, so a group that many transactions change costs none.
	spare  [][]byte
	coded  []byte // memory for an entry
	joined pane   // memory for one that is part of another now
	// closed and accs are memory for results.
	closed state.Slab[stream.Closed]
	accs   state.ByteSlab
	// applied and texts are memory for groups of committed records.
	applied state.Slab[group]
	texts   state.ByteSlab
	// fetched keeps the compiler from leaving out what fetch reads.
	fetched uint64
	near    []*group // memory of Fetch
	// moved are the groups whose panes the open transaction writes again.
	moved []moved
	// spots are where the long accumulators of the open transaction's records are.
	spots []spot
}

var _ state.State = (*State)(nil)

// moved is a group whose panes from an offset are written again.
type moved struct {
	group *group
	at    int64
}

type image struct {
	group *group
	panes []pane
	due   int64
}

type windowID struct {
	group *group
	end   int64
}

// New returns a state without windows. The aggregate is valid and has its defaults.
func New(agg *stream.Aggregate) *State {
	s := &State{agg: agg, rule: newRule(agg), groups: newIndex(), fresh: map[*group]bool{}, shown: map[*group]bool{}, txn: 2}
	s.Inline = mostInline
	s.Init(state.Windows, splitEntry, s.isAt)
	return s
}

// isAt reports whether the changelog has a pane of a group at an offset, and the open
// transaction does not change it. The number of a group may be that of another one since,
// which then has no pane at such an early offset.
func (s *State) isAt(number uint32, at int64) bool {
	g := s.groups.at(number)
	if g == nil {
		return false
	}
	for i := range g.panes {
		if p := &g.panes[i]; p.at == at && p.txn != s.txn {
			return true
		}
	}
	return false
}

// weigh returns the size of panes in the changelog.
func weigh(key string, panes []pane) (bytes int64) {
	for i := range panes {
		bytes += int64(len(key) + panes[i].size() + entrySize)
	}
	return bytes
}

// Verdict says what became of a message.
type Verdict uint8

const (
	// Added: the message is part of its window.
	Added Verdict = iota
	// Late: its window is closed.
	Late
	// Ahead: its time is too far ahead of the clock.
	Ahead
)

// See notes the time of any message that was read, and reports false if that is too far
// ahead of the clock. Such a message does not move the watermark.
func (s *State) See(when, clock int64) bool {
	if when > clock+s.agg.MaxAhead.Milliseconds() {
		return false
	}
	s.Advance(when - s.agg.Grace.Milliseconds())
	return true
}

// Fetch reads the groups of keys, to which messages are added next, as Emit does. It changes
// nothing.
func (s *State) Fetch(keys [][]byte) {
	s.near = s.groups.near(s.near[:0], keys)
	s.fetched += fetch(s.near)
	clear(s.near)
}

// Add adds a message to the windows of a group key. See was called before. After an error
// nothing has changed.
func (s *State) Add(m *semel.Message, key []byte, when, clock int64) (Verdict, error) {
	if when > clock+s.agg.MaxAhead.Milliseconds() {
		return Ahead, nil
	}
	g := s.groups.get(key)
	if g == nil {
		g = newGroup(string(key))
	}
	if s.rule.gap > 0 {
		return s.addToSession(m, g, when)
	}
	return s.addToSlice(m, g, when)
}

// addToSlice adds a message to the pane of its slice. If some of the slice's windows are
// closed and not emitted yet, it needs a pane that is not part of those.
func (s *State) addToSlice(m *semel.Message, g *group, when int64) (Verdict, error) {
	start, first := s.rule.sliceOf(when)
	next, watermark := pane{start: start, first: first}, s.Present.Watermark
	last := s.rule.last(&next)
	if last+s.rule.correct <= watermark {
		return Late, nil
	}
	corrects := s.rule.correct > 0
	if next.first <= watermark && !corrects {
		next.first = s.rule.endAfter(watermark)
	}
	at, found := g.lastOf(start)
	if found && !corrects && max(g.panes[at].first, s.rule.nextEnd(&s.Present, g.key)) <= watermark {
		at, found = at+1, false
	}
	if found {
		next = g.panes[at]
	}
	if err := s.add(m, &next); err != nil {
		return Added, err
	}
	if corrects {
		for end := range s.rule.ends(&next, watermark-s.rule.correct, watermark) {
			if done(&s.Present, end, g.key) {
				next.late++
				s.revised = append(s.revised, windowID{g, end})
			}
		}
	}
	s.touch(g)
	if found {
		g.panes[at] = next
	} else {
		g.panes = slices.Insert(g.panes, at, next)
		s.plan(g, &next)
	}
	return Added, nil
}

// addToSession adds a message to the open sessions of its group key that it touches,
// which become one.
func (s *State) addToSession(m *semel.Message, g *group, when int64) (Verdict, error) {
	r := &s.rule
	next := pane{start: when, first: when + r.gap + 1}
	var few [4]int
	joined := few[:0]
	for i := range g.panes {
		p := &g.panes[i]
		if p.first <= s.Present.Watermark || p.start > when+r.gap || p.first <= when {
			continue
		}
		start, end := min(next.start, p.start), max(next.first, p.first)
		if end-r.gap-1-start > r.most {
			continue
		}
		if len(joined) == 0 {
			next.acc, next.txn = p.acc, p.txn
		} else {
			all, err := s.load(&next)
			if err != nil {
				return Added, err
			}
			acc, err := s.load(p)
			if err != nil {
				return Added, err
			}
			if acc, err = s.agg.Func.Merge(all, acc); err != nil {
				return Added, semel.Permanent(fmt.Errorf("aggregate: sessions cannot be joined: %w", err))
			}
			next.acc, next.txn = acc, 0 // Merge may have returned an accumulator that another pane has
		}
		next.start, next.first = start, end
		joined = append(joined, i)
	}
	if next.first <= s.Present.Watermark {
		return Late, nil
	}
	if err := s.add(m, &next); err != nil {
		return Added, err
	}
	s.touch(g)
	for i := len(joined) - 1; i >= 0; i-- {
		g.panes = slices.Delete(g.panes, joined[i], joined[i]+1)
	}
	for i := range g.panes {
		if p := &g.panes[i]; p.start == next.start {
			next.late = max(next.late, p.late+1)
		}
	}
	at, _ := g.find(&next, true)
	g.panes = slices.Insert(g.panes, at, next)
	s.plan(g, &next)
	return Added, nil
}

// add adds a message to the accumulator of a pane, which may share its bytes with the
// group's. It changes those only if the open transaction made them.
func (s *State) add(m *semel.Message, p *pane) error {
	acc, err := s.appendAcc(s.acc[:0], p)
	if err != nil {
		return err
	}
	if acc, err = s.agg.Func.Add(acc, m); err != nil {
		return err
	}
	if n := len(acc); n == 0 || n > stream.MaxAccumulator {
		return semel.Permanent(fmt.Errorf("aggregate: an accumulator of %d bytes: it has at least 1 and at most %d", n, stream.MaxAccumulator))
	}
	s.acc = acc
	if p.txn == s.txn {
		p.acc = append(p.acc[:0], acc...)
	} else {
		p.acc, p.txn = s.clone(acc), s.txn
	}
	return nil
}

// mostSpare is how many accumulators are spare at most, and mostSpareBytes how long they are.
const mostSpare, mostSpareBytes = 16 << 10, 64

// clone returns a copy of an accumulator.
func (s *State) clone(acc []byte) []byte {
	last := len(s.spare) - 1
	if last < 0 || cap(s.spare[last]) < len(acc) {
		return slices.Clone(acc)
	}
	c := append(s.spare[last][:0], acc...)
	s.spare = s.spare[:last]
	return c
}

// release makes the accumulators spare that a group's former panes have and its present ones do
// not. Those of sessions may be shared, because sessions join.
func (s *State) release(former, present []pane) {
	if s.rule.gap > 0 {
		return
	}
	for i := range former {
		p := &former[i]
		for len(present) > 0 && present[0].before(p) {
			present = present[1:]
		}
		kept := len(present) > 0 && present[0].start == p.start && present[0].first == p.first && present[0].txn == p.txn
		if !kept && len(p.acc) > 0 && cap(p.acc) <= mostSpareBytes && len(s.spare) < mostSpare {
			s.spare = append(s.spare, p.acc)
		}
	}
}

// before reports whether a pane comes before another one of its group, in slices.
func (p *pane) before(other *pane) bool {
	return p.start < other.start || p.start == other.start && p.first < other.first
}

// touch notes that the open transaction is about to change the panes of a group, which may
// be new.
func (s *State) touch(g *group) {
	if !s.note(g) {
		return
	}
	if g.hash == 0 {
		s.groups.put(g)
	}
	n := len(s.saved)
	s.saved = append(s.saved, g.panes...)
	s.images[len(s.images)-1].panes = s.saved[n:]
}

// note is touch for a group that is there. It shares its panes with the image if note
// reports true. Then no pane may change.
func (s *State) note(g *group) bool {
	s.changed(g)
	if g.txn == s.txn {
		return false
	}
	g.txn = s.txn
	s.images = append(s.images, image{g, g.panes, g.due})
	return true
}

// changed notes that a group has new early results.
func (s *State) changed(g *group) {
	if s.agg.Early > 0 {
		s.fresh[g] = true
	}
}

// remove removes a group without panes.
func (s *State) remove(g *group) {
	g.due = never
	if g.hash != 0 {
		s.groups.remove(g)
	}
}

// lastOf returns the place of the last pane of a slice, or the place for a new one.
func (g *group) lastOf(start int64) (at int, found bool) {
	for at = len(g.panes); at > 0 && g.panes[at-1].start > start; at-- {
	}
	if at > 0 && g.panes[at-1].start == start {
		return at - 1, true
	}
	return at, false
}

// find returns the place of a pane, or the place for it. Panes of a slice differ in their
// first windows.
func (g *group) find(p *pane, session bool) (at int, found bool) {
	return slices.BinarySearchFunc(g.panes, p, func(a pane, b *pane) int {
		if session {
			return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.late, b.late))
		}
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.first, b.first))
	})
}

// Quiet moves the watermark of a partition that has no new messages. All messages before
// a time have been read. It reports whether a window is due; if not, it changed nothing.
func (s *State) Quiet(read int64) bool {
	watermark := read - (s.agg.Grace + stream.ClockMargin).Milliseconds()
	_, due := s.next(watermark)
	if due {
		s.Advance(watermark)
	}
	return due
}

func (s *State) Drop() {
	for _, old := range s.images {
		old.group.panes, old.group.due = slices.Clone(old.panes), old.due
		if len(old.panes) == 0 {
			s.remove(old.group)
		} else if old.due != never {
			s.due.add(old.due, old.group)
		}
	}
	for g := range s.shown {
		s.fresh[g] = true
	}
	s.until = s.since
	s.Forget()
	s.end()
}

func (s *State) Commit(at int64, places []state.Place) {
	s.leave(places)
	for _, old := range s.images {
		g := old.group
		s.Count += len(g.panes) - len(old.panes)
		s.Size += weigh(g.key, g.panes) - weigh(g.key, old.panes)
		s.release(old.panes, g.panes)
		if len(g.panes) == 0 {
			s.remove(g)
		}
		for i := range g.panes {
			if p := &g.panes[i]; p.txn == s.txn {
				p.at = at
				s.Put(g.number, at)
			}
		}
	}
	for _, m := range s.moved {
		for i := range m.group.panes {
			if p := &m.group.panes[i]; p.at == m.at && p.txn != s.txn {
				p.at = at
				s.Put(m.group.number, at)
			}
		}
	}
	s.Settle(s.Present)
	s.since = s.until
	left := s.left
	s.end()
	s.left = left
	s.dropOld()
}

func (s *State) end() {
	clear(s.images)
	clear(s.saved)
	clear(s.shown)
	s.saved = s.saved[:0]
	clear(s.moved)
	clear(s.spots)
	s.moved, s.spots = s.moved[:0], s.spots[:0]
	s.images, s.left, s.revised = s.images[:0], nil, s.revised[:0]
	s.txn++
}
