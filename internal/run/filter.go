package run

import (
	"errors"
	"math"
	"math/bits"
	"slices"
)

var errIndex = errors.New("not the index of this run")

// filter is a set of 64-bit numbers that may report a number which it does not have, once
// in 256. It takes 9 to 10 bits a number. It is divided by the upper bits of the numbers
// into parts that are built one after the other, so that building takes little memory, and
// a lookup stays within a part.
type filter struct {
	shift uint // of a number, to get its part
	parts []part
	bytes []byte // of all parts
}

// partKeys is about how many numbers a part has. Fewer take more bits each; more take more
// memory while they are built, about 30 bytes each.
const partKeys = 1 << 17

// mostPartBits bounds the number of parts.
const mostPartBits = 24

func (f *filter) mayHave(n uint64) bool {
	p := &f.parts[n>>f.shift]
	return len(p.slots) > 0 && p.mayHave(n)
}

// divide gives each part its bytes.
func (f *filter) divide(lengths []int) error {
	rest := f.bytes
	for i, n := range lengths {
		p := &f.parts[i]
		if n > len(rest) || n > 0 && n != p.size() {
			return errIndex
		}
		p.slots, rest = rest[:n:n], rest[n:]
	}
	if len(rest) > 0 {
		return errIndex
	}
	return nil
}

// part is a binary fuse filter (Graf and Lemire, 2022): a number belongs to three slots, one
// in each of three consecutive segments, and these together give its fingerprint. Semel
// has its own, because the hash of a library is not a format.
type part struct {
	seed     uint64
	length   uint32 // of a segment, a power of two
	segments uint32 // in which the first slot of a number may be; two more follow
	slots    []byte
}

// newPart returns a part for n numbers, without its slots. The constants are those of the
// authors: with less space, or other segments, building mostly fails.
func newPart(n int) part {
	size := float64(max(n, 2))
	p := part{length: 1 << max(0, int(math.Log(size)/math.Log(3.33)+2.25))}
	factor := max(1.125, 0.875+0.25*math.Log(1e6)/math.Log(size))
	all := uint32(math.Ceil(size * factor / float64(p.length)))
	p.segments = max(all, 3) - 2
	return p
}

// size returns the number of slots.
func (p *part) size() int { return int(p.segments+2) * int(p.length) }

// hash mixes a number with the seed, as MurmurHash3 ends.
func (p *part) hash(n uint64) uint64 {
	h := n + p.seed
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	h *= 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// places returns the three slots of a hash.
func (p *part) places(h uint64) (a, b, c uint32) {
	high, _ := bits.Mul64(h, uint64(p.segments)*uint64(p.length))
	mask := p.length - 1
	a = uint32(high)
	b = (a + p.length) ^ uint32(h>>18)&mask
	c = (a + 2*p.length) ^ uint32(h)&mask
	return a, b, c
}

func fingerprint(h uint64) byte { return byte(h ^ h>>32) }

func (p *part) mayHave(n uint64) bool {
	h := p.hash(n)
	a, b, c := p.places(h)
	return p.slots[a]^p.slots[b]^p.slots[c] == fingerprint(h)
}

// filterBuilder builds a filter from ascending numbers.
type filterBuilder struct {
	filter
	lengths []int    // of the parts
	numbers []uint64 // of the current part

	// Scratch space of a part. hashes has for each slot the combined hashes of its numbers
	// that are not yet placed. degrees has four times their count and, in the lower bits,
	// their combined roles: which of its three slots it is for a number.
	hashes  []uint64
	degrees []uint8
	alone   []uint32 // slots with one number
	order   []uint64 // hashes in the order in which they were placed
	roles   []uint8
}

// newFilterBuilder begins a filter of about n numbers.
func newFilterBuilder(n int64) *filterBuilder {
	width := uint(0)
	for n > partKeys<<width && width < mostPartBits {
		width++
	}
	b := &filterBuilder{filter: filter{shift: 64 - width}}
	b.parts = make([]part, 0, 1<<width)
	b.bytes = make([]byte, 0, n+n/6)
	return b
}

// add adds a number, which is not smaller than the last one.
func (b *filterBuilder) add(n uint64) error {
	for len(b.parts) < int(n>>b.shift) {
		if err := b.closePart(); err != nil {
			return err
		}
	}
	if last := len(b.numbers) - 1; last < 0 || b.numbers[last] != n {
		b.numbers = append(b.numbers, n)
	}
	return nil
}

// finish returns the filter.
func (b *filterBuilder) finish() (filter, error) {
	for len(b.parts) < 1<<(64-b.shift) {
		if err := b.closePart(); err != nil {
			return filter{}, err
		}
	}
	f := b.filter
	if cap(f.bytes)-len(f.bytes) > len(f.bytes)/16 { // the guess was wrong
		f.bytes = append(make([]byte, 0, len(f.bytes)), f.bytes...)
	}
	return f, f.divide(b.lengths)
}

// closePart builds the part of the collected numbers. It tries other seeds until one works,
// which the first does more often than not.
func (b *filterBuilder) closePart() error {
	const mostTries = 100
	var p part
	if len(b.numbers) > 0 {
		p = newPart(len(b.numbers))
		for try := uint64(1); !b.place(&p); try++ {
			if try == mostTries {
				return errors.New("a filter cannot be built")
			}
			p.seed = try * 0x9e3779b97f4a7c15
		}
	}
	at := len(b.bytes)
	if len(b.numbers) > 0 {
		b.bytes = slices.Grow(b.bytes, p.size())[:at+p.size()]
		clear(b.bytes[at:])
		b.assign(&p, b.bytes[at:])
	}
	b.lengths = append(b.lengths, len(b.bytes)-at)
	b.parts = append(b.parts, p)
	b.numbers = b.numbers[:0]
	return nil
}

// place finds an order in which each number has a slot that later numbers do not use. It
// returns false if there is no such order.
func (b *filterBuilder) place(p *part) bool {
	size := p.size()
	b.hashes = append(b.hashes[:0], make([]uint64, size)...)
	b.degrees = append(b.degrees[:0], make([]uint8, size)...)
	b.alone, b.order, b.roles = b.alone[:0], b.order[:0], b.roles[:0]
	for _, n := range b.numbers {
		h := p.hash(n)
		x, y, z := p.places(h)
		b.hashes[x] ^= h
		b.hashes[y] ^= h
		b.hashes[z] ^= h
		if b.degrees[x] += 4; b.degrees[x] < 4 { // too many for the counter
			return false
		}
		if b.degrees[y] = (b.degrees[y] + 4) ^ 1; b.degrees[y] < 4 {
			return false
		}
		if b.degrees[z] = (b.degrees[z] + 4) ^ 2; b.degrees[z] < 4 {
			return false
		}
	}
	for slot, degree := range b.degrees {
		if degree>>2 == 1 {
			b.alone = append(b.alone, uint32(slot))
		}
	}
	for len(b.alone) > 0 {
		last := len(b.alone) - 1
		slot := b.alone[last]
		b.alone = b.alone[:last]
		if b.degrees[slot]>>2 != 1 {
			continue // its number got another slot
		}
		h, role := b.hashes[slot], b.degrees[slot]&3
		b.order, b.roles = append(b.order, h), append(b.roles, role)
		x, y, z := p.places(h)
		for other, place := range [3]uint32{x, y, z} {
			b.hashes[place] ^= h
			b.degrees[place] = (b.degrees[place] - 4) ^ uint8(other)
			if b.degrees[place]>>2 == 1 {
				b.alone = append(b.alone, place)
			}
		}
	}
	return len(b.order) == len(b.numbers)
}

// assign sets the slots, in the reverse order: the slot of a number is the last of its three
// to be set.
func (b *filterBuilder) assign(p *part, slots []byte) {
	for i := len(b.order) - 1; i >= 0; i-- {
		h := b.order[i]
		x, y, z := p.places(h)
		at := [3]uint32{x, y, z}[b.roles[i]]
		slots[at] = 0
		slots[at] = fingerprint(h) ^ slots[x] ^ slots[y] ^ slots[z]
	}
}
