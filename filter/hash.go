package filter

import (
	"encoding/binary"

	"github.com/dchest/siphash"
)

// hasher turns ids into two words of 64 uniform bits each.
type hasher struct{ k0, k1 uint64 }

func newHasher(seed seed) hasher {
	return hasher{binary.LittleEndian.Uint64(seed[:8]), binary.LittleEndian.Uint64(seed[8:])}
}

func (h *hasher) id(id []byte) (x, y uint64) { return siphash.Hash128(h.k0, h.k1, id) }
