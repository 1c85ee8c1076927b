package dedup

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/semel-dev/semel/internal/framing"
)

// reader cuts the inputs into blocks of whole lines.
type reader struct {
	inputs []*input
	comma  byte // 0 unless the format is CSV or TSV
	blocks *pool

	mu sync.Mutex // held while one worker reads; it guards the fields below
	// The next block is of this input and starts at this offset.
	input  int
	offset int64
	number int
	stream *stream // of input; nil before its first block
	// behind identifies what is before offset and is not read, or is nil.
	behind *fingerprint
	rest   []byte // the bytes of stream that follow the last line of the last block
	long   bool   // the last block has a very long line
	ended  bool   // there are no more blocks
}

// next reads a block. It returns nil if there are no more or ctx has ended. The
// block after which the run has to stop carries the error. Several workers may call
// next concurrently. It waits for a free block and for a live input, and both
// waits end with ctx.
func (r *reader) next(ctx context.Context) *block {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended || ctx.Err() != nil {
		return nil
	}
	// Only one very long line takes memory at a time.
	if r.long && !r.blocks.settle(ctx) {
		return nil
	}
	b := r.blocks.take(ctx)
	if b == nil {
		return nil
	}
	b.number, b.input, b.offset = r.number, r.input, r.offset
	r.number++
	more := r.read(ctx, b)
	r.long = cap(b.data) > 4*r.blocks.size
	if b.err != nil {
		r.ended = true
	} else if !more {
		r.advance()
	}
	return b
}

// read fills a block with the next lines of the input, and reports whether the
// input continues.
func (r *reader) read(ctx context.Context, b *block) (more bool) {
	if r.stream == nil {
		if r.stream, b.err = r.inputs[r.input].streamBehind(ctx, r.offset, r.behind); b.err != nil {
			return false
		}
	}
	b.data = append(b.data, r.rest...)
	size, more := r.fill(ctx, r.stream, b)
	b.raw = r.stream.rawOffset()
	if r.tooLong(b.data[:size+b.added]) {
		size, b.added, b.err = 0, 0, errLineTooLong
		b.data, b.ends, b.bad = b.data[:0], b.ends[:0], b.bad[:0]
	}
	r.offset += int64(size)
	r.rest = append(r.rest[:0], b.data[size+b.added:]...)
	b.data = b.data[:size+b.added]
	return more
}

// advance moves to the next input.
func (r *reader) advance() {
	r.close()
	r.input++
	r.behind = nil
	if r.input < len(r.inputs) {
		r.offset = r.inputs[r.input].start
		if past := r.inputs[r.input].past; past != nil {
			r.offset, r.behind = past.Offset, &past.Content
		}
	}
	r.skip()
}

// skip moves past inputs that need not be read.
func (r *reader) skip() {
	if r.input < len(r.inputs) && r.inputs[r.input].skipped {
		r.advance()
	}
	r.ended = r.input == len(r.inputs)
}

// close closes the open input. No call of next may run.
func (r *reader) close() {
	if r.stream != nil {
		r.stream.close()
		r.stream = nil
	}
}

// fill reads until the block is full or the input pauses or ends. It returns
// how many bytes of the block are whole lines, and whether the input continues.
func (r *reader) fill(ctx context.Context, s *stream, b *block) (size int, more bool) {
	cut := cutter{comma: r.comma, block: b}
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
			if r.offset == r.inputs[r.input].start && onlyCR(b.data) {
				b.err = fmt.Errorf("%w: pass the input through tr '\\r' '\\n'", errOnlyCR)
				return 0, false
			}
			if size > 0 && b.data[size-1] != '\n' {
				b.data = append(b.data, '\n')
				b.added = 1
			}
			cut.last(b.data)
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
		scanner := framing.Rows{Comma: r.comma}
		end, _ = scanner.Next(lines) // a worker checks whether the record is well formed
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

// cutter finds the end of the last whole line, or CSV record, in growing data.
type cutter struct {
	comma   byte   // 0 for plain lines
	block   *block // gets the ends of CSV records, unless it is nil
	whole   int    // end of the last whole line or record
	scanned int    // position up to which data was scanned
	records framing.Rows
}

// end returns the end of the last whole line of data, or 0. data starts with
// the data of the last call.
func (c *cutter) end(data []byte) int {
	if c.comma != 0 {
		c.records.Comma = c.comma
		for {
			end, good := c.records.Next(data)
			if end < 0 {
				return c.whole
			}
			c.record(end, good)
		}
	}
	if i := bytes.LastIndexByte(data[c.scanned:], '\n'); i >= 0 {
		c.whole = c.scanned + i + 1
	}
	c.scanned = len(data)
	return c.whole
}

// record notes a CSV record.
func (c *cutter) record(end int, good bool) {
	c.whole = end
	if c.block == nil {
		return
	}
	if !good {
		c.block.bad = append(c.block.bad, int32(len(c.block.ends)))
	}
	c.block.ends = append(c.block.ends, int32(end))
}

// last is end for data after which no more comes. A quote that is never closed makes
// the rest one malformed record.
func (c *cutter) last(data []byte) {
	if c.comma != 0 && c.end(data) < len(data) {
		c.record(len(data), false)
		c.block.open = true
	}
}
