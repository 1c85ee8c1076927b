package key

import (
	"encoding/binary"
	"math/bits"
)

// mixer holds the constants of one print function, drawn from its seed. The
// hash is of the folded-multiply family (wyhash, mum-hash): fast, well mixed,
// and no obstacle to someone who wants two equal prints.
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

// bytes prints data, beginning from h. Full words are followed by one word of
// the rest, which may be empty, and the length.
func (m *mixer) bytes(h uint64, data []byte) uint64 {
	n := len(data)
	for ; len(data) >= wordBytes; data = data[wordBytes:] {
		h = mum(h^binary.LittleEndian.Uint64(data), m.word)
	}
	var rest uint64
	for i := len(data) - 1; i >= 0; i-- {
		rest = rest<<8 | uint64(data[i])
	}
	return m.last(h, rest, n)
}

func (m *mixer) last(h, rest uint64, n int) uint64 {
	return mum(h^rest, m.word^uint64(n))
}

// member prints a member of an object. Their sum does not depend on order.
func (m *mixer) member(name, value uint64) uint64 {
	return mum(name^m.name, value^m.value)
}
