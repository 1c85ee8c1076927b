package dedup

import (
	"bytes"
	"context"
	"errors"
	"time"

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
	comma    byte
	set      keySet
	journal  *journal // nil without a store; else it is the set
	outputs  []*output
	out      *output
	dups     *output // nil if they are not kept
	rejected *output // nil if nothing is rejected
	progress *progress

	found runState // what the inputs were when the run began, or when read
	// foundMore: found has changed since it was last recorded.
	foundMore bool
	pos       position
	crc       uint32 // of the input before pos, if the run can be resumed
	counts    Counts
	// written is counts.BytesOut when the output was opened.
	written int64
	// replay: the very same command is known to have finished, so all that
	// has no key is in its files already. It ends with the first fresh line.
	replay bool
}

// run takes blocks until there are no more, or until one cannot be settled. It
// ends with a commit unless something cannot be written.
func (c *committer) run(ctx context.Context, blocks <-chan *block, pool *pool) error {
	err := c.settleAll(ctx, blocks, pool)
	var line *LineError
	var at stage
	switch {
	case err == nil:
		at = finished
	case errors.As(err, &line):
		at = failed
	case ctx.Err() != nil && errors.Is(err, context.Cause(ctx)):
		at = stopped
	default:
		if c.journal != nil {
			c.journal.abort()
		}
		return err
	}
	if commitErr := c.finish(context.WithoutCancel(ctx), at); commitErr != nil {
		c.journal.abort()
		return commitErr
	}
	return err
}

func (c *committer) settleAll(ctx context.Context, blocks <-chan *block, pool *pool) error {
	drained := context.WithoutCancel(ctx)
	ticker := time.NewTicker(c.opts.commitEvery)
	defer ticker.Stop()
	for {
		select {
		case b, more := <-blocks:
			if !more {
				return context.Cause(ctx)
			}
			<-b.parsed
			if err := c.settle(b); err != nil {
				return err
			}
			if b.err != nil {
				return c.stopped(ctx, b)
			}
			pool.put(b)
		case <-ticker.C: // for an input that pauses
		}
		if c.journal != nil && c.journal.due(c.opts, c.counts.BytesIn, time.Now()) {
			if err := c.checkpoint(drained); err != nil {
				return err
			}
		}
	}
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
		c.enter(b.input)
	}
	prints := b.prints
	if len(prints) > keyed {
		prints = prints[:keyed]
	}
	b.decisions = resized(b.decisions, keyed)
	if err := c.set.decide(b.digests[:keyed], prints, b.decisions); err != nil {
		return err
	}
	data := b.data[:b.start(lines)]
	read := data
	if lines == len(b.ends) {
		read = data[:len(data)-b.added]
		c.pos.Ended = c.pos.Ended || b.added > 0
	}
	c.follow(read)
	c.pos.Offset = b.offset + int64(len(read))
	c.pos.Line += c.linesIn(data, lines)
	c.counts.BytesIn += int64(len(read))
	c.counts.Missing += b.hashed
	kept := c.place(b, lines)
	c.counts.Read = c.counts.Fresh + c.counts.Duplicate + c.counts.Rejected
	if err := c.out.write(data[:kept]); err != nil {
		return err
	}
	for _, o := range c.outputs {
		if err := o.flush(); err != nil {
			return err
		}
	}
	c.countOut()
	c.tell(b)
	if stop != nil {
		return c.lineError(&missingError{stop})
	}
	return nil
}

// countOut counts what was written, the header too.
func (c *committer) countOut() { c.counts.BytesOut = c.written + c.out.length - c.out.base }

// place moves the lines that are kept together at the beginning of the block's
// data and returns how many bytes they are. Others go to their files' buffers.
func (c *committer) place(b *block, lines int) (kept int) {
	data := b.data
	odd, keyed := b.odd, b.decisions
	run, start := 0, 0 // data[run:start] is kept and not yet moved
	gone := 0
	for i := range lines {
		end := int(b.ends[i])
		f := keep
		if len(odd) > 0 && int(odd[0].line) == i {
			f = c.oddFate(odd[0])
			odd = odd[1:]
		} else {
			if keyed[0] == semel.Fresh {
				c.replay = false
			} else {
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
	c.out.lines += int64(lines - gone)
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
		return c.pass()
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
		return c.pass()
	}
	return reject
}

// pass is for a line that is kept although its key does not say so.
func (c *committer) pass() fate {
	if c.replay {
		return drop
	}
	return keep
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
	if side != nil && !c.replay {
		side.buffer = append(side.buffer, line...)
		side.lines++
	}
}

// linesIn counts the lines in the first lines of a block, which may be records:
// these may have more than one.
func (c *committer) linesIn(data []byte, lines int) int64 {
	if c.comma == 0 {
		return int64(lines)
	}
	return int64(bytes.Count(data, []byte{'\n'}))
}

// stopped explains why the reader stopped after a block.
func (c *committer) stopped(ctx context.Context, b *block) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.pos.Input != b.input {
		c.enter(b.input)
	}
	return c.lineError(b.err)
}

// lineError says of an error that it is at the line behind the position.
func (c *committer) lineError(err error) error {
	return &LineError{Input: c.inputs[c.pos.Input].name, Line: c.pos.Line + 1, Err: err}
}
