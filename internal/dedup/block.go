package dedup

import "github.com/semel-dev/semel"

// block is a run of whole lines of one input. It goes from the reader through a
// worker to the committer. Blocks are reused.
type block struct {
	// The reader fills these.

	// input is the index of the input, and offset is the position of data in
	// it.
	input  int
	offset int64
	data   []byte
	// raw is the number of bytes read from the input's file, compressed or not.
	raw int64
	// added is 1 if the last line had no line end and the reader added one.
	added int
	// err is the reason why the reader stopped after this block.
	err error

	// A worker fills these.

	// ends has, for each line, the position after its line end, where the next
	// line starts.
	ends []int32
	// digests and prints belong, in order, to the lines that are not in odd.
	digests []semel.Digest
	prints  []uint64
	// odd are the lines that no key set decides, in order.
	odd []oddLine
	// hashed counts the lines without a key whose content became the key.
	hashed int64

	// parsed receives one value when the worker is done.
	parsed chan struct{}
	// decisions belong to digests.
	decisions []semel.Decision
}

// oddLine is a line without a key.
type oddLine struct {
	line int32 // index in ends
	// err says why there is no key; nil for a blank line.
	err error
}

func newBlock(size int) *block {
	return &block{data: make([]byte, 0, size), parsed: make(chan struct{}, 1)}
}

func (b *block) reset() {
	b.data, b.raw, b.added, b.err, b.hashed = b.data[:0], 0, 0, nil, 0
	b.ends, b.digests, b.prints, b.odd = b.ends[:0], b.digests[:0], b.prints[:0], b.odd[:0]
}

// start returns the position of a line.
func (b *block) start(line int) int32 {
	if line == 0 {
		return 0
	}
	return b.ends[line-1]
}

// pool lends blocks. It holds all blocks that may be in use, so a reader that
// waits for a block waits for the committer.
type pool struct {
	free  chan *block
	count int
	size  int
}

func newPool(count, size int) *pool {
	p := &pool{free: make(chan *block, count), count: count, size: size}
	for range count {
		p.free <- newBlock(size)
	}
	return p
}

// put gives a block back. It drops the buffer of a very long line.
func (p *pool) put(b *block) {
	if cap(b.data) > 4*p.size {
		b.data = make([]byte, 0, p.size)
	}
	b.reset()
	p.free <- b
}
