package file

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Stream writes the bodies of messages as lines to standard output, a pipe or a
// terminal. A line counts as delivered when it is written. Whether the reader
// has read it is not known.
type Stream struct {
	mu    sync.Mutex
	to    io.Writer
	lines []byte
}

var _ pipeline.Sink = (*Stream)(nil)

// NewStream returns a sink that writes to w and does not close it.
func NewStream(w io.Writer) *Stream { return &Stream{to: w} }

// Traits implements pipeline.Sink.
func (s *Stream) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Ordered: true}
}

// Deliver implements pipeline.Sink. It blocks while the other end does not read.
// After an error of the writer, such as syscall.EPIPE, the sink is unavailable
// for the unwritten messages. A line that was written in part has an unknown
// outcome.
func (s *Stream) Deliver(ctx context.Context, items []*pipeline.Item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() != nil {
		for _, it := range items {
			it.Err = context.Cause(ctx)
		}
		return
	}
	s.lines = s.lines[:0]
	ends := make([]int, len(items))
	s.lines = appendLines(s.lines, items, func(i int, lines []byte) { ends[i] = len(lines) })
	n, err := s.to.Write(s.lines)
	if err == nil {
		return
	}
	err = fmt.Errorf("file: write: %w", err)
	start := 0
	for i, it := range items {
		switch {
		case it.Err != nil || ends[i] <= n:
		case start < n:
			it.Err = fmt.Errorf("%w: a part of the line was written: %w", semel.ErrOutcomeUnknown, err)
		default:
			it.Err = pipeline.Unavailable(err, 0)
		}
		start = ends[i]
	}
}

// Close implements pipeline.Sink. It does nothing.
func (s *Stream) Close(context.Context) error { return nil }
