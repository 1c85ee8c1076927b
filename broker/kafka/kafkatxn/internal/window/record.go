package window

import (
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
)

// An entry of a record is a pane:
//
//	start of the pane (varint), first - start (uvarint), late messages (uvarint);
//	length of the group key (uvarint), group key;
//	length of the accumulator (uvarint), accumulator, or nothing if the pane is now part of another

// entrySize is about the size of an entry without its group key and accumulator.
const entrySize = 16

func (s *State) Changes(most int) (records []*kgo.Record, err error) {
	if !s.Begin(len(s.images) > 0, most) {
		return nil, nil
	}
	clear(s.spots)
	s.spots = s.spots[:0]
	for key, p := range s.entries {
		if err := s.write(key, p); err != nil {
			return nil, err
		}
	}
	if err := s.Rewrite(s.move); err != nil {
		return nil, err
	}
	return s.Records(), nil
}

// write writes a pane, and notes where its accumulator is if that is long.
func (s *State) write(key string, p *pane) (err error) {
	dst := binary.AppendVarint(s.coded[:0], p.start)
	dst = binary.AppendUvarint(dst, uint64(p.first-p.start))
	dst = binary.AppendUvarint(dst, p.late)
	dst = append(binary.AppendUvarint(dst, uint64(len(key))), key...)
	dst = binary.AppendUvarint(dst, uint64(p.size()))
	acc := len(dst)
	if dst, err = s.appendAcc(dst, p); err != nil {
		return err
	}
	s.coded = dst
	at := s.Writer.Add(dst)
	if p.stored() || s.Leaves(p.acc) {
		at.At += acc
		s.spots = append(s.spots, spot{p, at})
	}
	return nil
}

// move writes the panes of a group again that were written at an offset.
func (s *State) move(number uint32, at int64) error {
	g := s.groups.at(number)
	for i := range g.panes {
		if p := &g.panes[i]; p.at == at && p.txn != s.txn {
			if err := s.write(g.key, p); err != nil {
				return err
			}
		}
	}
	s.moved = append(s.moved, moved{g, at})
	return nil
}

// entry is a pane of a record that was read. It shares the bytes.
type entry struct {
	key []byte
	pane
}

// entries yields the changed panes that are still needed, with their group keys, in the
// order in which the transaction changed the groups.
func (s *State) entries(yield func(key string, p *pane) bool) {
	for _, old := range s.images {
		g := old.group
		for i := range g.panes {
			if p := &g.panes[i]; p.txn == s.txn && !yield(g.key, p) {
				return
			}
		}
		if s.rule.gap == 0 {
			continue
		}
		for i := range old.panes { // a session may have become part of another
			p := &old.panes[i]
			if _, ok := g.find(p, true); ok || s.rule.gone(&s.Present, g.key, p) {
				continue
			}
			s.joined = *p
			if s.joined.acc = nil; !yield(g.key, &s.joined) {
				return
			}
		}
	}
}

// splitEntry cuts off the entry at the start of bytes.
func splitEntry(b []byte) (key, rest []byte, ok bool) {
	e, rest, ok := cutEntry(b)
	return e.key, rest, ok
}

// cutEntry reads the entry at the start of bytes.
func cutEntry(b []byte) (e entry, rest []byte, ok bool) {
	c := state.Cursor{Rest: b}
	e.start = c.Varint()
	e.first, e.late = e.start+int64(c.Uvarint()), c.Uvarint()
	e.key, e.acc = c.Bytes(), c.Bytes()
	return e, c.Rest, !c.Wrong
}

func (s *State) Apply(at int64, place state.Place) {
	r := s.Last
	s.Applied()
	s.left = nil
	var e entry
	for rest := r.Entries; len(rest) > 0; {
		e, rest, _ = cutEntry(rest) // Read has checked them
		e.txn, e.at = s.txn-1, at
		switch {
		case len(e.acc) == 0:
			e.acc = nil // it is gone
		case s.Leaves(e.acc):
			e.acc = onDisk(s.Leave(place, r.At(e.acc), e.acc))
		}
		s.set(&e)
	}
	s.catchUp()
	s.dropOld()
}

// set sets or removes a pane of a committed record, which still has its accumulator unless
// that is on disk. A restart sets millions, so they share allocations.
func (s *State) set(e *entry) {
	g := s.groups.get(e.key)
	if g == nil {
		g = s.applied.New()
		g.init(s.texts.Text(e.key))
		s.groups.put(g)
	}
	s.changed(g)
	before := weigh(g.key, g.panes)
	at, found := g.find(&e.pane, s.rule.gap > 0)
	switch {
	case e.acc != nil && found:
		if !e.stored() {
			e.acc = append(g.panes[at].acc[:0], e.acc...)
		}
		g.panes[at] = e.pane // a session may be due later than planned
	case e.acc != nil:
		if !e.stored() {
			e.acc = s.texts.Clone(e.acc)
		}
		g.panes = slices.Insert(g.panes, at, e.pane)
		s.Count++
		s.plan(g, &e.pane)
	case found:
		g.panes = slices.Delete(g.panes, at, at+1)
		s.Count--
	}
	s.Size += weigh(g.key, g.panes) - before
	if e.acc != nil {
		s.Put(g.number, e.at)
	}
	if len(g.panes) == 0 {
		s.remove(g)
	}
}
