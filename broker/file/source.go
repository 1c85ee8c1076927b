package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/pipeline"
)

// Source reads the lines of files as messages. Each file is a partition. With
// Follow it waits for more lines:
//
//   - a last line without a line end waits until the line end arrives;
//   - a renamed file is still read under its new name, and a new file under the
//     old name is read from its beginning;
//   - a truncated file is read again from its beginning. Lines that were
//     truncated before they were read are lost;
//   - a file that was renamed or removed while no process read it is looked for
//     in its directory and read to its end.
//
// A file is recognised by its inode, and by its first bytes and the bytes before
// the position, also after a rename. In doubt, it is read from its beginning:
// lines come again, and none is lost.
//
// With another Format, rows or documents come instead of lines.
//
// gzip and zstd files are recognised by their content. Without Follow they are
// read. With Follow they are skipped.
//
// Memory is limited by the items in progress. Each followed file is held open.
type Source struct {
	patterns []string
	opts     SourceOptions
	state    *stateFile // holds the positions; or nil
	attached bool       // a session holds the positions

	// Of the goroutine of Read.

	begun bool
	// remembered: it is not the first time.
	remembered bool
	skip       bool // files are read from their ends
	tails      []*tail
	turn       int
	byID       map[identity]*tail // every known file, including those that ended
	looked     time.Time
	blocks     pipeline.Blocks

	wake chan struct{} // a partition is no longer paused

	mu      sync.Mutex
	paused  map[*pipeline.Partition]bool
	lives   []*life
	known   []entry            // positions of files that are not being read
	gone    []entry            // files that ended, whose positions can be forgotten
	changes []entry            // positions of files that ended, not yet taken by a session
	ahead   map[identity]int64 // sizes of files that were found and not opened yet
	dirty   bool               // items were settled since the last save
	saved   time.Time          // the last save
	closed  bool
	unlock  io.Closer

	saving sync.Mutex // held over a save; before mu
}

var (
	_ pipeline.Source = (*Source)(nil)
)

// OpenSource returns a source of the files that match patterns, as in
// filepath.Glob. Without Follow each pattern must match a file; if none does, the
// error is syscall.ENOENT, as of every file that cannot be opened. The error wraps
// semel.ErrInvalidRequest if options or patterns are wrong. It is a
// *vfs.LockedError if the State is in use.
func OpenSource(patterns []string, opts *SourceOptions) (*Source, error) {
	s := &Source{byID: map[identity]*tail{}, paused: map[*pipeline.Partition]bool{}, wake: make(chan struct{}, 1)}
	if opts != nil {
		s.opts = *opts
	}
	s.opts.defaults()
	if err := s.opts.validate(patterns); err != nil {
		return nil, err
	}
	for _, pattern := range patterns {
		absolute, err := filepath.Abs(pattern)
		if err != nil {
			return nil, fmt.Errorf("file: %w", err)
		}
		s.patterns = append(s.patterns, absolute)
		if !s.opts.Follow {
			if !matches(absolute) {
				return nil, fmt.Errorf("file: %s: %w: write another path, or follow: true to wait for one", pattern, syscall.ENOENT)
			}
		}
	}
	if s.opts.State != "" {
		unlock, err := lockFile(s.opts.FS, s.opts.State)
		if err != nil {
			return nil, err
		}
		s.unlock, s.state = unlock, &stateFile{s.opts.FS, s.opts.State}
	}
	return s, nil
}

// matches reports whether a pattern matches a file that is read, or one whose
// reading fails with a reason.
func matches(pattern string) bool {
	found, _ := filepath.Glob(pattern) // that it is a pattern was checked
	return slices.ContainsFunc(found, func(path string) bool {
		info, err := os.Stat(path)
		if err != nil {
			return !errors.Is(err, os.ErrNotExist)
		}
		return info.Mode().IsRegular() || path == pattern
	})
}

// Read implements pipeline.Source. One call returns lines of one file: at most
// the lines in 256 KiB, or one longer line. The first call looks for files and
// their positions, and fails if they cannot be read.
func (s *Source) Read(ctx context.Context) ([]*pipeline.Item, error) {
	if !s.begun {
		if err := s.begin(); err != nil {
			return nil, err
		}
	}
	for {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if s.opts.Follow && time.Since(s.looked) >= s.opts.Poll {
			if err := s.look(); err != nil {
				return nil, err
			}
		}
		items, err := s.next()
		if err != nil || len(items) > 0 {
			return items, err
		}
		if !s.opts.Follow && len(s.tails) == 0 {
			return nil, io.EOF
		}
		if err := s.saveIfDue(); err != nil {
			return nil, err
		}
		if err := s.wait(ctx); err != nil {
			return nil, err
		}
	}
}

// next reads from the next file in turn that has lines.
func (s *Source) next() ([]*pipeline.Item, error) {
	for tries := len(s.tails); tries > 0; tries-- {
		s.turn %= len(s.tails)
		f := s.tails[s.turn]
		if f.life == nil {
			if err := f.open(); err != nil {
				return nil, err
			}
		}
		if f.dry || s.isPaused(f.partition) {
			s.turn++
			continue
		}
		items, err := f.read()
		if errors.Is(err, errTruncated) {
			if err = f.restart(); err == nil {
				items, err = f.read()
			}
		}
		if err != nil {
			return nil, err
		}
		if f.ended {
			s.leave(f)
		} else if s.opts.Follow {
			s.turn++ // without Follow one file after the other
		}
		if len(items) > 0 {
			return items, nil
		}
		if f.ended {
			tries = len(s.tails) + 1
		}
	}
	return nil, nil
}

func (s *Source) isPaused(partition *pipeline.Partition) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.paused[partition]
}

// Traits implements pipeline.Source.
func (s *Source) Traits() pipeline.SourceTraits {
	return pipeline.SourceTraits{Positions: true, Pause: s.Pause, Place: s.Place, Lag: s.Lag}
}

// Pause stops or resumes reading from a file.
func (s *Source) Pause(partition *pipeline.Partition, paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if paused {
		s.paused[partition] = true
	} else {
		delete(s.paused, partition)
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
}

// Ack implements pipeline.Source. It writes the positions periodically, and
// blocks while it does.
func (s *Source) Ack(_ context.Context, items []*pipeline.Item) error {
	from := 0
	for to, it := range items {
		if s.attached && it.Decision != semel.Undecided && it.Err == nil { // its session has settled it
			s.settle(items[from:to])
			from = to + 1
		}
	}
	s.settle(items[from:])
	return s.saveIfDue()
}

// settle moves the watermarks of the items' files.
func (s *Source) settle(items []*pipeline.Item) {
	if len(items) == 0 {
		return
	}
	var positions [512]int64
	for from := 0; from < len(items); {
		of, ok := items[from].Ref.(*life)
		if !ok || of.source != s {
			from++ // it was parked and redriven, or is from another source
			continue
		}
		n := 0
		for ; from < len(items) && n < len(positions) && items[from].Ref == any(of); from++ {
			positions[n] = items[from].Message.Origin.Offset
			n++
		}
		of.mark.Settle(positions[:n]...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = true
}

// Return implements pipeline.Source. The positions stay before the items, so
// they are read again when the source is opened again.
func (s *Source) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Place returns the name of the file, and the position of the line's first byte.
func (s *Source) Place(o semel.Origin) string {
	return fmt.Sprintf("%s, byte %d", o.Source, o.Offset)
}

// Ready implements doctor.Readier. A source of files is always ready.
func (s *Source) Ready(context.Context) error { return nil }

// Close implements pipeline.Source.
func (s *Source) Close(context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	var errs []error
	if s.state != nil && s.begun {
		errs = append(errs, s.save())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refresh()
	s.closed = true
	for _, l := range s.lives {
		if l.fresh && !l.forgotten {
			s.changes = append(s.changes, l.saved)
		}
		errs = append(errs, l.file.Close())
	}
	s.lives = nil
	for _, f := range s.tails {
		if f.packed != nil {
			_ = f.packed.Close() // it was only read
		}
	}
	if s.unlock != nil {
		errs = append(errs, s.unlock.Close())
	}
	return errors.Join(errs...)
}

// wait waits until the next look at the files is due, or there is a reason to
// look earlier.
func (s *Source) wait(ctx context.Context) error {
	return retry.SleepOrWake(ctx, s.opts.Poll, s.wake)
}
