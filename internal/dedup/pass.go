package dedup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// pass reads all inputs once. Each of its workers reads a block, parses it and
// hands it in. Blocks are committed one at a time and in the order of reading. The committer is
// the worker that handed in a block while no other worker was committing. So a worker never waits
// for a block that another one parses, unless all blocks are in use.
type pass struct {
	reader    *reader
	committer *committer

	mu sync.Mutex // guards the fields below; nothing blocks under it
	// parsed are the blocks that were handed in and not yet committed, by their
	// number. next is the number of the first block that is not committed.
	parsed map[int]*block
	next   int
	// committing is set while a goroutine commits. After an error it stays set:
	// no block after the one that failed may be committed.
	committing bool
}

// read reads the inputs from a position to their ends for a committer.
func (r *Run) read(ctx context.Context, c *committer, from position) error {
	workers := make([]*worker, r.opts.Threads)
	for i := range workers {
		var err error
		if workers[i], err = newWorker(r.extract); err != nil {
			return fmt.Errorf("dedup: %w", err)
		}
	}
	blocks := newPool(2*r.opts.Threads+3, r.opts.blockSize)
	p := &pass{
		reader:    &reader{inputs: r.inputs, comma: c.comma, blocks: blocks, input: from.Input, offset: from.Offset},
		committer: c,
		parsed:    make(map[int]*block),
	}
	if c.journal != nil && r.inputs[from.Input].regular() {
		behind := c.content.clone()
		p.reader.behind = &behind
	}
	p.reader.skip()
	return c.end(ctx, p.run(ctx, workers, r.opts.commitEvery))
}

// errStopped stops the workers after one of them failed.
var errStopped = errors.New("dedup: the run has ended")

// run runs the workers until the inputs end, ctx ends or a block fails. A block that
// was read is committed in the first two cases.
func (p *pass) run(ctx context.Context, workers []*worker, commitEvery time.Duration) error {
	working, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	ended := make(chan error, len(workers))
	for _, w := range workers {
		go func() { ended <- p.work(working, w) }()
	}
	ticker := time.NewTicker(commitEvery)
	defer ticker.Stop()
	var failure error
	for running := len(workers); running > 0; {
		var err error
		select {
		case err = <-ended:
			running--
		case <-ticker.C: // an input may pause
			err = p.commit(working, nil)
		}
		if err != nil {
			failure = err
			stop(errStopped)
		}
	}
	p.reader.close()
	if failure != nil {
		return failure
	}
	return context.Cause(ctx)
}

// work reads, parses and hands in blocks until there are no more.
func (p *pass) work(ctx context.Context, w *worker) error {
	for {
		b := p.reader.next(ctx)
		if b == nil {
			return nil
		}
		w.parse(b)
		if err := p.commit(ctx, b); err != nil {
			return err
		}
	}
}

// commit hands in a parsed block, or nil to commit only what is due. If no other goroutine
// commits, it commits all blocks whose turn has come, including blocks that arrive in the
// meantime.
func (p *pass) commit(ctx context.Context, parsed *block) error {
	b, turn := p.handIn(parsed)
	for turn {
		if err := p.committer.commit(ctx, b); err != nil {
			return err
		}
		b, turn = p.following(b)
	}
	return nil
}

// handIn takes a parsed block, or nil. If no other goroutine commits, the caller has
// to. It starts with block b, or with none if that is not parsed.
func (p *pass) handIn(parsed *block) (b *block, turn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if parsed != nil {
		p.parsed[parsed.number] = parsed
	}
	if p.committing {
		return nil, false
	}
	p.committing = true
	return p.parsed[p.next], true
}

// following frees a block that was committed, and returns the next one if it is
// parsed. Otherwise the caller's turn to commit has ended.
func (p *pass) following(committed *block) (b *block, turn bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if committed != nil {
		delete(p.parsed, p.next)
		p.next++
		p.reader.blocks.put(committed)
	}
	b = p.parsed[p.next]
	p.committing = b != nil
	return b, p.committing
}

// block is a run of whole lines of one input. A worker reads and parses it, and
// the committer settles it. Blocks are reused.
type block struct {
	// The reader fills these.

	// number counts the blocks in the order of the inputs.
	number int
	// input is the index of the input, and offset is the position of data in
	// it.
	input  int
	offset int64
	data   []byte
	// raw is the number of bytes read from the input's file, compressed or not.
	raw int64
	// added is 1 if the last line had no line end and the reader added one.
	added int
	// open is set if the last record ends the input within quotes.
	open bool
	// err is the reason why the reader stopped after this block.
	err error

	// A worker fills these, except that the reader fills the first two for CSV.

	// ends has, for each line, the position after its line end, where the next
	// line starts. bad are the indices in ends of records that are malformed.
	ends, bad []int32
	// digests and prints belong, in order, to the lines that are not in odd.
	digests []semel.Digest
	prints  []uint64
	times   []int64 // with --time
	// odd are the lines that no key set decides, in order.
	odd []oddLine
	// hashed counts the lines without a key whose content became the key.
	hashed int64

	// The committer fills this: decisions belong to digests.
	decisions []semel.Decision
}

// oddLine is a line without a key.
type oddLine struct {
	line int32 // index in ends
	// err says why there is no key; nil for a blank line.
	err error
}

func newBlock(size int) *block {
	return &block{data: make([]byte, 0, size)}
}

func (b *block) reset() {
	b.data, b.raw, b.added, b.open, b.err, b.hashed = b.data[:0], 0, 0, false, nil, 0
	b.ends, b.bad, b.digests, b.prints, b.times, b.odd = b.ends[:0], b.bad[:0], b.digests[:0], b.prints[:0], b.times[:0], b.odd[:0]
}

// start returns the position of a line.
func (b *block) start(line int) int32 {
	if line == 0 {
		return 0
	}
	return b.ends[line-1]
}

// pool lends blocks, to several workers concurrently. It holds all blocks that may
// be in use, so a worker that waits for a block waits for the committer.
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

// take waits for a free block. It returns nil if ctx ends before.
func (p *pool) take(ctx context.Context) *block {
	select {
	case b := <-p.free:
		return b
	case <-ctx.Done():
		return nil
	}
}

// settle waits until all blocks are free, and reports whether ctx lasted so long.
func (p *pool) settle(ctx context.Context) bool {
	var held []*block
	for len(held) < p.count {
		b := p.take(ctx)
		if b == nil {
			break
		}
		held = append(held, b)
	}
	for _, b := range held {
		p.free <- b
	}
	return len(held) == p.count
}

// put gives a block back. It drops the buffer of a very long line.
func (p *pool) put(b *block) {
	if cap(b.data) > 4*p.size {
		b.data = make([]byte, 0, p.size)
	}
	b.reset()
	p.free <- b
}
