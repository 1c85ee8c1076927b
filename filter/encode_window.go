package filter

import (
	"encoding/binary"
	"math/bits"
)

// MarshalBinary returns the filter, its seed included, with a checksum. It
// does not change the filter and never fails.
func (r *Rotating) MarshalBinary() ([]byte, error) {
	data := r.header().start()
	for lane := range r.generations {
		data = binary.LittleEndian.AppendUint64(data, uint64(r.lengths[lane]))
	}
	for g := range r.stamps {
		mask := r.spread(r.lanes(g))
		for _, word := range r.group(g) {
			data = binary.LittleEndian.AppendUint64(data, word&mask)
		}
	}
	return seal(data), nil
}

func (r *Rotating) header() header {
	return header{
		Kind: kindRotating, WhenFull: r.full, Generations: uint8(r.generations), Probes: uint8(r.probes), Seed: r.seed,
		Capacity: uint64(r.capacity), ErrorRate: r.rate, Units: uint64(len(r.stamps)),
		Window: r.window, Started: r.time.started, Origin: r.time.origin, Current: r.time.current,
	}
}

// UnmarshalBinary replaces the filter by a serialised one and keeps nothing of
// data. Data that MarshalBinary did not make gives an error that wraps
// [semel.ErrCorrupt] and leaves the filter as it was. Call Advance before the
// first use: time went on.
func (r *Rotating) UnmarshalBinary(data []byte) error {
	h, body, err := open(data, kindRotating)
	if err != nil {
		return err
	}
	o, err := (&RotatingOptions{
		Capacity: int(h.Capacity), Window: h.Window, Generations: int(h.Generations),
		ErrorRate: h.ErrorRate, Seed: h.Seed, WhenFull: h.WhenFull,
	}).withDefaults()
	if err != nil {
		return corruptError(kindRotating, "%v", err)
	}
	share := shareOf(o.Capacity, o.Generations)
	if err := checkRate(kindRotating, statedRate(uint64(share), h.Units, h.Probes), rateOf(o.ErrorRate, o.Generations)); err != nil {
		return err
	}
	n := newRotating(o, int(h.Units), int(h.Probes))
	n.seed, n.hasher = h.Seed, newHasher(h.Seed)
	n.time.started, n.time.origin, n.time.current = h.Started, h.Origin, h.Current
	for g := range n.stamps {
		n.stamps[g] = h.Current
	}
	lengths := body[:8*n.generations]
	for i, words := 0, body[8*n.generations:]; i < len(n.words); i++ {
		word := binary.LittleEndian.Uint64(words[8*i:])
		n.words[i] = word
		for lane := range n.generations {
			n.ones[lane] += bits.OnesCount64(word & n.spread(1<<lane))
		}
	}
	for lane := range n.generations {
		length := binary.LittleEndian.Uint64(lengths[8*lane:])
		if err := checkLength(kindRotating, length, n.ones[lane], n.probes); err != nil {
			return err
		}
		n.lengths[lane] = int(length)
	}
	if err := checkUnused(h, n.header()); err != nil {
		return err
	}
	*r = *n
	return nil
}

// MarshalBinary returns the table, its seed included, with a checksum. It
// does not change the table and never fails.
func (t *Table) MarshalBinary() ([]byte, error) {
	data := t.header().start()
	for at := range t.lines {
		for _, word := range t.living(at) {
			data = binary.LittleEndian.AppendUint32(data, word)
		}
	}
	return seal(data), nil
}

func (t *Table) header() header {
	return header{
		Kind: kindTable, WhenFull: t.full, Seed: t.seed, Capacity: uint64(t.capacity), Units: uint64(len(t.lines)),
		Window: t.window, Started: t.time.started, Origin: t.time.origin, Current: t.time.current,
	}
}

// UnmarshalBinary replaces the table by a serialised one and keeps nothing of
// data. Data that MarshalBinary did not make gives an error that wraps
// [semel.ErrCorrupt] and leaves the table as it was. Call Advance before the
// first use: time went on.
func (t *Table) UnmarshalBinary(data []byte) error {
	h, body, err := open(data, kindTable)
	if err != nil {
		return err
	}
	o, err := (&TableOptions{
		Capacity: int(h.Capacity), Window: h.Window, Seed: h.Seed, WhenFull: h.WhenFull,
	}).withDefaults()
	if err != nil {
		return corruptError(kindTable, "%v", err)
	}
	if int(h.Units) < linesFor(o.Capacity) {
		return corruptError(kindTable, "%d lines do not hold %d ids", h.Units, h.Capacity)
	}
	n := newTable(o, int(h.Units))
	n.seed, n.hasher = h.Seed, newHasher(h.Seed)
	n.time.started, n.time.origin, n.time.current = h.Started, h.Origin, h.Current
	for group := range n.stamps {
		n.stamps[group] = h.Current
	}
	for at := range n.lines {
		l := &n.lines[at]
		for i := range l {
			l[i] = binary.LittleEndian.Uint32(body[lineBytes*at+4*i:])
		}
		if !n.adopt(at) {
			return corruptError(kindTable, "line %d has a slot or a note that no id leaves", at)
		}
	}
	if err := checkUnused(h, n.header()); err != nil {
		return err
	}
	*t = *n
	return nil
}

// adopt counts the ids of a line that was read, and reports whether it is one
// that MarshalBinary writes: without what is dead, is of the future, or notes
// a slot that is empty.
func (t *Table) adopt(at int) bool {
	l := &t.lines[at]
	known := uint32(passed | sliceMask)
	for i, word := range l[:lineSlots] {
		if word == 0 {
			continue
		}
		if word>>6 == 0 || t.age(at, word) < 0 {
			return false
		}
		known |= shared << i
		t.counts[word&sliceMask]++
		t.length++
	}
	if l[notes]&passed != 0 && t.age(at, l[notes]) < 0 {
		return false
	}
	return l[notes]&^known == 0 && *l == t.living(at)
}
