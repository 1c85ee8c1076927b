package key

import (
	"encoding/binary"
	"math/bits"
)

// mixer holds the constants of one print function, which follow from its seed.
// The hash is of the folded-multiply family (wyhash, mum-hash). It is fast and
// well mixed, but someone can build two equal prints.
type mixer struct {
	word, text, number, name, value, object, array uint64
	literal                                        [True + 1]uint64
}

func newMixer(seed uint64) mixer {
	next := func() uint64 { // splitmix64
		seed += 0x9e3779b97f4a7c15
		z := seed
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		return z ^ z>>31
	}
	var m mixer
	for _, p := range []*uint64{
		&m.word, &m.text, &m.number, &m.name, &m.value, &m.object, &m.array,
		&m.literal[Null], &m.literal[False], &m.literal[True],
	} {
		*p = next() | 1
	}
	return m
}

// mum folds the 128-bit product of two words.
func mum(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// bytes prints doc[i:end], starting from h. After the full words come one word
// with the remaining bytes, which may be empty, and the length.
func (m *mixer) bytes(h uint64, doc []byte, i, end int) uint64 {
	n := end - i
	for ; i+wordBytes <= end; i += wordBytes {
		h = mum(h^binary.LittleEndian.Uint64(doc[i:i+wordBytes]), m.word)
	}
	if i+wordBytes <= len(doc) {
		return m.last(h, binary.LittleEndian.Uint64(doc[i:i+wordBytes])&lowBytes(end-i), n)
	}
	return m.last(h, lastWord(doc, i)&lowBytes(end-i), n)
}

func (m *mixer) last(h, rest uint64, n int) uint64 {
	return mum(h^rest, m.word^uint64(n))
}

// member prints a member of an object. The sum of members does not depend on
// their order.
func (m *mixer) member(name, value uint64) uint64 {
	return mum(name^m.name, value^m.value)
}
