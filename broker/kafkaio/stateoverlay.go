package kafkaio

import (
	"encoding/binary"

	"github.com/semel-dev/semel"
)

// overlay holds what the open transaction adds to a partition's state. It is
// dropped when the transaction aborts. The zero overlay is empty.
type overlay struct {
	entries []entry
	// slots holds indices of entries plus one; 0 is an empty slot. Its length
	// is a power of two, at least twice that of entries.
	slots []uint32
}

const firstOverlaySlots = 1 << 10

// find returns the last entry of a digest, or nil.
func (o *overlay) find(d *semel.Digest) *entry {
	if len(o.entries) == 0 {
		return nil
	}
	mask := uint64(len(o.slots) - 1)
	for i := home(d) & mask; ; i = (i + 1) & mask {
		s := o.slots[i]
		if s == 0 {
			return nil
		}
		if e := &o.entries[s-1]; e.digest == *d {
			return e
		}
	}
}

// add appends an entry, which takes the place of one with its digest.
func (o *overlay) add(e entry) {
	if 2*(len(o.entries)+1) > len(o.slots) {
		o.grow()
	}
	o.entries = append(o.entries, e)
	o.place(len(o.entries) - 1)
}

func (o *overlay) place(index int) {
	d := &o.entries[index].digest
	mask := uint64(len(o.slots) - 1)
	i := home(d) & mask
	for o.slots[i] != 0 && o.entries[o.slots[i]-1].digest != *d {
		i = (i + 1) & mask
	}
	o.slots[i] = uint32(index + 1)
}

func (o *overlay) grow() {
	o.slots = make([]uint32, max(firstOverlaySlots, 2*len(o.slots)))
	for i := range o.entries {
		o.place(i)
	}
}

// reset empties the overlay and keeps its memory, unless it is far more than
// was used.
func (o *overlay) reset() {
	if len(o.slots) > firstOverlaySlots && len(o.entries) < len(o.slots)/32 {
		*o = overlay{}
		return
	}
	o.entries = o.entries[:0]
	clear(o.slots)
}

// home spreads digests, which are uniform already.
func home(d *semel.Digest) uint64 { return binary.LittleEndian.Uint64(d[:8]) }
