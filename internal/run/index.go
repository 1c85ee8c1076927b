package run

import (
	"encoding/binary"
	"hash/crc32"
	"sort"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// index is what a run keeps in memory: the first number of each block, and the filter. The
// file with it is
//
//	0   magic   8 version   12 sum of the run   16 store id
//	32  number of blocks   36 binary logarithm of the number of parts
//	40  for each block: the order of its first digest (8)
//	    for each block: its unit (4)
//	    for each part: seed (8), segment length (4), number of segments (4), bytes (4)
//	    the bytes of all parts, and the checksum of all before
type index struct {
	first  []uint64
	at     []uint32
	filter filter
}

const (
	indexMagic   = "SEMELIDX"
	indexVersion = 1
	indexHead    = 40
	partHead     = 20
)

// block returns the number of the block for an order. The first block has smaller orders,
// too.
func (x *index) block(order uint64) int {
	return max(sort.Search(len(x.first), func(i int) bool { return x.first[i] > order })-1, 0)
}

func (x *index) bytes() int64 {
	const part = 48
	return 12*int64(len(x.first)) + int64(len(x.filter.bytes)) + part*int64(len(x.filter.parts))
}

// fileBytes returns the length of the file.
func (x *index) fileBytes() int64 {
	return indexHead + 12*int64(len(x.first)) + partHead*int64(len(x.filter.parts)) + int64(len(x.filter.bytes)) + 4
}

// head returns the content of the file up to the bytes of the filter.
func (x *index) head(store [16]byte, sum uint32) []byte {
	b := make([]byte, indexHead, x.fileBytes()-int64(len(x.filter.bytes)))
	copy(b, indexMagic)
	binary.LittleEndian.PutUint32(b[8:], indexVersion)
	binary.LittleEndian.PutUint32(b[12:], sum)
	copy(b[16:], store[:])
	binary.LittleEndian.PutUint32(b[32:], uint32(len(x.first)))
	binary.LittleEndian.PutUint32(b[36:], uint32(64-x.filter.shift))
	for _, n := range x.first {
		b = binary.LittleEndian.AppendUint64(b, n)
	}
	for _, n := range x.at {
		b = binary.LittleEndian.AppendUint32(b, n)
	}
	for i := range x.filter.parts {
		p := &x.filter.parts[i]
		b = binary.LittleEndian.AppendUint64(b, p.seed)
		b = binary.LittleEndian.AppendUint32(b, p.length)
		b = binary.LittleEndian.AppendUint32(b, p.segments)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(p.slots)))
	}
	return b
}

// decode reads the content of the file, which the index keeps.
func (x *index) decode(b []byte, store [16]byte, sum uint32) error {
	end := len(b) - 4
	if end < indexHead || string(b[:8]) != indexMagic || binary.LittleEndian.Uint32(b[8:]) != indexVersion ||
		binary.LittleEndian.Uint32(b[12:]) != sum || [16]byte(b[16:32]) != store ||
		crc32.Checksum(b[:end], castagnoli) != binary.LittleEndian.Uint32(b[end:]) {
		return errIndex
	}
	blocks, bits := int(binary.LittleEndian.Uint32(b[32:])), uint(binary.LittleEndian.Uint32(b[36:]))
	if bits > mostPartBits || end-indexHead < 12*blocks+partHead<<bits {
		return errIndex
	}
	x.first, x.at = make([]uint64, blocks), make([]uint32, blocks)
	rest := b[indexHead:end]
	for i := range x.first {
		x.first[i] = binary.LittleEndian.Uint64(rest[8*i:])
	}
	rest = rest[8*blocks:]
	for i := range x.at {
		x.at[i] = binary.LittleEndian.Uint32(rest[4*i:])
	}
	rest = rest[4*blocks:]
	lengths := make([]int, 1<<bits)
	x.filter = filter{shift: 64 - bits, parts: make([]part, 1<<bits)}
	for i := range lengths {
		x.filter.parts[i] = part{
			seed: binary.LittleEndian.Uint64(rest), length: binary.LittleEndian.Uint32(rest[8:]), segments: binary.LittleEndian.Uint32(rest[12:]),
		}
		lengths[i] = int(binary.LittleEndian.Uint32(rest[16:]))
		rest = rest[partHead:]
	}
	x.filter.bytes = rest
	return x.filter.divide(lengths)
}
