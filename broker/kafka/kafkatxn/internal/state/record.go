package state

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"slices"
)

// A record has the values after the transaction. So reading a record twice is harmless. All
// fixed numbers are little-endian:
//
//	form (1), kind (1), length of the cursor (2), number of entries (4)
//	definition (16): a digest of the aggregate, or of the rule of a keep
//	topic (16): the id of the input topic
//	watermark (8): milliseconds since the Unix epoch
//	windows only: emitted, partly (8 each), as the watermark
//	cursor
//	kind 4 only: length of the sources (uvarint), sources
//	entries
//
// The packages of the states have the layout of the entries. A transaction with many
// changes has several records, and each has its whole progress. A barrier has the kind 2,
// no entries, and 16 bytes at the place of the definition that no other barrier has.
const (
	kindBarrier = 2
	kindChanges = 3
	kindSources = 4 // changes with sources
)

// Form tells the records of one kind of state from those of another.
type Form byte

const (
	// Windows is the form of windows.
	Windows Form = 2
	// Keep is the form of held messages and of versions.
	Keep Form = 0x41
	// Further is the form of all other states. Their definitions tell them apart.
	Further Form = 0x42
)

// HeaderSize is the size of a record without cursor, sources and entries.
func (f Form) HeaderSize() int { return 40 + 8*len(f.numbers(&Progress{})) }

// numbers returns those of a progress that records of the form have.
func (f Form) numbers(p *Progress) []*int64 {
	switch f {
	case Windows:
		return []*int64{&p.Watermark, &p.Emitted, &p.Partly}
	case Keep, Further:
		return []*int64{&p.Watermark}
	}
	return nil
}

// ErrRecord is the error of bytes that are no record.
var ErrRecord = errors.New("no record of a topic of state")

// ID identifies a definition, a topic or a barrier.
type ID = [16]byte

// Definition returns the digest of an aggregate, or of a rule of a keep.
func Definition(text string) ID {
	sum := sha256.Sum256([]byte(text))
	return ID(sum[:16])
}

// Progress is how far a partition has come. Times are milliseconds since the Unix epoch.
type Progress struct {
	Watermark int64
	// Emitted is the end of the last window whose results are all emitted. Partly is the end
	// of the window that is partly emitted, up to the group key Cursor; or 0.
	Emitted, Partly int64
	Cursor          string
	// Sources says how far each source of the partition has come.
	Sources string
}

func appendHeader(dst []byte, form Form, kind byte, definition, topic ID, p *Progress) []byte {
	dst = append(dst, byte(form), kind)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(p.Cursor)))
	dst = append(dst, 0, 0, 0, 0) // the number of entries is not known yet
	dst = append(append(dst, definition[:]...), topic[:]...)
	for _, n := range form.numbers(p) {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(*n))
	}
	if dst = append(dst, p.Cursor...); kind == kindSources {
		dst = append(binary.AppendUvarint(dst, uint64(len(p.Sources))), p.Sources...)
	}
	return dst
}

// Barrier returns a record that marks a position.
func Barrier(form Form, nonce, topic ID) []byte {
	return appendHeader(nil, form, kindBarrier, nonce, topic, &Progress{})
}

// Writer makes the records of one transaction. The zero value is ready for Begin.
type Writer struct {
	head, entries []byte
	count, most   int
	size          int
	records       [][]byte
}

// Begin starts the records of a transaction. Each has at most a number of bytes, unless a
// single entry needs more.
func (w *Writer) Begin(form Form, definition, topic ID, p *Progress, most int) {
	kind := byte(kindChanges)
	if p.Sources != "" {
		kind = kindSources
	}
	w.head = appendHeader(w.head[:0], form, kind, definition, topic, p)
	w.entries, w.count, w.most, w.size, w.records = w.entries[:0], 0, most, len(w.head), nil
}

// Add adds an entry, and returns where it begins.
func (w *Writer) Add(entry []byte) Spot {
	if w.count > 0 && len(w.head)+len(w.entries)+len(entry) > w.most {
		w.flush()
	}
	at := Spot{len(w.records), len(w.head) + len(w.entries)}
	w.entries = append(w.entries, entry...)
	w.count++
	w.size += len(entry)
	return at
}

// Spot is a place in the records of a transaction: the number of the record, and the offset
// in it.
type Spot struct{ Record, At int }

// Size returns the size of the entries and one header.
func (w *Writer) Size() int { return w.size }

func (w *Writer) flush() {
	value := slices.Concat(w.head, w.entries)
	binary.LittleEndian.PutUint32(value[4:], uint32(w.count))
	w.records = append(w.records, value)
	w.entries, w.count = w.entries[:0], 0
}

// Records ends the transaction and returns its records, at least one.
func (w *Writer) Records() [][]byte {
	if w.count > 0 || len(w.records) == 0 {
		w.flush()
	}
	return w.records
}

// Record is a record that was read. It shares the bytes.
type Record struct {
	// Nonce identifies a barrier, and is zero otherwise. Definition is the digest of the
	// aggregate or rule, and zero for a record of another form.
	Nonce, Definition, Topic ID
	Progress                 Progress
	// Entries are the bytes of all entries.
	Entries []byte
	start   int // of Entries
	count   int
}

// Split cuts an entry off the start of bytes, and reports whether there is one. The id says
// what changed.
type Split func(entries []byte) (id, rest []byte, ok bool)

// Parse reads a record of a form, whose entries split finds. Its error is ErrRecord. Of a
// record of another form it reads only what a barrier has.
func Parse(form Form, value []byte, split Split) (r Record, err error) {
	if len(value) < Keep.HeaderSize() || value[1] < kindBarrier || value[1] > kindSources {
		return r, ErrRecord
	}
	of, barrier := Form(value[0]), value[1] == kindBarrier
	if len(of.numbers(&r.Progress)) == 0 || len(value) < of.HeaderSize() {
		return r, ErrRecord
	}
	r.Topic = ID(value[24:40])
	if barrier {
		r.Nonce = ID(value[8:24])
	}
	if of != form {
		return r, nil
	}
	if !barrier {
		r.Definition = ID(value[8:24])
	}
	for i, n := range form.numbers(&r.Progress) {
		*n = int64(binary.LittleEndian.Uint64(value[40+8*i:]))
	}
	c := Cursor{Rest: value[form.HeaderSize():]}
	r.Progress.Cursor = string(c.Next(uint64(binary.LittleEndian.Uint16(value[2:]))))
	if value[1] == kindSources {
		r.Progress.Sources = string(c.Bytes())
	}
	r.start, r.Entries = len(value)-len(c.Rest), c.Rest
	for rest := r.Entries; len(rest) > 0; r.count++ {
		var ok bool
		if _, rest, ok = split(rest); !ok {
			return r, ErrRecord
		}
	}
	if c.Wrong || r.count != int(binary.LittleEndian.Uint32(value[4:])) || barrier && r.count > 0 {
		return r, ErrRecord
	}
	return r, nil
}

// Len returns the number of entries.
func (r *Record) Len() int { return r.count }

// At returns where a part of Entries is in the record. A part has the capacity of Entries
// from its start on.
func (r *Record) At(part []byte) int { return r.start + cap(r.Entries) - cap(part) }

// Cursor reads values at the start of bytes. The zero values are read from bytes that end
// early or are wrong.
type Cursor struct {
	Rest  []byte // what is not read yet
	Wrong bool
}

// Uvarint reads a number as binary.AppendUvarint writes it.
func (c *Cursor) Uvarint() uint64 {
	n, size := binary.Uvarint(c.Rest)
	if size <= 0 {
		c.Rest, c.Wrong = nil, true
		return 0
	}
	c.Rest = c.Rest[size:]
	return n
}

// Varint reads a number as binary.AppendVarint writes it.
func (c *Cursor) Varint() int64 {
	n := c.Uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

// Next reads a number of bytes. They share the memory, and have the capacity up to its end.
func (c *Cursor) Next(n uint64) []byte {
	if n > uint64(len(c.Rest)) {
		c.Wrong, n = true, 0
	}
	part := c.Rest[:n]
	c.Rest = c.Rest[n:]
	return part
}

// Bytes reads bytes behind their length.
func (c *Cursor) Bytes() []byte { return c.Next(c.Uvarint()) }
