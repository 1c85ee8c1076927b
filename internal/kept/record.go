package kept

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/semel-dev/semel/internal/locallog"
)

// A record says what one transaction changed in a partition, with the values after it. So
// reading a record twice is harmless. All fixed numbers are little-endian:
//
//	version (1), kind (1), 0 (2), number of ids (4)
//	definition (16): a digest of the rule
//	topic (16): the id of the input topic
//	watermark (8): milliseconds since the Unix epoch
//	kind 4 only: length of the origins (uvarint), origins
//	ids: length of the id (uvarint), id, number of its entries (uvarint)
//	entries: first, last, deadline, time, offset (varints), length of the value (uvarint), value
//
// Each id that changed has all its entries, or none if they are gone. A transaction with
// many changes has several records. A barrier has the kind 2, no ids, and 16 bytes at the
// place of the definition that no other barrier has.
const (
	recordVersion = 0x41 // records of windows have other versions
	kindBarrier   = 2
	kindChanges   = 3
	kindMixed     = 4 // changes with origins: see State.SetOrigins

	// HeaderSize is the size of a record without origins and ids.
	HeaderSize = 48
	// EntrySize is the largest size of an entry without its id and value.
	EntrySize = 5*binary.MaxVarintLen64 + 3*binary.MaxVarintLen32
	// usualEntry is about that size.
	usualEntry = 28
)

// ErrRecord is the error of bytes that are no record of this package.
var ErrRecord = errors.New("kept: no record of held records or versions")

// ID identifies a definition, a topic or a barrier.
type ID = [16]byte

// Barrier returns a record that marks a position.
func Barrier(nonce, topic ID) []byte { return appendHeader(nil, kindBarrier, nonce, topic, progress{}) }

func appendHeader(dst []byte, kind byte, definition, topic ID, p progress) []byte {
	dst = append(dst, recordVersion, kind, 0, 0, 0, 0, 0, 0) // the number of ids is not known yet
	dst = append(append(dst, definition[:]...), topic[:]...)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(p.watermark))
	if kind == kindMixed {
		dst = append(binary.AppendUvarint(dst, uint64(len(p.origins))), p.origins...)
	}
	return dst
}

// Changes returns the records of the open transaction. Each has at most a number of bytes,
// unless a single id needs more. If the changelog is full, they also have the entries that
// were written longest ago: as many bytes as the transaction writes anyway. After an error,
// which is one of the copy on disk, the transaction must be dropped.
func (s *State) Changes(definition, topic ID, most int) (records [][]byte, err error) {
	if len(s.changed) == 0 && s.progress == s.committed {
		return nil, nil
	}
	kind := byte(kindChanges)
	if s.origins != "" {
		kind = kindMixed
	}
	head := appendHeader(nil, kind, definition, topic, s.progress)
	var ids []byte
	n, written := 0, len(head)
	flush := func() {
		value := append(make([]byte, 0, len(head)+len(ids)), head...)
		binary.LittleEndian.PutUint32(value[4:], uint32(n))
		records = append(records, append(value, ids...))
		ids, n = ids[:0], 0
	}
	s.written, s.spots = s.written[:0], s.spots[:0]
	for id, entries := range s.changed {
		if len(entries) > 0 || len(s.open[id]) > 0 { // otherwise it came and went
			s.written = append(s.written, id)
		}
	}
	slices.Sort(s.written)
	add := func(id string) error {
		size, first := len(ids), len(s.spots)
		var err error
		if ids, err = s.appendEntries(ids, len(head), id, s.list(id)); err != nil {
			return err
		}
		if size > 0 && len(head)+len(ids) > most {
			last := slices.Clone(ids[size:])
			ids = ids[:size]
			flush()
			ids = append(ids, last...)
			for i := range s.spots[first:] {
				s.spots[first+i].at -= size
			}
			size = 0
		}
		for i := range s.spots[first:] {
			s.spots[first+i].record = len(records)
		}
		written += len(ids) - size
		n++
		return nil
	}
	for _, id := range s.written {
		if err := add(id); err != nil {
			return nil, err
		}
	}
	if own := written; s.log.Full(s.bytes) {
		for id := range s.log.Oldest() {
			if written >= 2*own {
				break
			}
			if err := add(id); err != nil {
				return nil, err
			}
			s.written = append(s.written, id)
		}
	}
	if n > 0 || len(records) == 0 {
		flush()
	}
	return records, nil
}

// spot is where an entry's value is in the records of the open transaction.
type spot struct{ record, at int }

// appendEntries appends the entries of an id behind a header, and notes where their values
// are.
func (s *State) appendEntries(dst []byte, header int, id string, list []entry) (_ []byte, err error) {
	dst = append(binary.AppendUvarint(dst, uint64(len(id))), id...)
	dst = binary.AppendUvarint(dst, uint64(len(list)))
	for i := range list {
		e := &list[i]
		for _, n := range []int64{e.first, e.last, e.deadline, e.when, e.offset} {
			dst = binary.AppendVarint(dst, n)
		}
		dst = binary.AppendUvarint(dst, uint64(e.size()))
		s.spots = append(s.spots, spot{at: header + len(dst)})
		if e.stored() {
			if dst, err = s.Read(dst, e.ref); err != nil {
				return nil, err
			}
		}
		dst = append(dst, e.value...)
	}
	return dst, nil
}

// weigh returns about the size of entries in the changelog.
func weigh(id string, list []entry) (bytes int64) {
	for i := range list {
		bytes += int64(len(id) + list[i].size() + usualEntry)
	}
	return bytes
}

// Record is a record that was read. It shares the bytes.
type Record struct {
	// Nonce identifies a barrier, and is zero otherwise. Definition is the digest of the
	// rule.
	Nonce, Definition, Topic ID
	progress                 progress
	count                    int
	ids                      []byte // of the value, from the offset start on
	start                    int
}

// Watermark returns the watermark after the transaction.
func (r *Record) Watermark() int64 { return r.progress.watermark }

// Len returns the number of ids.
func (r *Record) Len() int { return r.count }

// Parse reads a record. Its error is ErrRecord.
func Parse(value []byte) (r Record, err error) {
	if len(value) < HeaderSize || value[0] != recordVersion || value[1] < kindBarrier || value[1] > kindMixed {
		return r, ErrRecord
	}
	r.count = int(binary.LittleEndian.Uint32(value[4:]))
	if value[1] == kindBarrier {
		r.Nonce = ID(value[8:24])
	} else {
		r.Definition = ID(value[8:24])
	}
	r.Topic = ID(value[24:40])
	r.progress.watermark, r.start = int64(binary.LittleEndian.Uint64(value[40:])), HeaderSize
	if value[1] == kindMixed {
		length, size := binary.Uvarint(value[r.start:])
		if r.start += size; size <= 0 || length > uint64(len(value)-r.start) {
			return r, ErrRecord
		}
		r.progress.origins = string(value[r.start : r.start+int(length)])
		r.start += int(length)
	}
	r.ids = value[r.start:]
	n := 0
	for rest := r.ids; len(rest) > 0; n++ {
		var ok bool
		if _, _, rest, ok = cutEntries(rest); !ok {
			return r, ErrRecord
		}
	}
	if n != r.count || value[1] == kindBarrier && n > 0 {
		return r, ErrRecord
	}
	return r, nil
}

// cutEntries reads the entries of the id at the start of bytes.
func cutEntries(b []byte) (id string, list []entry, rest []byte, ok bool) {
	ok = true
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			ok, b = false, nil
			return 0
		}
		b = b[size:]
		return n
	}
	signed := func() int64 {
		n := number()
		return int64(n>>1) ^ -int64(n&1)
	}
	bytes := func() []byte {
		n := number()
		if n > uint64(len(b)) {
			ok, n = false, 0
		}
		part := b[:n]
		b = b[n:]
		return part
	}
	id = string(bytes())
	for n := number(); n > 0 && ok; n-- {
		e := entry{first: signed(), last: signed(), deadline: signed(), when: signed(), offset: signed()}
		e.value = bytes()
		list = append(list, e)
	}
	return id, list, b, ok
}

// Apply adds a committed record at an offset. The copy on disk, if there is one, has it at
// a place. No transaction is open.
func (s *State) Apply(r *Record, at int64, place locallog.Place) {
	for rest := r.ids; len(rest) > 0; {
		var id string
		var list []entry
		start, whole := r.start+len(r.ids)-len(rest), cap(rest)
		id, list, rest, _ = cutEntries(rest) // Parse has checked them
		for i := range list {
			if e := &list[i]; s.Leaves(e.value) {
				at := start + whole - cap(e.value) // a part of bytes has their capacity from its start on
				e.ref, e.value = s.Leave(place, at, e.value), nil
			} else {
				e.value = slices.Clone(e.value)
			}
			s.enqueue(id, &list[i], slices.Concat(list[:i], list[i+1:]))
		}
		s.set(id, list)
		s.stored(id, at)
	}
	s.settle(r.progress)
}
