package kafkaio

import (
	"encoding/binary"
	"errors"
	"math"

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

// appendChangelog appends a record with as many of the entries as one takes, and
// returns how many that were.
func appendChangelog(dst []byte, h *changelogHeader, entries []entry) ([]byte, int) {
	start := len(dst)
	dst = append(dst, make([]byte, changelogHeaderSize)...)
	n, baseTime, baseOffset := fitting(entries)
	for i := range entries[:n] {
		e := &entries[i]
		dst = append(dst, e.digest[:]...)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(e.time-baseTime))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(e.offset-baseOffset))
	}
	head := dst[start:]
	head[0], head[1] = changelogVersion, h.kind
	binary.LittleEndian.PutUint32(head[4:], uint32(n))
	copy(head[8:], h.secret[:])
	copy(head[24:], h.topic[:])
	binary.LittleEndian.PutUint64(head[40:], uint64(h.streamTime))
	binary.LittleEndian.PutUint64(head[48:], uint64(baseTime))
	binary.LittleEndian.PutUint64(head[56:], uint64(baseOffset))
	return dst, n
}

// fitting returns how many of the entries, which are in the order of their
// offsets, one record takes, and what its differences count from.
func fitting(entries []entry) (n int, baseTime, baseOffset int64) {
	if len(entries) == 0 {
		return 0, 0, 0
	}
	first, last := entries[0].time, entries[0].time
	baseOffset = entries[0].offset
	for n < len(entries) && n < maxChangelogEntries {
		e := &entries[n]
		from, to := min(first, e.time), max(last, e.time)
		if to-from > math.MaxUint32 || uint64(e.offset-baseOffset) > math.MaxUint32 {
			break
		}
		first, last = from, to
		n++
	}
	return n, first, baseOffset
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

// at reads an entry.
func (c *changelogRecord) at(i int, e *entry) {
	b := c.entries[i*changelogEntrySize:][:changelogEntrySize]
	copy(e.digest[:], b)
	e.time = c.baseTime + int64(binary.LittleEndian.Uint32(b[16:]))
	e.offset = c.baseOffset + int64(binary.LittleEndian.Uint32(b[20:]))
}
