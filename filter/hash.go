package filter

import (
	"encoding/binary"
	"math/bits"

	"github.com/dchest/siphash"

	"github.com/semel-dev/semel"
)

// hasher turns ids into two words of 64 uniform bits each.
type hasher struct {
	k0, k1         uint64
	a0, a1, b0, b1 uint64
}

func newHasher(seed Seed) hasher {
	h := hasher{k0: binary.LittleEndian.Uint64(seed[:8]), k1: binary.LittleEndian.Uint64(seed[8:])}
	h.a0, h.a1 = siphash.Hash128(h.k0, h.k1, []byte("semel filter digest a"))
	h.b0, h.b1 = siphash.Hash128(h.k0, h.k1, []byte("semel filter digest b"))
	return h
}

func (h *hasher) id(id []byte) (x, y uint64) { return siphash.Hash128(h.k0, h.k1, id) }

// digest mixes all bits of a digest into both words. A digest is already
// uniform, but its owner may have used some of its bits to choose this filter
// among several. Without mixing, those bits would be constant here and leave
// parts of the filter unused.
func (h *hasher) digest(d semel.Digest) (x, y uint64) {
	u, v := binary.LittleEndian.Uint64(d[:8]), binary.LittleEndian.Uint64(d[8:])
	return fold(u^h.a0, v^h.a1), fold(u^h.b0, v^h.b1)
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}
