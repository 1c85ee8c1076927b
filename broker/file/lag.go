package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/semel-dev/semel/pipeline"
)

// Lag returns the backlog, as in pipeline.SourceTraits: the sum of the bytes of all files
// that are not settled, even if lines behind them are. A last line without a line end counts
// too. For a compressed file it is the data that is not decompressed yet. Before the first
// Read the lag is 0.
func (s *Source) Lag(context.Context) ([]pipeline.Lag, error) {
	type position struct {
		life *life
		at   int64
	}
	var positions []position
	sum := pipeline.Lag{Messages: pipeline.UnknownLag}
	s.mu.Lock()
	for _, size := range s.ahead {
		sum.Bytes += size
	}
	for _, l := range s.lives {
		if !l.forgotten {
			positions = append(positions, position{l, l.saved.Offset})
		}
	}
	s.mu.Unlock()
	for _, p := range positions {
		at, settled := p.at, int64(0)
		if low, ahead, begun := p.life.mark.Ahead(); begun {
			at, settled = low, ahead
		}
		info, err := p.life.file.Stat()
		if err == nil && p.life.packed {
			at, err = p.life.file.Seek(0, io.SeekCurrent)
			settled = 0
		}
		if errors.Is(err, os.ErrClosed) {
			continue // it has been settled since
		}
		if err != nil {
			return nil, fmt.Errorf("file: %s: %w", p.life.path, err)
		}
		sum.Bytes += max(info.Size()-at-settled, 0)
	}
	return []pipeline.Lag{sum}, nil
}
