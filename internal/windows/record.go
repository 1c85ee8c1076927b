package windows

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/semel-dev/semel/internal/locallog"
)

// A record says what one transaction changed in the windows of a partition, with the
// values after it. So reading a record twice is harmless. All fixed numbers are
// little-endian:
//
//	version (1), kind (1), length of the cursor (2), number of entries (4)
//	definition (16): a digest of the aggregate
//	topic (16): the id of the input topic
//	watermark, emitted, partly (8 each): milliseconds since the Unix epoch
//	cursor
//	kind 4 only: length of the origins (uvarint), origins
//	entries: start of the pane (varint), first - start (uvarint), late messages (uvarint),
//	length of the group key (uvarint), group key, length of the accumulator (uvarint),
//	accumulator, or nothing if the pane is now part of another
//
// A transaction with many changes has several records, and each has its whole progress.
// A barrier has the kind 2, no entries, and 16 bytes at the place of the definition that
// no other barrier has.
const (
	recordVersion = 2
	kindBarrier   = 2
	kindChanges   = 3
	kindMixed     = 4 // changes with origins: see State.SetOrigins

	// HeaderSize is the size of a record without cursor, origins and entries.
	HeaderSize = 64
	// entrySize is about the size of an entry without its group key and accumulator.
	entrySize = 16
)

// ErrRecord is the error of bytes that are no record of windows.
var ErrRecord = errors.New("windows: no record of windows")

// ID identifies a definition, a topic or a barrier.
type ID = [16]byte

// Definition returns the digest of an aggregate.
func Definition(text string) ID {
	sum := sha256.Sum256([]byte(text))
	return ID(sum[:16])
}

// Barrier returns a record that marks a position.
func Barrier(nonce, topic ID) []byte {
	return appendHeader(nil, kindBarrier, nonce, topic, 0, &progress{})
}

func appendHeader(dst []byte, kind byte, definition, topic ID, entries int, p *progress) []byte {
	dst = append(dst, recordVersion, kind)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.cursor)))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(entries))
	dst = append(append(dst, definition[:]...), topic[:]...)
	for _, n := range []int64{p.watermark, p.emitted, p.partly} {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(n))
	}
	if dst = append(dst, p.cursor...); kind == kindMixed {
		dst = append(binary.AppendUvarint(dst, uint64(len(p.origins))), p.origins...)
	}
	return dst
}

// Changes returns the records of the open transaction. Each has at most a number of
// bytes, unless a single entry needs more. If the changelog is full, they also have the
// panes that were written longest ago. After an error, which is one of the copy on disk,
// the transaction must be dropped.
func (s *State) Changes(definition, topic ID, most int) (records [][]byte, err error) {
	if !s.Changed() {
		return nil, nil
	}
	entries := s.coded[:0]
	kind := byte(kindChanges)
	if s.present.origins != "" {
		kind = kindMixed
	}
	head := appendHeader(nil, kind, definition, topic, 0, &s.present)
	n, written, start := 0, 0, len(head)
	clear(s.spots)
	s.spots = s.spots[:0]
	flush := func() {
		value := append(make([]byte, 0, start+len(entries)), head...)
		binary.LittleEndian.PutUint32(value[4:], uint32(n))
		records = append(records, append(value, entries...))
		entries, n = entries[:0], 0
	}
	add := func(key string, p *pane) {
		size := len(entries)
		entries = binary.AppendVarint(entries, p.start)
		entries = binary.AppendUvarint(entries, uint64(p.first-p.start))
		entries = binary.AppendUvarint(entries, p.late)
		entries = append(binary.AppendUvarint(entries, uint64(len(key))), key...)
		entries = binary.AppendUvarint(entries, uint64(p.size()))
		at := start + len(entries)
		var wrong error
		if entries, wrong = s.appendAcc(entries, p); wrong != nil {
			err = wrong // of the copy, which then reads nothing more
		}
		if size > 0 && start+len(entries) > most {
			last := slices.Clone(entries[size:])
			entries = entries[:size]
			flush()
			entries, at, size = append(entries, last...), at-size, 0
		}
		if p.stored() || s.Leaves(p.acc) {
			s.spots = append(s.spots, spot{p, len(records), at})
		}
		written += len(entries) - size
		n++
	}
	for key, p := range s.entries {
		add(key, p)
	}
	s.move(HeaderSize+written, func(key string, p *pane) int { add(key, p); return written })
	if err != nil {
		return nil, err
	}
	if n > 0 || len(records) == 0 {
		flush()
	}
	s.coded = entries
	return records, nil
}

// move writes the oldest panes again, if the changelog is full: as many bytes as the
// transaction writes anyway.
func (s *State) move(own int, add func(key string, p *pane) (written int)) {
	if !s.log.Full(s.bytes) {
		return
	}
	written := own
	for number, at := range s.log.Oldest() {
		if written >= 2*own {
			return
		}
		g := s.groups.at(number)
		for i := range g.panes {
			if p := &g.panes[i]; p.at == at && p.txn != s.txn {
				written = add(g.key, p)
			}
		}
		s.moved = append(s.moved, moved{g, at})
	}
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
		for _, p := range old.panes { // a session may have become part of another
			if _, ok := g.find(&p, true); ok || s.rule.gone(&s.present, g.key, &p) {
				continue
			}
			if p.acc = nil; !yield(g.key, &p) {
				return
			}
		}
	}
}

// Record is a record that was read. It shares the bytes.
type Record struct {
	// Nonce identifies a barrier, and is zero otherwise. Definition is the digest of
	// the aggregate.
	Nonce, Definition, Topic ID
	progress                 progress
	count                    int
	entries                  []byte // of the value, from the offset start on
	start                    int
}

// Watermark returns the watermark after the transaction.
func (r *Record) Watermark() int64 { return r.progress.watermark }

// Len returns the number of accumulators.
func (r *Record) Len() int { return r.count }

// Parse reads a record. Its error is ErrRecord.
func Parse(value []byte) (r Record, err error) {
	if len(value) < HeaderSize || value[0] != recordVersion || value[1] < kindBarrier || value[1] > kindMixed {
		return r, ErrRecord
	}
	cursor := int(binary.LittleEndian.Uint16(value[2:]))
	r.count = int(binary.LittleEndian.Uint32(value[4:]))
	if value[1] == kindBarrier {
		r.Nonce = ID(value[8:24])
	} else {
		r.Definition = ID(value[8:24])
	}
	r.Topic = ID(value[24:40])
	at := func(i int) int64 { return int64(binary.LittleEndian.Uint64(value[i:])) }
	r.progress.watermark, r.progress.emitted, r.progress.partly = at(40), at(48), at(56)
	if len(value) < HeaderSize+cursor {
		return r, ErrRecord
	}
	r.progress.cursor, r.start = string(value[HeaderSize:HeaderSize+cursor]), HeaderSize+cursor
	if value[1] == kindMixed {
		length, size := binary.Uvarint(value[r.start:])
		if r.start += size; size <= 0 || length > uint64(len(value)-r.start) {
			return r, ErrRecord
		}
		r.progress.origins = string(value[r.start : r.start+int(length)])
		r.start += int(length)
	}
	r.entries = value[r.start:]
	n := 0
	for rest := r.entries; len(rest) > 0; n++ {
		var ok bool
		if _, rest, ok = cutEntry(rest); !ok {
			return r, ErrRecord
		}
	}
	if n != r.count || value[1] == kindBarrier && n > 0 {
		return r, ErrRecord
	}
	return r, nil
}

// cutEntry reads the entry at the start of bytes.
func cutEntry(b []byte) (e entry, rest []byte, ok bool) {
	var first uint64
	start, size := binary.Varint(b)
	if size <= 0 {
		return e, nil, false
	}
	e.start, b = start, b[size:]
	for _, n := range []*uint64{&first, &e.late} {
		if *n, size = binary.Uvarint(b); size <= 0 {
			return e, nil, false
		}
		b = b[size:]
	}
	e.first = start + int64(first)
	text := func() []byte {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			return nil
		}
		part := b[size : size+int(n)]
		b = b[size+int(n):]
		return part
	}
	key := text()
	if key == nil {
		return e, nil, false
	}
	e.key = key
	if e.acc = text(); e.acc == nil {
		return e, nil, false
	}
	return e, b, true
}

// Apply adds a committed record at an offset. The copy on disk, if there is one, has it at
// a place. No transaction is open.
func (s *State) Apply(r *Record, at int64, place locallog.Place) {
	s.committed, s.present, s.left = r.progress, r.progress, nil
	whole := r.start + cap(r.entries)
	var e entry
	for rest := r.entries; len(rest) > 0; {
		e, rest, _ = cutEntry(rest) // Parse has checked them
		e.txn, e.at = s.txn-1, at
		switch {
		case len(e.acc) == 0:
			e.acc = nil // it is gone
		case s.Leaves(e.acc):
			e.acc = onDisk(s.Leave(place, whole-cap(e.acc), e.acc)) // a part of bytes has their capacity from its start on
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
		s.count++
		s.plan(g, &e.pane)
	case found:
		g.panes = slices.Delete(g.panes, at, at+1)
		s.count--
	}
	s.bytes += weigh(g.key, g.panes) - before
	if e.acc != nil {
		s.log.Put(g.number, e.at)
	}
	if len(g.panes) == 0 {
		s.forget(g)
	}
}
