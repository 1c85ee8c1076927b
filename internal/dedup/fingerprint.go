package dedup

import (
	"hash/crc32"
	"slices"
)

// fingerprint identifies the first Length bytes of some content by the checksums of its
// blocks. Blocks grow with their offset, so that a few dozen of them cover any file. The
// zero fingerprint is that of no bytes.
type fingerprint struct {
	Length int64 `json:"length"`
	// Blocks are the CRC-32C of whole blocks, and Rest is that of the bytes behind them.
	Blocks []uint32 `json:"blocks,omitempty"`
	Rest   uint32   `json:"rest,omitempty"`

	end int64 // of the block that is not whole; 0 if it is not known
}

// leastBlock is the size of the first block of a fingerprint.
const leastBlock = 1 << 20

// blockEnd returns where a block ends that starts at an offset.
func blockEnd(start int64) int64 { return start + max(leastBlock, start/4) }

// blockStart returns where the block with this number starts.
func blockStart(number int) (start int64) {
	for range number {
		start = blockEnd(start)
	}
	return start
}

// add continues the fingerprint with more content.
func (f *fingerprint) add(data []byte) {
	if f.end == 0 {
		f.end = blockEnd(blockStart(len(f.Blocks)))
	}
	for {
		own := data[:min(int64(len(data)), f.end-f.Length)]
		f.Rest = crc32.Update(f.Rest, castagnoli, own)
		f.Length += int64(len(own))
		if data = data[len(own):]; f.Length < f.end {
			return
		}
		f.Blocks, f.Rest = append(f.Blocks, f.Rest), 0
		f.end = blockEnd(f.Length)
	}
}

// clone returns a copy that grows on its own.
func (f *fingerprint) clone() fingerprint {
	c := *f
	c.Blocks = slices.Clone(f.Blocks)
	return c
}

// same reports whether two fingerprints are equal.
func (f *fingerprint) same(other *fingerprint) bool {
	return f.Length == other.Length && f.Rest == other.Rest && slices.Equal(f.Blocks, other.Blocks)
}

// differs returns the start of the first whole block that is not as in other, which is
// a fingerprint of at least as much content.
func (f *fingerprint) differs(other *fingerprint) (start int64, ok bool) {
	for i, sum := range f.Blocks {
		if i < len(other.Blocks) && sum != other.Blocks[i] {
			return blockStart(i), true
		}
	}
	return 0, false
}
