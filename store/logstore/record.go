package logstore

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A record is one commit: the entries that were written and synced together. It
// starts with
//
//	0   checksum of everything from 4 to the trailer, seeded with the header
//	    of the segment, so that a record is valid in its own segment only
//	4   length in bytes, header and trailer included
//	8   time, nanoseconds since the epoch
//	16  synced: the length of the segment that was known durable when this
//	    record was written
//	20  sequence number, one more than that of the previous record
//	24  number of entries; bit 31 marks the record that seals its segment
//
// and ends with the trailer. Each of the trailer's four bytes has two set bits.
// If the end of the record was not written, the trailer is missing. No single
// flipped bit makes a trailer look missing.
const (
	recordHead    = 28
	recordTrail   = 4
	recordExtra   = recordHead + recordTrail
	sealFlag      = 1 << 31
	trailer       = 0x5ac33c96
	sectorSize    = 512 // a disk writes a sector completely or not at all
	emptyRecord   = recordExtra
	summaryLength = 5*8 + 4*histogramSize
	sealRecord    = recordExtra + summaryLength
)

// record is a decoded record header.
type record struct {
	off    int // in the segment
	length int
	time   int64
	synced int
	seq    uint32
	count  int
	seal   bool
}

func (r *record) end() int { return r.off + r.length }

// encodeHead encodes a record's header into b, except for the checksum.
func (r *record) encodeHead(b []byte) {
	binary.LittleEndian.PutUint32(b[4:], uint32(r.length))
	binary.LittleEndian.PutUint64(b[8:], uint64(r.time))
	binary.LittleEndian.PutUint32(b[16:], uint32(r.synced))
	binary.LittleEndian.PutUint32(b[20:], r.seq)
	count := uint32(r.count)
	if r.seal {
		count |= sealFlag
	}
	binary.LittleEndian.PutUint32(b[24:], count)
}

// decodeHead decodes a record's header at off of a segment's image. It returns
// false if no record of the image can start that way.
func decodeHead(img []byte, off int) (record, bool) {
	if off+emptyRecord > len(img) {
		return record{}, false
	}
	r := headOf(img[off:], off)
	ok := r.length >= emptyRecord && r.length%4 == 0 && r.length <= len(img)-off
	return r, ok
}

// headOf decodes a header without validating it.
func headOf(b []byte, off int) record {
	count := binary.LittleEndian.Uint32(b[24:])
	return record{
		off:    off,
		length: int(binary.LittleEndian.Uint32(b[4:])),
		time:   int64(binary.LittleEndian.Uint64(b[8:])),
		synced: int(binary.LittleEndian.Uint32(b[16:])),
		seq:    binary.LittleEndian.Uint32(b[20:]),
		count:  int(count &^ sealFlag),
		seal:   count&sealFlag != 0,
	}
}

// checkRecord reports whether the record's checksum and trailer are valid.
func checkRecord(img []byte, r record, seed uint32) bool {
	b := img[r.off:r.end()]
	return binary.LittleEndian.Uint32(b[len(b)-recordTrail:]) == trailer &&
		binary.LittleEndian.Uint32(b) == crc32.Update(seed, castagnoli, b[4:len(b)-recordTrail])
}

// walk calls visit for each entry of a verified record. It returns an error if
// the last entry does not end at the end of the record. A checksum does not
// detect a record that was encoded wrongly.
func walk(img []byte, r record, base int64, visit func(e entry) error) error {
	off, end := r.off+recordHead, r.end()-recordTrail
	for n := 0; n < r.count; n++ {
		e, ok := decodeEntry(img[off:end], base)
		if !ok {
			return fmt.Errorf("cannot decode entry %d of the record at %d", n, r.off)
		}
		e.off = off
		if err := visit(e); err != nil {
			return err
		}
		off += e.size
	}
	if off != end {
		return fmt.Errorf("the record at %d has %d extra bytes after its entries", r.off, end-off)
	}
	return nil
}

// summary describes a segment as a whole. It is part of the seal of a full
// segment.
type summary struct {
	entries int64 // done entries
	forever int64 // done entries without expiry
	maxTick int64 // the latest expiry of the others
	first   int64 // time of the first record, or 0 if there is no record
	last    int64 // time of the last record
	// histogram counts entries by the logarithm of their life: entry i expires
	// less than 1<<i ticks after the segment's base.
	histogram [histogramSize]uint32
}

// histogramSize covers every life that a compact entry can have. The last class
// counts longer ones as well.
const histogramSize = 32

// add counts one done entry.
func (s *summary) add(tick, base int64) {
	s.entries++
	if tick >= never/tickNanos {
		s.forever++
		return
	}
	s.maxTick = max(s.maxTick, tick)
	s.histogram[lifeClass(tick-base)]++
}

// lifeClass returns the histogram class of a life.
func lifeClass(ticks int64) int {
	class := 0
	for ticks > 0 && class < histogramSize-1 {
		ticks >>= 1
		class++
	}
	return class
}

// seen records the time of a record.
func (s *summary) seen(at int64) {
	if s.first == 0 {
		s.first = at
	}
	s.last = max(s.last, at)
}

// expired returns a lower bound of the number of expired entries.
func (s *summary) expired(now, base int64) int64 {
	if s.forever == 0 && tickTime(s.maxTick) <= now {
		return s.entries
	}
	var n int64
	for class, count := range s.histogram[:histogramSize-1] {
		if tickTime(base+1<<class) <= now {
			n += int64(count)
		}
	}
	return n
}

func (s *summary) encode(b []byte) []byte {
	for _, v := range [...]int64{s.entries, s.forever, s.maxTick, s.first, s.last} {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	for _, n := range s.histogram {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	return b
}

func (s *summary) decode(b []byte) {
	for i, v := range [...]*int64{&s.entries, &s.forever, &s.maxTick, &s.first, &s.last} {
		*v = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	for i := range s.histogram {
		s.histogram[i] = binary.LittleEndian.Uint32(b[40+4*i:])
	}
}
