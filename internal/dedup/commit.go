package dedup

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// fate says what happens to a line.
type fate uint8

const (
	keep fate = iota
	drop
	reject
	skip // a blank line, which does not count as read
)

// committer decides lines in the order of the inputs and writes them. It serves one
// goroutine at a time.
type committer struct {
	opts     *Options
	inputs   []*input
	extract  *extraction
	comma    byte
	set      keySet
	journal  *journal // nil without a store; otherwise journal is the set
	outputs  []*output
	out      *output
	dups     *output // nil if duplicates are not kept
	rejected *output // nil if no line is rejected
	progress *progress
	why      *places // nil without --why

	found runState // the state of the inputs when the run started, or when they were read
	// foundMore is set if found has changed since it was last recorded.
	foundMore bool
	others    []otherRun // of other commands, unfinished when the run started
	pos       position
	content   fingerprint // of a regular input before pos, with a store
	counts    Counts
	// written is counts.BytesOut when the output was opened.
	written int64
	// replay is set if the same command is known to have finished. Lines
	// without a key are then already in its files. The first fresh line clears
	// it.
	replay bool
	past   *recollection // nil without a store
}

// commit settles a block, if it is not nil, and starts a checkpoint if one is due.
func (c *committer) commit(ctx context.Context, b *block) error {
	if b != nil {
		if err := c.settle(b); err != nil {
			return err
		}
		if b.err != nil {
			return c.stopped(ctx, b)
		}
	}
	if c.journal == nil || !c.journal.due(c.opts, c.counts.BytesIn, time.Now()) {
		return nil
	}
	return c.checkpoint(context.WithoutCancel(ctx))
}

// end ends a run that stopped with err, or at the end of its inputs. It makes the
// last commit unless a write failed.
func (c *committer) end(ctx context.Context, err error) error {
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
		if c.journal != nil {
			c.journal.abort()
		}
		return commitErr
	}
	return err
}

// settle decides and writes the lines of a block. If the run must stop at a
// line, it writes the lines before that one.
func (c *committer) settle(b *block) error {
	count, keyed := len(b.ends), len(b.digests)
	var stop error
	if c.opts.OnMissing == MissingFail {
		for i, odd := range b.odd {
			if odd.err != nil {
				count, keyed, stop = int(odd.line), int(odd.line)-i, odd.err
				break
			}
		}
	}
	if c.pos.Input != b.input {
		c.enter(b.input)
	}
	of := lines{b.digests[:keyed], b.prints[:min(keyed, len(b.prints))], b.times[:min(keyed, len(b.times))]}
	b.decisions = resized(b.decisions, keyed)
	if err := c.set.decide(of, b.decisions); err != nil {
		return err
	}
	data := b.data[:b.start(count)]
	read := data
	if count == len(b.ends) {
		read = data[:len(data)-b.added]
		if b.added > 0 || b.open {
			c.pos.Ended, c.pos.Open = true, b.open
			c.pos.Last = b.offset + int64(b.start(count-1))
		}
	}
	c.follow(read)
	c.pos.Offset = b.offset + int64(len(read))
	before := c.pos.Line
	c.pos.Line += c.linesIn(data, count)
	c.counts.BytesIn += int64(len(read))
	c.counts.Missing += b.hashed
	kept := c.place(b, count, before)
	if err := c.why.failed(); err != nil {
		return err
	}
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
		return c.lineError(c.withoutKey(trimEnd(b.data[b.start(count):b.ends[count]]), stop))
	}
	return nil
}

// withoutKey returns the error for the line after the position. A line of damaged
// compressed data looks like a line that is not JSON.
func (c *committer) withoutKey(line []byte, err error) error {
	in := c.inputs[c.pos.Input]
	var syntax *key.SyntaxError
	if errors.As(err, &syntax) && in.regular() {
		if damage := in.damage(); damage != nil {
			return damage
		}
	}
	missing := &missingError{err: err}
	missing.hint, missing.sure = c.extract.hint(line, err, c.pos.Offset == in.start)
	return missing
}

// countOut counts the bytes that were written, including the header.
func (c *committer) countOut() { c.counts.BytesOut = c.written + c.out.added }

// place moves the kept lines together at the start of the block's data and
// returns how many bytes they have. Other lines go to the buffers of their
// files. before is the number of lines before the block.
func (c *committer) place(b *block, lines int, before int64) (kept int) {
	data := b.data
	odd, keyed := b.odd, b.decisions
	run, start := 0, 0 // data[run:start] is kept and not yet moved
	gone := 0
	number := before + 1
	for i := range lines {
		end := int(b.ends[i])
		f := keep
		line, own := data[start:end], number
		if c.why != nil {
			number += c.linesIn(line, 1)
		}
		if len(odd) > 0 && int(odd[0].line) == i {
			f = c.oddFate(odd[0])
			odd = odd[1:]
		} else {
			if keyed[0] == semel.Fresh {
				c.replay = false
			} else {
				f = c.knownFate(keyed[0])
			}
			if c.why != nil {
				line = c.why.record(b, len(b.decisions)-len(keyed), own, start, end, f)
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
			c.divert(f, line)
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

// knownFate returns the fate of a line with a key.
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

// oddFate returns the fate of a line without a key.
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

// pass returns the fate of a line that is kept by policy.
func (c *committer) pass() fate {
	if c.replay {
		return drop
	}
	return keep
}

// divert counts a line that is not kept, and writes it to the file for such
// lines.
func (c *committer) divert(f fate, line []byte) {
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

// linesIn counts the line ends in the first lines of a block. A CSV record may
// have more than one.
func (c *committer) linesIn(data []byte, lines int) int64 {
	if c.comma == 0 {
		return int64(lines)
	}
	return int64(bytes.Count(data, []byte{'\n'}))
}

// stopped returns the error for which the reader stopped after a block.
func (c *committer) stopped(ctx context.Context, b *block) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c.pos.Input != b.input && errors.Is(b.err, errReplaced) {
		// The position stays before an input that the next run compares again.
		in := c.inputs[b.input]
		return &LineError{Input: in.name, Line: in.past.Line + 1, Err: b.err}
	}
	if c.pos.Input != b.input {
		c.enter(b.input)
	}
	return c.lineError(b.err)
}

// lineError adds the number of the line after the position to an error.
func (c *committer) lineError(err error) error {
	return &LineError{Input: c.inputs[c.pos.Input].name, Line: c.pos.Line + 1, Err: err}
}
