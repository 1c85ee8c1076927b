package keys

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/internal/digest"
)

// A record of the changelog says which keys one partition of the input learned
// in one transaction. All its numbers are little-endian:
//
//	version (1), kind (1), checksum of the key rule (2), count (2), checksum of the scope (2)
//	secret (16): of the partition's digests
//	topic (16): the id of the input topic
//	stream time, base time (8 each): milliseconds since the Unix epoch
//	base offset (8)
//	count times: digest (16), time - base time (4), offset - base offset (4)
//
// Checksums are 0 in records that were written without them.
//
// A barrier has the kind 2, no entries, and 16 bytes at the place of the secret
// that no other barrier has. A process that has read up to its own barrier has read
// all that was committed before it was written.
const (
	version     = 1
	KindEntries = 1
	KindBarrier = 2

	headerSize = 64
	EntrySize  = 24
	// MaxEntries keeps a record far below the default limit of brokers.
	MaxEntries = 16 << 10
)

// HeaderOrigins is a header of records whose entries are of copies. It says which
// records of the inputs these were copies of, so that explain can name them when the
// copies are gone:
//
//	number of inputs; for each its name, behind its length
//	for each entry: number of its input, counted from 1; partition; offset
//
// All numbers are uvarints. An entry of a topic that is no longer an input has the
// number 0 alone.
const (
	HeaderOrigins = "semel-origins"
	// maxOriginSize is the largest size of an entry in the header.
	maxOriginSize = binary.MaxVarintLen16 + binary.MaxVarintLen32 + binary.MaxVarintLen64
)

// ErrRecord says that bytes are not a record of a changelog.
var ErrRecord = fmt.Errorf("no record of a changelog: start the version of Semel that wrote it, or use a new group: %w", semel.ErrInvalidRequest)

// Entry is a remembered key.
type Entry struct {
	Digest semel.Digest
	Time   int64 // when it was first seen, in milliseconds
	Offset int64 // of the first record
}

// Entries returns how many entries a record may have if its topic accepts
// batches of that many bytes. With inputs it has HeaderOrigins, which starts with them.
func Entries(limit int, inputs []byte) int {
	around, size := cluster.BatchOverhead+16, EntrySize // 16: numbers and lengths of the record
	if inputs != nil {
		around += len(HeaderOrigins) + len(inputs) + 2*binary.MaxVarintLen32
		size += maxOriginSize
	}
	return min(max((limit-around-headerSize)/size, 1), MaxEntries)
}

// AppendInputs appends the start of HeaderOrigins.
func AppendInputs(dst []byte, inputs []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(inputs)))
	for _, name := range inputs {
		dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
	}
	return dst
}

// AppendOrigin appends one entry to HeaderOrigins. Inputs are counted from 1.
func AppendOrigin(dst []byte, input int, partition int32, offset int64) []byte {
	dst = binary.AppendUvarint(dst, uint64(input))
	if input == 0 {
		return dst
	}
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(uint32(partition))), uint64(offset))
}

// ParseOrigins reads HeaderOrigins of a record with a number of entries. An unknown
// origin is zero.
func ParseOrigins(value []byte, entries int) ([]semel.Origin, error) {
	c := state.Cursor{Rest: value}
	names := []string{""}
	for inputs := c.Uvarint(); inputs > 0 && !c.Wrong; inputs-- {
		names = append(names, string(c.Bytes()))
	}
	list := make([]semel.Origin, entries)
	for i := range list {
		input := c.Uvarint()
		if input >= uint64(len(names)) {
			return nil, ErrRecord
		}
		if input > 0 {
			partition, offset := c.Uvarint(), c.Uvarint()
			list[i] = semel.Origin{Source: names[input], Partition: int32(partition), Offset: int64(offset)}
		}
	}
	if c.Wrong || len(c.Rest) > 0 {
		return nil, ErrRecord
	}
	return list, nil
}

// Header holds the common fields of a record's entries.
type Header struct {
	Kind       byte
	Made       Maker
	Secret     digest.Secret // or the nonce of a barrier
	Topic      state.ID
	StreamTime int64
}

// Maker identifies how keys were made, by checksums of the key rule and the scope.
type Maker struct{ rule, scope uint16 }

// MakerOf returns the checksums of a rule and a scope.
func MakerOf(rule, scope string) Maker {
	check := func(text string) uint16 { return max(uint16(crc32.ChecksumIEEE([]byte(text))), 1) }
	return Maker{check(rule), check(scope)}
}

// Conflicts reports whether both made keys in one scope by different rules.
func (m Maker) Conflicts(other Maker) bool {
	return m.scope == other.scope && m.rule != other.rule && m.rule != 0 && other.rule != 0
}

// draft is a changelog record in progress. The next one reuses its memory.
type draft struct {
	value                []byte
	baseTime, baseOffset int64
}

// begin resets the draft, with room for some bytes.
func (d *draft) begin(room int) {
	room = max(room, headerSize)
	d.value = slices.Grow(d.value[:0], room)[:headerSize]
	clear(d.value)
}

// len returns the number of entries.
func (d *draft) len() int { return (len(d.value) - headerSize) / EntrySize }

// add adds an entry. It reports false if its time or offset is too far from the first
// one's. Offsets only grow, but times may go back: they are counted from far below the
// first one.
func (d *draft) add(e *Entry) bool {
	if d.len() == 0 {
		d.baseTime, d.baseOffset = e.Time-math.MaxInt32, e.Offset
	}
	time, offset := uint64(e.Time-d.baseTime), uint64(e.Offset-d.baseOffset)
	if time > math.MaxUint32 || offset > math.MaxUint32 {
		return false
	}
	if len(d.value)+EntrySize > cap(d.value) {
		d.value = slices.Grow(d.value, len(d.value))
	}
	d.value = append(d.value, e.Digest[:]...)
	d.value = binary.LittleEndian.AppendUint32(d.value, uint32(time))
	d.value = binary.LittleEndian.AppendUint32(d.value, uint32(offset))
	return true
}

// entry returns the bytes of an entry.
func (d *draft) entry(i int) []byte {
	return d.value[headerSize+i*EntrySize:][:EntrySize]
}

// time returns the time of one of the entries.
func (d *draft) time(entry []byte) int64 {
	return d.baseTime + int64(binary.LittleEndian.Uint32(entry[16:]))
}

// digestOf returns the digest in the bytes of an entry.
func digestOf(entry []byte) *semel.Digest { return (*semel.Digest)(entry) }

// record returns the entries as a reader sees them.
func (d *draft) record(h *Header) Record {
	return Record{*h, d.baseTime, d.baseOffset, d.value[headerSize:]}
}

// finish completes the record and returns it. It is valid until the next begin.
func (d *draft) finish(h *Header) []byte {
	head := d.value[:headerSize]
	head[0], head[1] = version, h.Kind
	binary.LittleEndian.PutUint16(head[2:], h.Made.rule)
	binary.LittleEndian.PutUint16(head[4:], uint16(d.len()))
	binary.LittleEndian.PutUint16(head[6:], h.Made.scope)
	copy(head[8:], h.Secret[:])
	copy(head[24:], h.Topic[:])
	binary.LittleEndian.PutUint64(head[40:], uint64(h.StreamTime))
	binary.LittleEndian.PutUint64(head[48:], uint64(d.baseTime))
	binary.LittleEndian.PutUint64(head[56:], uint64(d.baseOffset))
	return d.value
}

// Encode returns a record with the entries, which must not be too far apart for one.
func Encode(h *Header, entries ...Entry) []byte {
	var d draft
	d.begin(0)
	for i := range entries {
		if !d.add(&entries[i]) {
			panic("kafka: entries too far apart for one record of a changelog")
		}
	}
	return d.finish(h)
}

// Record is a changelog record that was read. It shares the bytes.
type Record struct {
	Header
	baseTime, baseOffset int64
	entries              []byte
}

func Parse(value []byte) (c Record, err error) {
	if len(value) < headerSize || value[0] != version || value[1] != KindEntries && value[1] != KindBarrier {
		return c, ErrRecord
	}
	c.Kind = value[1]
	copy(c.Secret[:], value[8:])
	copy(c.Topic[:], value[24:])
	c.StreamTime = int64(binary.LittleEndian.Uint64(value[40:]))
	c.baseTime = int64(binary.LittleEndian.Uint64(value[48:]))
	c.baseOffset = int64(binary.LittleEndian.Uint64(value[56:]))
	c.entries = value[headerSize:]
	c.Made = Maker{binary.LittleEndian.Uint16(value[2:]), binary.LittleEndian.Uint16(value[6:])}
	if len(c.entries) != int(binary.LittleEndian.Uint16(value[4:]))*EntrySize {
		return c, ErrRecord
	}
	return c, nil
}

// len returns the number of entries.
func (c *Record) Len() int { return len(c.entries) / EntrySize }

// entry returns the bytes of an entry.
func (c *Record) entry(i int) []byte {
	return c.entries[i*EntrySize:][:EntrySize]
}

// at reads an entry.
func (c *Record) At(i int, e *Entry) {
	b := c.entry(i)
	e.Digest = *digestOf(b)
	e.Time = c.baseTime + int64(binary.LittleEndian.Uint32(b[16:]))
	e.Offset = c.baseOffset + int64(binary.LittleEndian.Uint32(b[20:]))
}
