package state

import (
	"context"
	"errors"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// Spiller is a State whose older values leave memory for files of its own, in the directory of
// the copy on disk. They replace the oldest files of the copy. After an error of any method, the
// state must be built again.
type Spiller interface {
	State
	// Load opens the files that a directory has for a changelog. It returns the extent that they
	// replace. It is the first call.
	Load(files vfs.FS, dir string, changelog ID) (Spilled, error)
	// Spill lets values leave memory. If all records that were applied are in files of the copy
	// that no longer change, all has these files, and last the checksum of the last record.
	// Otherwise all is zero, and nothing new leaves memory. Spill returns what finished files
	// replace, without those whose records are all before an offset: these do not count. It
	// waits only if too many values are in memory.
	Spill(all Extent, last uint32, before int64) (Extent, error)
	// Tidy removes files that are no longer needed, when the copy knows what is replaced.
	Tidy() error
	// Discard removes all files.
	Discard() error
	// Close closes the files. A state that has none can still be used.
	Close()
}

// Spilled says what files of a Spiller replace.
type Spilled struct {
	Extent
	// Oldest is the number of the file that was the oldest one when they were written.
	Oldest int
	// Sum is the checksum of the last record. Record has its header and no entries: Read and Apply
	// learn from it how the values were made, and the time.
	Sum    uint32
	Record []byte
}

// loadSpilled loads what the state has spilled. What the copy contradicts, or the state cannot
// use, is removed, and comes from the brokers.
func (l *Log) loadSpilled(ctx context.Context) error {
	s, ok := l.state.(Spiller)
	if !ok {
		return nil
	}
	d := l.opts.Disk
	has, err := s.Load(d.fs, d.dir, d.changelog)
	if err != nil || has.Last == 0 {
		return err
	}
	_, err = l.read(ctx, has.Record)
	if err != nil && !errors.Is(err, semel.ErrInvalidRequest) {
		return err // it is not known whether it can be used
	}
	usable := err == nil
	if usable {
		if usable, err = d.Continue(has.Extent, has.Oldest); err != nil {
			return err
		}
	}
	if !usable {
		return l.renew()
	}
	l.state.Apply(has.Next-1, Place{})
	l.state.Stored(has.Next-1, 0)
	l.position, l.last = has.Next, has.Sum
	return nil
}

// renew replaces the state by an empty one.
func (l *Log) renew() error {
	d := l.opts.Disk
	if s, ok := l.state.(Spiller); ok && d != nil {
		if err := s.Discard(); err != nil {
			return err
		}
	}
	l.state = l.opts.New(d)
	if s, ok := l.state.(Spiller); ok && d != nil {
		_, err := s.Load(d.fs, d.dir, d.changelog) // nothing is left
		return err
	}
	return nil
}

// spill lets older values leave memory.
func (l *Log) spill() error {
	s, ok := l.state.(Spiller)
	if !ok {
		return nil
	}
	replaced, err := s.Spill(l.opts.Disk.Sealed(), l.last, l.cut)
	if err == nil {
		err = l.opts.Disk.Replace(replaced)
	}
	if err == nil {
		err = s.Tidy()
	}
	return err
}
