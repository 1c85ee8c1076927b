package filter

import (
	"math"
	"math/bits"

	"github.com/semel-dev/semel"
)

// Bloom is the filter of Bloom, "Space/Time Trade-offs in Hash Coding with
// Allowable Errors", 1970: the fewest bits, at the price of one cache miss for
// each probe. The zero Bloom is good for UnmarshalBinary only.
type Bloom struct {
	hasher   hasher
	seed     Seed
	words    []uint64
	probes   int
	capacity int
	rate     float64
	full     WhenFull
	length   int
	ones     int
}

// NewBloom returns an empty filter. A nil opts asks for the defaults. The error
// wraps [semel.ErrInvalidRequest] and names each field that is out of bounds.
func NewBloom(opts *Options) (*Bloom, error) {
	o, err := opts.withDefaults(minError)
	if err != nil {
		return nil, err
	}
	words, k := bloomSize(o.Capacity, o.ErrorRate)
	return &Bloom{
		hasher: newHasher(o.Seed), seed: o.Seed,
		words: make([]uint64, words), probes: k,
		capacity: o.Capacity, rate: o.ErrorRate, full: o.WhenFull,
	}, nil
}

// Add adds an id and reports whether it may have been added before: false is
// certain. At capacity it returns [ErrFull], or goes on, as [WhenFull] says.
func (b *Bloom) Add(id []byte) (maybeSeen bool, err error) {
	x, y := b.hasher.id(id)
	return b.add(x, y)
}

// AddDigest is Add for a digest. One filter takes either ids or digests: it
// does not know the digest of an id.
func (b *Bloom) AddDigest(d semel.Digest) (maybeSeen bool, err error) {
	x, y := b.hasher.digest(d)
	return b.add(x, y)
}

// Has reports whether an id may have been added: false is certain.
func (b *Bloom) Has(id []byte) bool {
	x, y := b.hasher.id(id)
	return b.has(x, y)
}

// HasDigest is Has for a digest.
func (b *Bloom) HasDigest(d semel.Digest) bool {
	x, y := b.hasher.digest(d)
	return b.has(x, y)
}

// Len returns how many ids were added that were not seen before. False
// positives are not among them.
func (b *Bloom) Len() int { return b.length }

// Capacity returns how many distinct ids the filter was made for.
func (b *Bloom) Capacity() int { return b.capacity }

// Over reports whether more ids were added than the filter was made for.
func (b *Bloom) Over() bool { return b.length > b.capacity }

// Bytes returns the size of the filter's bits in memory.
func (b *Bloom) Bytes() int { return len(b.words) * 8 }

// Fill returns the share of bits that are set.
func (b *Bloom) Fill() float64 { return float64(b.ones) / float64(len(b.words)*64) }

// ErrorRate returns the probability with which an id that was not added is now
// called seen. It follows from the bits that are set, not from Len.
func (b *Bloom) ErrorRate() float64 { return math.Pow(b.Fill(), float64(b.probes)) }

// The probes are x, x+y, x+2y, … (Kirsch and Mitzenmacher, "Less Hashing, Same
// Performance", 2006), where y grows by golden at each step: "enhanced double
// hashing" of Dillinger and Manolios, "Bloom Filters in Probabilistic
// Verification", 2004. It costs one addition and keeps two ids with one y, or
// with opposite ones, from sharing most of their probes, which shows at error
// rates near 1e-6. A multiplication maps a probe to a bit without division.
const golden = 0x9E3779B97F4A7C15

func (b *Bloom) has(x, y uint64) bool {
	m := uint64(len(b.words)) * 64
	for range b.probes {
		bit, _ := bits.Mul64(x, m)
		if b.words[bit>>6]>>(bit&63)&1 == 0 {
			return false
		}
		x += y
		y += golden
	}
	return true
}

func (b *Bloom) add(x, y uint64) (bool, error) {
	if b.full == Refuse && b.length >= b.capacity {
		if b.has(x, y) {
			return true, nil
		}
		return false, ErrFull
	}
	m := uint64(len(b.words)) * 64
	fresh := 0
	for range b.probes {
		bit, _ := bits.Mul64(x, m)
		word := &b.words[bit>>6]
		fresh += int(^*word >> (bit & 63) & 1)
		*word |= 1 << (bit & 63)
		x += y
		y += golden
	}
	if fresh == 0 {
		return true, nil
	}
	b.ones += fresh
	b.length++
	return false, nil
}
