package kafkaio

import (
	"encoding/binary"
	"sort"

	"github.com/semel-dev/semel"
)

// overlay holds what the open transaction adds to a partition's state. It is
// dropped when the transaction aborts. The zero overlay is empty.
//
// Its entries are in records of the changelog as they will be written: from here
// they go to the brokers, to the log and into the table, and nowhere is there a
// second copy of them.
type overlay struct {
	records []overlayRecord
	count   int // entries
	// slots holds numbers of entries plus one, in as many bits as numbers need,
	// and above them bits of the digest, which tell nearly all others apart
	// without a look at their entries; 0 is an empty slot. Its length is a power
	// of two, and at most three quarters of them are used.
	slots []uint32
}

type overlayRecord struct {
	changelogDraft
	first int // the number of its first entry
	// origins is what headerOrigins says of the entries, if they are of copies.
	origins []byte
}

const firstOverlaySlots = 1 << 10

// find returns the time of the last entry of a digest.
func (o *overlay) find(d *semel.Digest) (time int64, ok bool) {
	if o.count == 0 {
		return 0, false
	}
	if i := o.slot(d); o.slots[i] != 0 {
		r, e := o.at(o.slots[i]&o.mask() - 1)
		return r.time(e), true
	}
	return 0, false
}

// slot returns the slot of a digest, or the empty one where it belongs.
func (o *overlay) slot(d *semel.Digest) uint32 {
	mask, tag := o.mask(), tagOf(d)
	for i := home(d) & mask; ; i = (i + 1) & mask {
		s := o.slots[i]
		if s == 0 {
			return i
		}
		if (s^tag)&^mask != 0 {
			continue
		}
		if _, e := o.at(s&mask - 1); *digestOf(e) == *d {
			return i
		}
	}
}

func (o *overlay) mask() uint32 { return uint32(len(o.slots) - 1) }

// at returns the entry of a number, and the record that it is in.
func (o *overlay) at(number uint32) (*overlayRecord, []byte) {
	n := int(number)
	after := sort.Search(len(o.records), func(i int) bool { return o.records[i].first > n })
	r := &o.records[after-1]
	return r, r.entry(n - r.first)
}

// add appends an entry, which takes the place of one with its digest. A record
// gets at most so many.
func (o *overlay) add(e *entry, most int) {
	if 4*(o.count+1) > 3*len(o.slots) {
		o.grow()
	}
	if n := len(o.records); n == 0 || o.records[n-1].len() >= most || !o.records[n-1].add(e) {
		o.begin().add(e)
	}
	o.place(&e.digest, o.count)
	o.count++
}

// begin begins a record, of which is thought that it becomes as large as the one
// before.
func (o *overlay) begin() *overlayRecord {
	n, room := len(o.records), 0
	if n > 0 {
		room = len(o.records[n-1].value)
	}
	if n < cap(o.records) {
		o.records = o.records[:n+1] // with the memory it had
	} else {
		o.records = append(o.records, overlayRecord{})
	}
	r := &o.records[n]
	r.first, r.origins = o.count, r.origins[:0]
	r.begin(room)
	return r
}

// from says which record of an input the last entry was a copy of. Each entry has one,
// or none has.
func (o *overlay) from(input int, partition int32, offset int64) {
	r := &o.records[len(o.records)-1]
	r.origins = appendOrigin(r.origins, input, partition, offset)
}

// originsOf returns what headerOrigins says of a record's entries, or nothing.
func (o *overlay) originsOf(record int) []byte {
	if record >= len(o.records) {
		return nil
	}
	return o.records[record].origins
}

// place makes an entry the last one of its digest.
func (o *overlay) place(d *semel.Digest, number int) {
	o.slots[o.slot(d)] = tagOf(d)&^o.mask() | uint32(number+1)
}

func (o *overlay) grow() {
	o.slots = make([]uint32, max(firstOverlaySlots, 2*len(o.slots)))
	for i := range o.records {
		r := &o.records[i]
		for j := range r.len() {
			o.place(digestOf(r.entry(j)), r.first+j)
		}
	}
}

// reset empties the overlay and keeps its memory, unless it is far more than
// was used.
func (o *overlay) reset() {
	if len(o.slots) > firstOverlaySlots && o.count < len(o.slots)/32 {
		*o = overlay{}
		return
	}
	o.records, o.count = o.records[:0], 0
	clear(o.slots)
}

// home and tagOf spread digests, which are uniform already.
func home(d *semel.Digest) uint32 { return binary.LittleEndian.Uint32(d[:4]) }

func tagOf(d *semel.Digest) uint32 { return binary.LittleEndian.Uint32(d[4:8]) }
