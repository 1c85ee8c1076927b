package filter

import (
	"math"
	"math/bits"
)

// Blocked is a Bloom filter that keeps all bits of an id in a block of 512 bits, so that an
// operation costs a single cache miss. See Putze, Sanders and Singler, "Cache-, Hash- and
// Space-Efficient Bloom Filters", 2007. A filter without blocks takes fewer bits and is several
// times slower when it is larger than the processor's cache.
type Blocked struct {
	hasher   hasher
	probes   int
	capacity int
	full     WhenFull
	length   int // ids that were added and not seen before
	ones     int // bits that are set
	blocks   [][blockBits / 64]uint64
}

// NewBlocked returns an empty filter. Nil options ask for the defaults. The
// error wraps [semel.ErrInvalidRequest] and names each field that is out of
// bounds.
func NewBlocked(opts *Options) (*Blocked, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	blocks, k := blockedSize(o.Capacity, o.ErrorRate)
	return &Blocked{
		hasher: newHasher(o.seed), probes: k, capacity: o.Capacity, full: o.WhenFull,
		blocks: make([][blockBits / 64]uint64, blocks),
	}, nil
}

// Add adds an id and reports whether the id may have been added before. False
// is certain. At capacity Add returns [ErrFull] or continues, as [WhenFull] says.
func (b *Blocked) Add(id []byte) (maybeSeen bool, err error) {
	x, y := b.hasher.id(id)
	if b.full == Refuse && b.length >= b.capacity {
		if b.has(x, y) {
			return true, nil
		}
		return false, ErrFull
	}
	fresh := b.set(x, y)
	if fresh == 0 {
		return true, nil
	}
	b.ones += fresh
	b.length++
	return false, nil
}

// Has reports whether an id may have been added. False is certain.
func (b *Blocked) Has(id []byte) bool {
	x, y := b.hasher.id(id)
	return b.has(x, y)
}

// Len returns the number of added ids that were not seen before. It does not
// count false positives.
func (b *Blocked) Len() int { return b.length }

// Over reports whether the filter holds more ids than it was made for.
func (b *Blocked) Over() bool { return b.length > b.capacity }

// Bytes returns the size of the filter's bits in memory.
func (b *Blocked) Bytes() int { return len(b.blocks) * blockBits / 8 }

// Fill returns the share of bits that are set.
func (b *Blocked) Fill() float64 { return float64(b.ones) / float64(len(b.blocks)*blockBits) }

// ErrorRate returns the probability that the filter now reports an absent id as
// seen. It is computed from the bits that are set, not from Len. It reads at
// most 65,536 evenly spread blocks, which takes well under a millisecond from
// cache.
func (b *Blocked) ErrorRate() float64 {
	step := (len(b.blocks) + sampleBlocks - 1) / sampleBlocks
	var sum float64
	read := 0
	for i := 0; i < len(b.blocks); i += step {
		set := 0
		for _, word := range b.blocks[i] {
			set += bits.OnesCount64(word)
		}
		sum += math.Pow(float64(set)/blockBits, float64(b.probes))
		read++
	}
	return sum / float64(read)
}

// sampleBlocks bounds the work of an estimate. With this number the estimate is
// off by about one percent.
const sampleBlocks = 1 << 16

// The block of an id is the high word of x times the number of blocks. The
// probes of an id are groups of 9 bits. Seven groups come from y. Seven more
// come from the low word of the product, which is the position of x inside the
// block's share of the range and so independent of the block. The probes are
// independent of each other. Double hashing would give only 2^17 patterns for
// all ids in 512 bits.
func (b *Blocked) has(x, y uint64) bool {
	index, rest := bits.Mul64(x, uint64(len(b.blocks)))
	block := &b.blocks[index]
	// The loop looks at all probes, because they cost less than a mispredicted
	// branch.
	seen := uint64(1)
	for i := range b.probes {
		if i == maxProbes/2 {
			y = rest
		}
		y = bits.RotateLeft64(y, 9)
		seen &= block[y>>6&7] >> (y & 63)
	}
	return seen == 1
}

// set sets the bits of an id and returns how many of them were not set before.
func (b *Blocked) set(x, y uint64) (fresh int) {
	index, rest := bits.Mul64(x, uint64(len(b.blocks)))
	block := &b.blocks[index]
	for i := range b.probes {
		if i == maxProbes/2 {
			y = rest
		}
		y = bits.RotateLeft64(y, 9)
		word := &block[y>>6&7]
		fresh += int(^*word >> (y & 63) & 1)
		*word |= 1 << (y & 63)
	}
	return fresh
}
