package filter

import (
	"math"
	"math/bits"

	"github.com/semel-dev/semel"
)

// Bloom is a classic Bloom filter (Bloom, "Space/Time Trade-offs in Hash Coding
// with Allowable Errors", 1970). It takes the fewest bits, and each probe costs
// one cache miss.
type Bloom struct {
	fixed
	words []uint64
}

// NewBloom returns an empty filter. Nil options ask for the defaults. The error
// wraps [semel.ErrInvalidRequest] and names each field that is out of bounds.
func NewBloom(opts *Options) (*Bloom, error) {
	o, err := opts.withDefaults(minError)
	if err != nil {
		return nil, err
	}
	words, k := bloomSize(o.Capacity, o.ErrorRate)
	return &Bloom{fixed: newFixed(o, k, words*64), words: make([]uint64, words)}, nil
}

// Add adds an id and reports whether the id may have been added before. False
// is certain. At capacity Add returns [ErrFull] or continues, as [WhenFull] says.
func (b *Bloom) Add(id []byte) (maybeSeen bool, err error) {
	x, y := b.hasher.id(id)
	return b.add(x, y)
}

// AddDigest is Add for a digest. Use either ids or digests with one filter: the
// filter does not know which digest belongs to which id.
func (b *Bloom) AddDigest(d semel.Digest) (maybeSeen bool, err error) {
	x, y := b.hasher.digest(d)
	return b.add(x, y)
}

// Has reports whether an id may have been added. False is certain.
func (b *Bloom) Has(id []byte) bool {
	x, y := b.hasher.id(id)
	return b.has(x, y)
}

// HasDigest is Has for a digest.
func (b *Bloom) HasDigest(d semel.Digest) bool {
	x, y := b.hasher.digest(d)
	return b.has(x, y)
}

// ErrorRate returns the probability that the filter now reports an absent id as
// seen. It is computed from the bits that are set, not from Len.
func (b *Bloom) ErrorRate() float64 { return math.Pow(b.Fill(), float64(b.probes)) }

// The probes are x, x+y, x+2y, … (Kirsch and Mitzenmacher, "Less Hashing, Same
// Performance", 2006), and y grows by golden at each step. This is the
// "enhanced double hashing" of Dillinger and Manolios, "Bloom Filters in
// Probabilistic Verification", 2004. It costs one addition. Without it, two ids
// with equal or opposite y share most of their probes, which shows at error
// rates near 1e-6. A multiplication maps a probe to a bit without a division.
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
	if b.refuses() {
		return refused(b.has(x, y))
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
	return b.count(fresh), nil
}
