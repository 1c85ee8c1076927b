package dedup

import (
	"bytes"
	"context"
	"fmt"
	"io"
)

// reader cuts the inputs into blocks of whole lines.
type reader struct {
	inputs []*input
	comma  byte // 0 unless the format is CSV or TSV
	blocks *pool
	// work and ordered receive each block. Both have room for all blocks.
	work, ordered chan<- *block
}

// run reads the inputs from a position to their ends, or to the first error.
// The last block carries the error.
func (r *reader) run(ctx context.Context, from position) {
	defer close(r.work)
	defer close(r.ordered)
	for i := from.Input; i < len(r.inputs); i++ {
		offset := from.Offset
		if i > from.Input {
			offset = r.inputs[i].start
		}
		if !r.readInput(ctx, i, offset) {
			return
		}
	}
}

func (r *reader) readInput(ctx context.Context, index int, offset int64) bool {
	in := r.inputs[index]
	s, err := in.stream(ctx, offset)
	if err != nil {
		return r.fail(ctx, index, offset, err)
	}
	defer s.close()
	var rest []byte
	for ctx.Err() == nil {
		var b *block
		select {
		case b = <-r.blocks.free:
		case <-ctx.Done():
			return false
		}
		b.input, b.offset = index, offset
		b.data = append(b.data, rest...)
		size, more := r.fill(ctx, s, b)
		b.raw = s.rawOffset()
		if r.tooLong(b.data[:size+b.added]) {
			size, b.added, b.data, b.err = 0, 0, b.data[:0], errLineTooLong
		}
		offset += int64(size)
		rest = append(rest[:0], b.data[size+b.added:]...)
		b.data = b.data[:size+b.added]
		err := b.err
		long := cap(b.data) > 4*r.blocks.size
		r.work <- b
		r.ordered <- b
		if err != nil {
			return false
		}
		if !more {
			return true
		}
		if long && !r.settle(ctx) {
			return false
		}
	}
	return false
}

// fill reads until the block is full or the input pauses or ends. It returns
// how many bytes of the block are whole lines, and whether the input continues.
func (r *reader) fill(ctx context.Context, s *stream, b *block) (size int, more bool) {
	cut := cutter{comma: r.comma}
	for {
		if len(b.data) == cap(b.data) {
			if end := cut.end(b.data); end > 0 {
				return end, true
			}
			if !grow(b) {
				b.err = errLineTooLong
				return 0, false
			}
		}
		if len(b.data) > 0 && s.pauses() {
			if end := cut.end(b.data); end > 0 {
				return end, true
			}
		}
		n, err := s.read(ctx, b.data[len(b.data):cap(b.data)])
		b.data = b.data[:len(b.data)+n]
		switch {
		case err == nil:
		case err == io.EOF:
			size = len(b.data)
			if size > 0 && b.data[size-1] != '\n' {
				b.data = append(b.data, '\n')
				b.added = 1
			}
			return size, false
		default:
			b.err = err
			return cut.end(b.data), false
		}
	}
}

// errLineTooLong is reported by the committer, which knows the number of the
// line.
var errLineTooLong = fmt.Errorf("the line is longer than %d MiB", MaxLine>>20)

// tooLong reports whether lines are one line that is too long, if only by a
// byte that could have been a carriage return.
func (r *reader) tooLong(lines []byte) bool {
	if len(lines) <= MaxLine || len(trimEnd(lines)) <= MaxLine {
		return false
	}
	end := bytes.IndexByte(lines, '\n') + 1
	if r.comma != 0 {
		scanner := recordScanner{comma: r.comma}
		end, _ = scanner.next(lines) // a worker checks whether the record is well formed
	}
	return end < 0 || end == len(lines)
}

// grow makes room for a longer line, up to MaxLine and its line end.
func grow(b *block) bool {
	const most = MaxLine + len("\r\n")
	if cap(b.data) >= most {
		return false
	}
	data := make([]byte, len(b.data), min(2*cap(b.data), most))
	copy(data, b.data)
	b.data = data
	return true
}

// settle waits until all blocks are back, so that only one very long line takes
// memory at a time.
func (r *reader) settle(ctx context.Context) bool {
	var held []*block
	defer func() {
		for _, b := range held {
			r.blocks.free <- b
		}
	}()
	for len(held) < r.blocks.count {
		select {
		case b := <-r.blocks.free:
			held = append(held, b)
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// fail sends an error in a separate block.
func (r *reader) fail(ctx context.Context, index int, offset int64, err error) bool {
	select {
	case b := <-r.blocks.free:
		b.input, b.offset, b.err = index, offset, err
		r.work <- b
		r.ordered <- b
	case <-ctx.Done():
	}
	return false
}

// cutter finds the end of the last whole line, or CSV record, in growing data.
type cutter struct {
	comma   byte // 0 for plain lines
	whole   int  // end of the last whole line or record
	scanned int  // position up to which data was scanned
	records recordScanner
}

// end returns the end of the last whole line of data, or 0. data starts with
// the data of the last call.
func (c *cutter) end(data []byte) int {
	if c.comma != 0 {
		c.records.comma = c.comma
		for {
			end, _ := c.records.next(data)
			if end < 0 {
				return c.whole
			}
			c.whole = end
		}
	}
	if i := bytes.LastIndexByte(data[c.scanned:], '\n'); i >= 0 {
		c.whole = c.scanned + i + 1
	}
	c.scanned = len(data)
	return c.whole
}
