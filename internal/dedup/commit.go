package dedup

import (
	"bytes"
	"context"

	"github.com/semel-dev/semel"
)

// fate is what becomes of a line.
type fate uint8

const (
	keep fate = iota
	drop
	reject
	skip // a blank line, which is not counted as read
)

// committer decides lines in the order of the inputs and writes them.
type committer struct {
	opts     *Options
	inputs   []*input
	set      keySet
	out      *output
	dups     *output // nil if they are not kept
	rejected *output // nil if nothing is rejected
	comma    byte
	progress *progress

	pos    position
	counts Counts
}

// run takes blocks until there are no more, or until one cannot be settled.
func (c *committer) run(ctx context.Context, blocks <-chan *block, pool *pool) error {
	for b := range blocks {
		<-b.parsed
		if err := c.settle(b); err != nil {
			return err
		}
		if b.err != nil {
			return c.stopped(ctx, b)
		}
		pool.put(b)
	}
	return context.Cause(ctx)
}

// settle decides and writes the lines of a block, all or those before the first
// that the run has to stop at.
func (c *committer) settle(b *block) error {
	lines, keyed := len(b.ends), len(b.digests)
	var stop error
	if c.opts.OnMissing == MissingFail {
		for i, odd := range b.odd {
			if odd.err != nil {
				lines, keyed, stop = int(odd.line), int(odd.line)-i, odd.err
				break
			}
		}
	}
	if c.pos.Input != b.input {
		c.pos = position{Input: b.input, Line: c.inputs[b.input].headerLines()}
	}
	prints := b.prints
	if len(prints) > keyed {
		prints = prints[:keyed]
	}
	b.decisions = resized(b.decisions, keyed)
	if err := c.set.decide(b.digests[:keyed], prints, b.decisions); err != nil {
		return err
	}
	size := int(b.start(lines))
	before := c.linesIn(b, lines, size)
	c.counts.Missing += b.hashed
	c.counts.BytesIn += int64(size)
	if lines == len(b.ends) {
		c.counts.BytesIn -= int64(b.added)
	}
	kept := c.place(b, lines)
	if err := c.out.write(b.data[:kept]); err != nil {
		return err
	}
	for _, side := range []*output{c.dups, c.rejected} {
		if side == nil {
			continue
		}
		if err := side.flush(); err != nil {
			return err
		}
	}
	c.counts.BytesOut += int64(kept)
	c.counts.Read = c.counts.Fresh + c.counts.Duplicate + c.counts.Rejected
	c.progress.set(&c.counts)
	c.pos.Offset = b.offset + int64(size)
	c.pos.Line += before
	if stop != nil {
		return c.lineError(&missingError{stop})
	}
	return nil
}

// place moves the lines that are kept together at the beginning of the block's
// data and returns how many bytes they are. Others go to their files' buffers.
func (c *committer) place(b *block, lines int) (kept int) {
	data := b.data
	odd, keyed := b.odd, b.decisions
	run, start := 0, 0 // data[run:start] is kept and not yet moved
	gone := 0
	for i := range lines {
		end := int(b.ends[i])
		var f fate
		if len(odd) > 0 && int(odd[0].line) == i {
			f = c.oddFate(odd[0])
			odd = odd[1:]
		} else {
			if keyed[0] != semel.Fresh {
				f = c.knownFate(keyed[0])
			}
			keyed = keyed[1:]
		}
		if f != keep {
			if run != kept {
				copy(data[kept:], data[run:start])
			}
			kept += start - run
			run = end
			gone++
			c.aside(f, data[start:end])
		}
		start = end
	}
	if run != kept {
		copy(data[kept:], data[run:start])
	}
	c.counts.Fresh += int64(lines - gone)
	return kept + start - run
}

// knownFate is for a line whose key is known.
func (c *committer) knownFate(d semel.Decision) fate {
	if d != semel.Mismatch {
		return drop
	}
	c.counts.Mismatch++
	switch c.opts.OnMismatch {
	case MismatchReject:
		return reject
	case MismatchPass:
		return keep
	}
	return drop
}

// oddFate is for a line without a key.
func (c *committer) oddFate(odd oddLine) fate {
	if odd.err == nil {
		c.counts.Blank++
		return skip
	}
	c.counts.Missing++
	if c.opts.OnMissing == MissingPass {
		return keep
	}
	return reject
}

// aside counts a line that is not kept, and puts it where such lines go.
func (c *committer) aside(f fate, line []byte) {
	var side *output
	switch f {
	case drop:
		c.counts.Duplicate++
		side = c.dups
	case reject:
		c.counts.Rejected++
		side = c.rejected
	}
	if side != nil {
		side.buffer = append(side.buffer, line...)
	}
}

// linesIn counts the lines of the input in the first lines of a block, which
// are size bytes: a CSV record may have more than one.
func (c *committer) linesIn(b *block, lines, size int) int64 {
	if c.comma == 0 {
		return int64(lines)
	}
	return int64(bytes.Count(b.data[:size], []byte{'\n'}))
}

// stopped explains why the reader stopped after a block.
func (c *committer) stopped(ctx context.Context, b *block) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.pos.Input != b.input {
		c.pos = position{Input: b.input, Offset: b.offset, Line: c.inputs[b.input].headerLines()}
	}
	return c.lineError(b.err)
}

// lineError says of an error that it is at the line behind the position.
func (c *committer) lineError(err error) error {
	return &LineError{Input: c.inputs[c.pos.Input].name, Line: c.pos.Line + 1, Err: err}
}
