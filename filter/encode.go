package filter

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"math/bits"
	"time"

	"github.com/semel-dev/semel"
)

// The serialised form is a header, a body of little-endian words and the
// CRC-32C of both. Each kind of filter has its kind of unit in the body: Bloom
// a word, Blocked a block, Rotating a group of blocks (after the lengths of its
// generations), Table a line. What is forgotten is written as empty.
//
// Nothing of the header is believed before the length that it implies is the
// length that is there, so that memory is only ever taken in proportion to the
// input; and after the checksum each field is checked as well, because a
// checksum does not stop who can write the file.
type header struct {
	Magic       [8]byte
	Version     uint8
	Kind        kind
	WhenFull    WhenFull
	Generations uint8
	Probes      uint8
	Started     bool
	Reserved    [2]uint8
	Seed        Seed
	Capacity    uint64
	ErrorRate   float64
	Units       uint64
	Length      uint64
	Window      time.Duration
	Origin      int64
	Current     int64
}

type kind uint8

const (
	kindBloom kind = iota + 1
	kindBlocked
	kindRotating
	kindTable
)

func (k kind) String() string {
	switch k {
	case kindBloom:
		return "Bloom"
	case kindBlocked:
		return "Blocked"
	case kindRotating:
		return "Rotating"
	case kindTable:
		return "Table"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

const (
	magic        = "semelflt"
	version      = 1
	headerBytes  = 88
	trailerBytes = 4
	lineBytes    = 64
)

// sizes returns the length of what precedes the units, and of a unit.
func (h *header) sizes() (before, unit uint64) {
	switch h.Kind {
	case kindBloom:
		return headerBytes, 8
	case kindBlocked:
		return headerBytes, blockBits / 8
	case kindRotating:
		return headerBytes + 8*uint64(h.Generations), blockBits / 8 * uint64(h.Generations)
	default:
		return headerBytes, lineBytes
	}
}

// start returns a buffer for all of the serialised form that has the header.
func (h header) start() []byte {
	copy(h.Magic[:], magic)
	h.Version = version
	before, unit := h.sizes()
	b := make([]byte, 0, before+h.Units*unit+trailerBytes)
	b, _ = binary.Append(b, binary.LittleEndian, h) // never fails: all fields are of a fixed size
	return b
}

// seal appends the checksum.
func seal(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, checksum(b)) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// open returns the header and the body of a serialised filter of one kind.
func open(data []byte, want kind) (header, []byte, error) {
	var h header
	corrupt := func(format string, args ...any) (header, []byte, error) {
		return header{}, nil, corruptError(want, format, args...)
	}
	if len(data) < headerBytes+trailerBytes {
		return corrupt("%d bytes are less than a header", len(data))
	}
	if string(data[:len(magic)]) != magic {
		return corrupt("the data does not start with %q", magic)
	}
	if _, err := binary.Decode(data, binary.LittleEndian, &h); err != nil {
		return corrupt("header: %v", err)
	}
	switch {
	case h.Version != version:
		return corrupt("version %d is not %d", h.Version, version)
	case h.Kind != want:
		return corrupt("the data is of a %s", h.Kind)
	}
	before, unit := h.sizes()
	rest := uint64(len(data)) - trailerBytes
	if rest < before || unit == 0 || h.Units != (rest-before)/unit || (rest-before)%unit != 0 {
		return corrupt("the header is of %d units of %d bytes, which is not what %d bytes hold: cut off, or damaged",
			h.Units, unit, len(data))
	}
	if got, want := checksum(data[:rest]), binary.LittleEndian.Uint32(data[rest:]); got != want {
		return corrupt("the checksum is %08x and should be %08x", got, want)
	}
	switch {
	case h.Units == 0:
		return corrupt("it has no units")
	case h.Capacity < 1 || h.Capacity > maxCapacity:
		return corrupt("capacity %d is not between 1 and 2^36", h.Capacity)
	case h.WhenFull > Report:
		return corrupt("policy %d is neither refuse nor report", h.WhenFull)
	case h.Origin < 0 || h.Current < 0 || h.Current >= math.MaxInt64/2:
		return corrupt("slice %d from %d is not a time", h.Current, h.Origin)
	case !h.Started && (h.Origin != 0 || h.Window != 0 && h.Current != 0):
		return corrupt("slice %d from %d is of a time that has not started", h.Current, h.Origin)
	}
	return h, data[headerBytes:rest], nil
}

func corruptError(k kind, format string, args ...any) error {
	return fmt.Errorf("filter: unmarshal %s: %s: %w", k, fmt.Sprintf(format, args...), semel.ErrCorrupt)
}

// checkUnused refuses a header that is not the one that the filter made from
// it would write.
func checkUnused(read, written header) error {
	written.Magic, written.Version = read.Magic, read.Version
	if read != written {
		return corruptError(read.Kind, "a field that the kind does not use is set")
	}
	return nil
}

// checkRate refuses a filter whose size does not give the error rate that it
// states. The factor allows for another processor's rounding.
func checkRate(k kind, is, stated float64) error {
	if !(stated > 0 && stated <= maxError && is <= stated*1.000001) {
		return corruptError(k, "its size gives an error rate of %g, and it states %g", is, stated)
	}
	return nil
}

// checkLength refuses a number of ids that cannot have set that many bits.
func checkLength(k kind, length uint64, ones, probes int) error {
	if length > uint64(ones) || uint64(ones) > length*uint64(probes) {
		return corruptError(k, "%d ids of %d probes did not set %d bits", length, probes, ones)
	}
	return nil
}

// MarshalBinary returns the filter, its seed included, with a checksum. It
// does not change the filter and never fails.
func (b *Bloom) MarshalBinary() ([]byte, error) {
	data := b.header().start()
	for _, word := range b.words {
		data = binary.LittleEndian.AppendUint64(data, word)
	}
	return seal(data), nil
}

func (b *Bloom) header() header {
	return header{
		Kind: kindBloom, WhenFull: b.full, Probes: uint8(b.probes), Seed: b.seed,
		Capacity: uint64(b.capacity), ErrorRate: b.rate, Units: uint64(len(b.words)), Length: uint64(b.length),
	}
}

// UnmarshalBinary replaces the filter by a serialised one and keeps nothing of
// data. Data that MarshalBinary did not make gives an error that wraps
// [semel.ErrCorrupt] and leaves the filter as it was.
func (b *Bloom) UnmarshalBinary(data []byte) error {
	h, body, err := open(data, kindBloom)
	if err != nil {
		return err
	}
	rate := math.Inf(1)
	if h.Probes > 0 {
		rate = bloomRate(float64(h.Capacity), float64(h.Units)*64, int(h.Probes))
	}
	if err := checkRate(kindBloom, rate, h.ErrorRate); err != nil {
		return err
	}
	n := Bloom{
		hasher: newHasher(h.Seed), seed: h.Seed, words: make([]uint64, h.Units), probes: int(h.Probes),
		capacity: int(h.Capacity), rate: h.ErrorRate, full: h.WhenFull, length: int(h.Length),
	}
	for i := range n.words {
		n.words[i] = binary.LittleEndian.Uint64(body[8*i:])
		n.ones += bits.OnesCount64(n.words[i])
	}
	if err := checkLength(kindBloom, h.Length, n.ones, n.probes); err != nil {
		return err
	}
	if err := checkUnused(h, n.header()); err != nil {
		return err
	}
	*b = n
	return nil
}

// MarshalBinary returns the filter, its seed included, with a checksum. It
// does not change the filter and never fails.
func (b *Blocked) MarshalBinary() ([]byte, error) {
	data := b.header().start()
	for i := range b.blocks {
		for _, word := range b.blocks[i] {
			data = binary.LittleEndian.AppendUint64(data, word)
		}
	}
	return seal(data), nil
}

func (b *Blocked) header() header {
	return header{
		Kind: kindBlocked, WhenFull: b.full, Probes: uint8(b.probes), Seed: b.seed,
		Capacity: uint64(b.capacity), ErrorRate: b.rate, Units: uint64(len(b.blocks)), Length: uint64(b.length),
	}
}

// UnmarshalBinary replaces the filter by a serialised one and keeps nothing of
// data. Data that MarshalBinary did not make gives an error that wraps
// [semel.ErrCorrupt] and leaves the filter as it was.
func (b *Blocked) UnmarshalBinary(data []byte) error {
	h, body, err := open(data, kindBlocked)
	if err != nil {
		return err
	}
	if err := checkRate(kindBlocked, statedRate(h.Capacity, h.Units, h.Probes), h.ErrorRate); err != nil {
		return err
	}
	n := Blocked{
		hasher: newHasher(h.Seed), seed: h.Seed, blocks: make([][blockBits / 64]uint64, h.Units), probes: int(h.Probes),
		capacity: int(h.Capacity), rate: h.ErrorRate, full: h.WhenFull, length: int(h.Length),
	}
	for i := range n.blocks {
		for j := range n.blocks[i] {
			word := binary.LittleEndian.Uint64(body[8*(8*i+j):])
			n.blocks[i][j] = word
			n.ones += bits.OnesCount64(word)
		}
	}
	if err := checkLength(kindBlocked, h.Length, n.ones, n.probes); err != nil {
		return err
	}
	if err := checkUnused(h, n.header()); err != nil {
		return err
	}
	*b = n
	return nil
}

// statedRate is the error rate of n ids in blocks, or infinite where the
// numbers are not of a filter.
func statedRate(n, blocks uint64, probes uint8) float64 {
	load := float64(n) / float64(blocks)
	if probes < 1 || probes > maxProbes || load > maxLoad {
		return math.Inf(1)
	}
	return blockedRate(blockRates(int(probes), mostIn(load)), load)
}
