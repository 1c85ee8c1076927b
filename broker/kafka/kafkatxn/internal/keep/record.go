package keep

import (
	"encoding/binary"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
)

// An entry of a record has all that is held of an id, or nothing if that is gone:
//
//	length of the id (uvarint), id, number of records or versions (uvarint)
//	for each: first, last, deadline, time, offset (varints), length of the value (uvarint), value

const (
	// EntrySize is the largest size of an entry with one record, without its id and value.
	EntrySize = 5*binary.MaxVarintLen64 + 3*binary.MaxVarintLen32
	// usualEntry is about that size.
	usualEntry = 28
)

func (s *State) Changes(most int) (records []*kgo.Record, err error) {
	if !s.Begin(len(s.changed) > 0, most) {
		return nil, nil
	}
	s.written, s.spots = s.written[:0], s.spots[:0]
	for id, entries := range s.changed {
		if len(entries) > 0 || len(s.open[id]) > 0 { // otherwise it came and went
			s.written = append(s.written, id)
		}
	}
	slices.Sort(s.written)
	for _, id := range s.written {
		if err := s.write(id); err != nil {
			return nil, err
		}
	}
	err = s.Rewrite(func(id string, _ int64) error {
		s.written = append(s.written, id)
		return s.write(id)
	})
	if err != nil {
		return nil, err
	}
	return s.Records(), nil
}

// write writes the entries of an id, and notes where their values are.
func (s *State) write(id string) (err error) {
	list, first := s.list(id), len(s.spots)
	dst := append(binary.AppendUvarint(s.coded[:0], uint64(len(id))), id...)
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for i := range list {
		e := &list[i]
		for _, n := range []int64{e.first, e.last, e.deadline, e.when, e.offset} {
			dst = binary.AppendVarint(dst, n)
		}
		dst = binary.AppendUvarint(dst, uint64(e.size()))
		s.spots = append(s.spots, state.Spot{At: len(dst)})
		if e.stored() {
			if dst, err = s.Load(dst, e.ref); err != nil {
				return err
			}
		}
		dst = append(dst, e.value...)
	}
	s.coded = dst
	at := s.Writer.Add(dst)
	for i := range s.spots[first:] {
		spot := &s.spots[first+i]
		spot.Record, spot.At = at.Record, at.At+spot.At
	}
	return nil
}

// weigh returns about the size of entries in the changelog.
func weigh(id string, list []entry) (bytes int64) {
	for i := range list {
		bytes += int64(len(id) + list[i].size() + usualEntry)
	}
	return bytes
}

// splitEntries cuts off the entries of the id at the start of bytes.
func splitEntries(b []byte) (id, rest []byte, ok bool) {
	id, _, rest, ok = cutEntries(b)
	return id, rest, ok
}

// cutEntries reads the entries of the id at the start of bytes.
func cutEntries(b []byte) (id []byte, list []entry, rest []byte, ok bool) {
	c := state.Cursor{Rest: b}
	id = c.Bytes()
	for n := c.Uvarint(); n > 0 && !c.Wrong; n-- {
		e := entry{first: c.Varint(), last: c.Varint(), deadline: c.Varint(), when: c.Varint(), offset: c.Varint()}
		e.value = c.Bytes()
		list = append(list, e)
	}
	return id, list, c.Rest, !c.Wrong
}

func (s *State) Apply(at int64, place state.Place) {
	r := &s.Last
	for rest := r.Entries; len(rest) > 0; {
		var list []entry
		var name []byte
		name, list, rest, _ = cutEntries(rest) // Read has checked them
		id := string(name)
		for i := range list {
			if e := &list[i]; s.Leaves(e.value) {
				e.ref, e.value = s.Leave(place, r.At(e.value), e.value), nil
			} else {
				e.value = slices.Clone(e.value)
			}
			s.enqueue(id, &list[i], slices.Concat(list[:i], list[i+1:]))
		}
		s.set(id, list)
		s.putAt(id, at)
	}
	s.Applied()
	s.settle(s.Present)
}
