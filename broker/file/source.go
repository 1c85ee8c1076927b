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
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Source reads the lines of files as messages. Each file is a partition. Under
// Follow it waits for more:
//
//   - a last line without its line end waits until that comes;
//   - a file that is renamed is read on under whatever name it has, and a new one
//     under the old name from its beginning;
//   - a file that is truncated begins anew, from its beginning. What was
//     truncated before it was read is lost to every reader of files;
//   - a file that was renamed or removed while nobody read is looked for in its
//     directory and read to its end.
//
// A file is recognised, after it was renamed too, by its inode and by what
// stands at its beginning and before the position. Where that leaves a doubt it
// is read from its beginning: lines come again, and none is lost.
//
// gzip and zstd are recognised by content and read where they are whole files,
// without Follow; under Follow they are passed over.
//
// Memory is what the items under way hold. An open file is held for each file
// that is followed.
type Source struct {
	patterns []string
	opts     SourceOptions
	state    *stateFile // where positions are remembered, or nil
	attached bool       // they are remembered by a session

	// Of the goroutine of Read.

	begun bool
	// remembered: it is not the first time.
	remembered bool
	skip       bool // files are read from their ends
	tails      []*tail
	turn       int
	byID       map[identity]*tail // every file that is known, also those that ended
	looked     time.Time
	blocks     pipeline.Blocks

	wake chan struct{} // a partition is no longer paused

	mu      sync.Mutex
	paused  map[*pipeline.Partition]bool
	lives   []*life
	known   []entry            // remembered of files that are not read, or any more
	gone    []entry            // files that ended, whose positions can be forgotten
	changes []entry            // positions of files that ended, not yet taken by a session
	ahead   map[identity]int64 // sizes of files that were found and not opened yet
	dirty   bool               // something was settled since the last save
	saved   time.Time          // the last save
	closed  bool
	unlock  io.Closer

	saving sync.Mutex // held over a save; before mu
}

var (
	_ pipeline.Source = (*Source)(nil)
)

// OpenSource returns a source of the files that match patterns, as
// filepath.Glob has them. Without Follow each pattern must match a file. The
// error wraps semel.ErrInvalidRequest if options or patterns are wrong, and is a
// [*LockedError] if the State is in use.
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
				return nil, fmt.Errorf("file: %s: there is no such file: write another path, or follow: true to wait for one: %w", pattern, os.ErrNotExist)
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

// matches reports whether a pattern finds something that is read, or of which
// reading says why it is not.
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
// as many as there are in 256 KiB, or one longer line. Files and their positions
// are looked for at the first call; what cannot be read is an error then.
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

// next reads from the next file in turn that has something.
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
			if err = f.anew(); err == nil {
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
	return pipeline.SourceTraits{Pause: s.Pause, Place: s.Place}
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

// Ack implements pipeline.Source. Now and then it writes the positions, and
// blocks for that.
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
			from++ // it was put aside and came back, or is of another source
			continue
		}
		n := 0
		for ; from < len(items) && n < len(positions) && items[from].Ref == any(of); from++ {
			positions[n] = items[from].Message.Origin.Offset
			n++
		}
		of.mark.SettleAll(positions[:n])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dirty = true
}

// Return implements pipeline.Source. The positions of the items are not passed,
// so they come again when the source is opened again.
func (s *Source) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Place returns the name of the file, and the position of the line's first byte.
func (s *Source) Place(o semel.Origin) string {
	return fmt.Sprintf("%s, byte %d", o.Source, o.Offset)
}

// Ready implements semel.Readier. Files are read when they are there.
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

// wait waits until it is time to look again, or there is reason to.
func (s *Source) wait(ctx context.Context) error {
	timer := time.NewTimer(s.opts.Poll)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.wake:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}
