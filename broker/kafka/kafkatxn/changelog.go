package kafkatxn

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
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
// that no other barrier has. Whoever has read up to its own barrier has read
// all that was committed before it was written.
const (
	changelogVersion = 1
	kindEntries      = 1
	kindBarrier      = 2

	changelogHeaderSize = 64
	changelogEntrySize  = 24
	// maxChangelogEntries keeps a record far below the default limit of brokers.
	maxChangelogEntries = 16 << 10
)

// headerOrigins is a header of records whose entries are of copies. It says which
// records of the inputs these were copies of, so that explain can name them when the
// copies are gone:
//
//	number of inputs; for each its name, behind its length
//	for each entry: number of its input, counted from 1; partition; offset
//
// All numbers are uvarints. An entry of a topic that is no input any more has the
// number 0 alone.
const (
	headerOrigins = "semel-origins"
	// maxOriginSize is the largest size of an entry in the header.
	maxOriginSize = binary.MaxVarintLen16 + binary.MaxVarintLen32 + binary.MaxVarintLen64
)

var errChangelog = errors.New("kafka: no record of a changelog")

type topicID = [16]byte

// entry is a remembered key.
type entry struct {
	digest semel.Digest
	time   int64 // when it was first seen, in milliseconds
	offset int64 // of the first record
}

// changelogEntries returns how many entries a record may have if its topic accepts
// batches of that many bytes. With inputs it has headerOrigins, which starts with them.
func changelogEntries(limit int, inputs []byte) int {
	around, size := cluster.BatchOverhead+16, changelogEntrySize // 16: numbers and lengths of the record
	if inputs != nil {
		around += len(headerOrigins) + len(inputs) + 2*binary.MaxVarintLen32
		size += maxOriginSize
	}
	return min(max((limit-around-changelogHeaderSize)/size, 1), maxChangelogEntries)
}

// appendInputs appends the start of headerOrigins.
func appendInputs(dst []byte, inputs []string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(inputs)))
	for _, name := range inputs {
		dst = append(binary.AppendUvarint(dst, uint64(len(name))), name...)
	}
	return dst
}

// appendOrigin appends one entry to headerOrigins. Inputs are counted from 1.
func appendOrigin(dst []byte, input int, partition int32, offset int64) []byte {
	dst = binary.AppendUvarint(dst, uint64(input))
	if input == 0 {
		return dst
	}
	return binary.AppendUvarint(binary.AppendUvarint(dst, uint64(uint32(partition))), uint64(offset))
}

// parseOrigins reads headerOrigins of a record with a number of entries. An unknown
// origin is zero.
func parseOrigins(value []byte, entries int) ([]semel.Origin, error) {
	wrong := false
	number := func() uint64 {
		n, size := binary.Uvarint(value)
		if size <= 0 {
			wrong, value = true, nil
			return 0
		}
		value = value[size:]
		return n
	}
	names := []string{""}
	for inputs := number(); inputs > 0 && !wrong; inputs-- {
		length := number()
		if length > uint64(len(value)) {
			return nil, errChangelog
		}
		names = append(names, string(value[:length]))
		value = value[length:]
	}
	list := make([]semel.Origin, entries)
	for i := range list {
		input := number()
		if input >= uint64(len(names)) {
			return nil, errChangelog
		}
		if input > 0 {
			partition, offset := number(), number()
			list[i] = semel.Origin{Source: names[input], Partition: int32(partition), Offset: int64(offset)}
		}
	}
	if wrong || len(value) > 0 {
		return nil, errChangelog
	}
	return list, nil
}

// changelogHeader holds the common fields of a record's entries.
type changelogHeader struct {
	kind       byte
	made       keyMaker
	secret     digest.Secret // or the nonce of a barrier
	topic      topicID
	streamTime int64
}

// keyMaker identifies how keys were made, by checksums of the key rule and the scope.
type keyMaker struct{ rule, scope uint16 }

func (o *TransactorOptions) keyMaker() keyMaker {
	check := func(text string) uint16 { return max(uint16(crc32.ChecksumIEEE([]byte(text))), 1) }
	return keyMaker{check(o.Key.String()), check(o.Scope.Name)}
}

// conflicts reports whether both made keys in one scope by different rules.
func (m keyMaker) conflicts(other keyMaker) bool {
	return m.scope == other.scope && m.rule != other.rule && m.rule != 0 && other.rule != 0
}

// changelogDraft is a changelog record in progress. The next one reuses its memory.
type changelogDraft struct {
	value                []byte
	baseTime, baseOffset int64
}

// begin resets the draft, with room for some bytes.
func (d *changelogDraft) begin(room int) {
	room = max(room, changelogHeaderSize)
	d.value = slices.Grow(d.value[:0], room)[:changelogHeaderSize]
	clear(d.value)
}

// len returns the number of entries.
func (d *changelogDraft) len() int { return (len(d.value) - changelogHeaderSize) / changelogEntrySize }

// add adds an entry. It reports false if its time or offset is too far from the first
// one's. Offsets only grow, but times may go back: they are counted from far below the
// first one.
func (d *changelogDraft) add(e *entry) bool {
	if d.len() == 0 {
		d.baseTime, d.baseOffset = e.time-math.MaxInt32, e.offset
	}
	time, offset := uint64(e.time-d.baseTime), uint64(e.offset-d.baseOffset)
	if time > math.MaxUint32 || offset > math.MaxUint32 {
		return false
	}
	if len(d.value)+changelogEntrySize > cap(d.value) {
		d.value = slices.Grow(d.value, len(d.value))
	}
	d.value = append(d.value, e.digest[:]...)
	d.value = binary.LittleEndian.AppendUint32(d.value, uint32(time))
	d.value = binary.LittleEndian.AppendUint32(d.value, uint32(offset))
	return true
}

// entry returns the bytes of an entry.
func (d *changelogDraft) entry(i int) []byte {
	return d.value[changelogHeaderSize+i*changelogEntrySize:][:changelogEntrySize]
}

// time returns the time of one of the entries.
func (d *changelogDraft) time(entry []byte) int64 {
	return d.baseTime + int64(binary.LittleEndian.Uint32(entry[16:]))
}

// digestOf returns the digest in the bytes of an entry.
func digestOf(entry []byte) *semel.Digest { return (*semel.Digest)(entry) }

// record returns the entries as a reader sees them.
func (d *changelogDraft) record(h *changelogHeader) changelogRecord {
	return changelogRecord{*h, d.baseTime, d.baseOffset, d.value[changelogHeaderSize:]}
}

// finish completes the record and returns it. It is valid until the next begin.
func (d *changelogDraft) finish(h *changelogHeader) []byte {
	head := d.value[:changelogHeaderSize]
	head[0], head[1] = changelogVersion, h.kind
	binary.LittleEndian.PutUint16(head[2:], h.made.rule)
	binary.LittleEndian.PutUint16(head[4:], uint16(d.len()))
	binary.LittleEndian.PutUint16(head[6:], h.made.scope)
	copy(head[8:], h.secret[:])
	copy(head[24:], h.topic[:])
	binary.LittleEndian.PutUint64(head[40:], uint64(h.streamTime))
	binary.LittleEndian.PutUint64(head[48:], uint64(d.baseTime))
	binary.LittleEndian.PutUint64(head[56:], uint64(d.baseOffset))
	return d.value
}

// withoutEntries returns a record without entries.
func withoutEntries(h *changelogHeader) []byte {
	var d changelogDraft
	d.begin(0)
	return d.finish(h)
}

// changelogRecord is a changelog record that was read. It shares the bytes.
type changelogRecord struct {
	changelogHeader
	baseTime, baseOffset int64
	entries              []byte
}

func parseChangelog(value []byte) (c changelogRecord, err error) {
	if len(value) < changelogHeaderSize || value[0] != changelogVersion || value[1] != kindEntries && value[1] != kindBarrier {
		return c, errChangelog
	}
	c.kind = value[1]
	copy(c.secret[:], value[8:])
	copy(c.topic[:], value[24:])
	c.streamTime = int64(binary.LittleEndian.Uint64(value[40:]))
	c.baseTime = int64(binary.LittleEndian.Uint64(value[48:]))
	c.baseOffset = int64(binary.LittleEndian.Uint64(value[56:]))
	c.entries = value[changelogHeaderSize:]
	c.made = keyMaker{binary.LittleEndian.Uint16(value[2:]), binary.LittleEndian.Uint16(value[6:])}
	if len(c.entries) != int(binary.LittleEndian.Uint16(value[4:]))*changelogEntrySize {
		return c, errChangelog
	}
	return c, nil
}

// len returns the number of entries.
func (c *changelogRecord) len() int { return len(c.entries) / changelogEntrySize }

// entry returns the bytes of an entry.
func (c *changelogRecord) entry(i int) []byte {
	return c.entries[i*changelogEntrySize:][:changelogEntrySize]
}

// at reads an entry.
func (c *changelogRecord) at(i int, e *entry) {
	b := c.entry(i)
	e.digest = *digestOf(b)
	e.time = c.baseTime + int64(binary.LittleEndian.Uint32(b[16:]))
	e.offset = c.baseOffset + int64(binary.LittleEndian.Uint32(b[20:]))
}
