package kafkaio

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// A record of the changelog says which keys one partition of the input learned
// in one transaction. All its numbers are little-endian:
//
//	version (1), kind (1), 0 (2), count (4)
//	secret (16): of the partition's digests
//	topic (16): the id of the input topic
//	stream time, base time (8 each): milliseconds since the Unix epoch
//	base offset (8)
//	count times: digest (16), time - base time (4), offset - base offset (4)
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
	// maxChangelogEntries keeps a record far below the size that brokers
	// accept by default.
	maxChangelogEntries = 16 << 10
)

var errChangelog = errors.New("kafkaio: no record of a changelog")

type topicID = [16]byte

// entry is what is remembered of one key.
type entry struct {
	digest semel.Digest
	time   int64 // when it was first seen, in milliseconds
	offset int64 // of the record that was first
}

// changelogEntries returns how many entries a record may have for a topic that takes
// batches of that many bytes.
func changelogEntries(limit int) int {
	const around = batchOverhead + 16 // numbers and lengths of the record
	return min(max((limit-around-changelogHeaderSize)/changelogEntrySize, 1), maxChangelogEntries)
}

// changelogHeader is what the entries of one record have in common.
type changelogHeader struct {
	kind       byte
	secret     digest.Secret // or the nonce of a barrier
	topic      topicID
	streamTime int64
}

// changelogDraft is a record of a changelog to which entries are added. Its memory
// is used again by the next one.
type changelogDraft struct {
	value                []byte
	baseTime, baseOffset int64
}

// begin makes the draft a record without entries, with room for some bytes.
func (d *changelogDraft) begin(room int) {
	room = max(room, changelogHeaderSize)
	d.value = slices.Grow(d.value[:0], room)[:changelogHeaderSize]
	clear(d.value)
}

// len returns the number of entries.
func (d *changelogDraft) len() int { return (len(d.value) - changelogHeaderSize) / changelogEntrySize }

// add adds an entry. It reports false if its time or offset is too far from those
// of the first one. Offsets do not go down, but times may: they are counted from
// far below the first one's.
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

// record returns the entries as they will be read.
func (d *changelogDraft) record(h *changelogHeader) changelogRecord {
	return changelogRecord{*h, d.baseTime, d.baseOffset, d.value[changelogHeaderSize:]}
}

// finish completes the record and returns it. It is valid until the draft begins
// anew.
func (d *changelogDraft) finish(h *changelogHeader) []byte {
	head := d.value[:changelogHeaderSize]
	head[0], head[1] = changelogVersion, h.kind
	binary.LittleEndian.PutUint32(head[4:], uint32(d.len()))
	copy(head[8:], h.secret[:])
	copy(head[24:], h.topic[:])
	binary.LittleEndian.PutUint64(head[40:], uint64(h.streamTime))
	binary.LittleEndian.PutUint64(head[48:], uint64(d.baseTime))
	binary.LittleEndian.PutUint64(head[56:], uint64(d.baseOffset))
	return d.value
}

// withoutEntries returns a record that has none.
func withoutEntries(h *changelogHeader) []byte {
	var d changelogDraft
	d.begin(0)
	return d.finish(h)
}

// changelogRecord is a record of a changelog as it was read. It shares the bytes.
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
	if int64(len(c.entries)) != int64(binary.LittleEndian.Uint32(value[4:]))*changelogEntrySize {
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
