package state

import "encoding/binary"

// Cursor reads what is at the start of bytes. The zero values are read from bytes that end
// early or are wrong.
type Cursor struct {
	Rest  []byte // what is not read yet
	Wrong bool
}

// Uvarint reads a number as binary.AppendUvarint writes it.
func (c *Cursor) Uvarint() uint64 {
	n, size := binary.Uvarint(c.Rest)
	if size <= 0 {
		c.Rest, c.Wrong = nil, true
		return 0
	}
	c.Rest = c.Rest[size:]
	return n
}

// Varint reads a number as binary.AppendVarint writes it.
func (c *Cursor) Varint() int64 {
	n := c.Uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

// Next reads a number of bytes. They share the memory, and have the capacity up to its end.
func (c *Cursor) Next(n uint64) []byte {
	if n > uint64(len(c.Rest)) {
		c.Wrong, n = true, 0
	}
	part := c.Rest[:n]
	c.Rest = c.Rest[n:]
	return part
}

// Bytes reads bytes behind their length.
func (c *Cursor) Bytes() []byte { return c.Next(c.Uvarint()) }
