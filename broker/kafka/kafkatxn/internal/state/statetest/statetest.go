// Package statetest has changelogs in memory, which states read and write through a state.Log.
// Only tests import it.
package statetest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
	"github.com/semel-dev/semel/test/faultfs"
	"github.com/semel-dev/semel/vfs"
)

// Changelog is the changelog of a state, in a topic in memory. As on brokers, the end of each
// transaction takes an offset too. A test uses the state between Restart, Write, Commit and
// Drop as a process does.
type Changelog[S state.State] struct {
	// Log and State are those of the present process.
	*state.Log
	State S
	// Records are the committed records and barriers of the topic, from the offset Begin on.
	// End is the offset behind them.
	Records    []*kgo.Record
	Begin, End int64

	tb       testing.TB
	opts     Options[S]
	dir      string // of the copy
	barriers map[int64]bool
	pending  int64 // DeleteLater deletes the records before it
}

// Options are the options of New.
type Options[S state.State] struct {
	// New makes an empty state, which may leave values in the copy on disk.
	New func(*state.Disk) S
	// Log has options of each log, without New and Disk.
	Log state.LogOptions
	// Files has the copy on disk. Nil means that there is no copy.
	Files vfs.FS
	// FileSize is how large a file of the copy must be for another one to begin. Defaults to
	// that of a Disk.
	FileSize int64
	// Random damages copies in a faultfs.FS, and is needed for DeleteLater. Nil means that
	// nothing is damaged.
	Random *rand.Rand
	// Discard says that the topic keeps no record, so that its memory does not grow.
	Discard bool
}

// New returns a changelog without records, and starts a process.
func New[S state.State](tb testing.TB, opts Options[S]) *Changelog[S] {
	tb.Helper()
	c := &Changelog[S]{tb: tb, opts: opts, dir: tb.TempDir(), barriers: map[int64]bool{}}
	if opts.Files != nil {
		tb.Cleanup(func() { c.Close() })
	}
	c.Restart()
	return c
}

func (c *Changelog[S]) must(err error) {
	c.tb.Helper()
	if err != nil {
		c.tb.Fatal(err)
	}
}

// Restart ends the process and starts another one. That has the state of the copy on disk,
// which may be damaged, and reads the rest up to a barrier.
func (c *Changelog[S]) Restart() S {
	c.tb.Helper()
	var disk *state.Disk
	if c.opts.Files != nil {
		if c.Log != nil {
			c.Close()
			c.damage()
		}
		disk = state.NewDisk(c.opts.Files, c.dir, ".state", state.ID{1})
		if c.opts.FileSize > 0 {
			disk.SetFileSize(c.opts.FileSize)
		}
	}
	c.Log = c.open(disk, &c.State)
	at, err := c.Start(c.Begin, 0, c.End)
	c.must(err)
	nonce := state.ID{1}
	binary.LittleEndian.PutUint64(nonce[8:], uint64(c.End))
	barrier := c.Barrier(nonce)
	barrier.Offset = c.End
	c.barriers[c.End] = true
	c.Records, c.End = append(c.Records, barrier), c.End+1
	if !c.read(c.Log, at, nonce) {
		c.tb.Fatalf("the barrier at %d was not reached", barrier.Offset)
	}
	return c.State
}

// Restored returns the state of a process that reads the whole topic and has no copy on disk.
// No transaction is open.
func (c *Changelog[S]) Restored() (s S) {
	c.tb.Helper()
	log := c.open(nil, &s)
	at, err := log.Start(c.Begin, 0, c.End)
	c.must(err)
	if c.read(log, at, state.ID{}) || log.Position() != c.Position() {
		c.tb.Fatalf("the topic was read up to %d, want %d", log.Position(), c.Position())
	}
	return s
}

// open returns a log that sets a state.
func (c *Changelog[S]) open(disk *state.Disk, s *S) *state.Log {
	c.tb.Helper()
	opts := c.opts.Log
	opts.Disk, opts.New = disk, func(d *state.Disk) state.State {
		*s = c.opts.New(d)
		return *s
	}
	log, err := state.OpenLog(c.tb.Context(), opts)
	c.must(err)
	return log
}

// read reads the topic from an offset on, in parts, and reports whether it reached the barrier
// of a nonce.
func (c *Changelog[S]) read(log *state.Log, at int64, nonce state.ID) (reached bool) {
	c.tb.Helper()
	for records := c.from(at); len(records) > 0 && !reached; {
		n := len(records)
		if c.opts.Random != nil {
			n = 1 + c.opts.Random.IntN(n)
		}
		var err error
		_, reached, err = log.Read(c.tb.Context(), records[:n], nonce)
		c.must(err)
		records = records[n:]
	}
	return reached
}

// from returns the records from an offset on.
func (c *Changelog[S]) from(at int64) []*kgo.Record {
	i, _ := slices.BinarySearchFunc(c.Records, at, func(r *kgo.Record, at int64) int { return cmp.Compare(r.Offset, at) })
	return c.Records[i:]
}

// Bytes returns the size of the records that count.
func (c *Changelog[S]) Bytes() (bytes int64) {
	for _, r := range c.from(c.Cut()) {
		if !c.barriers[r.Offset] {
			bytes += int64(len(r.Value))
		}
	}
	return bytes
}

// Write writes the records of the open transaction, and returns their bytes. Each has at most
// a number of bytes, unless one change needs more.
func (c *Changelog[S]) Write(most int) (values []byte) {
	c.tb.Helper()
	c.must(c.Log.Write(most, func(r *kgo.Record) {
		r.Offset = c.End
		c.End++
		if !c.opts.Discard {
			values = append(values, r.Value...)
		}
	}))
	return values
}

// Commit commits the open transaction, which was written.
func (c *Changelog[S]) Commit() {
	c.tb.Helper()
	before, written := c.Cut(), len(c.Written())
	c.store()
	c.must(c.Log.Commit())
	if at := c.Cut(); at < before || at > 0 && at >= c.Position() || written > 0 && c.Position() != c.End-1 {
		c.tb.Fatalf("the cut is at %d after one at %d, and the position at %d of %d", at, before, c.Position(), c.End)
	}
}

// Lose commits the open transaction, and the process ends without hearing of it.
func (c *Changelog[S]) Lose() S {
	c.tb.Helper()
	c.store()
	return c.Restart()
}

// Drop aborts the open transaction.
func (c *Changelog[S]) Drop() {
	if len(c.Written()) > 0 {
		c.End++
	}
	c.Log.Drop()
}

// store adds the records of the open transaction to the topic.
func (c *Changelog[S]) store() {
	for _, r := range c.Written() {
		if !c.opts.Discard {
			stored := *r
			stored.Value = bytes.Clone(r.Value)
			c.Records = append(c.Records, &stored)
		}
	}
	if len(c.Written()) > 0 {
		c.End++
	}
}

// Delete deletes the records before an offset.
func (c *Changelog[S]) Delete(at int64) {
	c.Begin = max(c.Begin, at)
	c.Records = c.from(c.Begin)
}

// DeleteLater deletes the records that did not count at an earlier call, and notes at random
// which ones do not count now. Brokers delete later, or the process ends before.
func (c *Changelog[S]) DeleteLater() {
	c.Delete(c.pending)
	if c.opts.Random.IntN(4) > 0 {
		c.pending = c.Cut()
	}
}

// damage does to the copy what may happen to a disk between two processes.
func (c *Changelog[S]) damage() {
	c.tb.Helper()
	disk, ok := c.opts.Files.(*faultfs.FS)
	if !ok || c.opts.Random == nil || len(disk.Files()) == 0 {
		return
	}
	files, random := disk.Files(), c.opts.Random
	switch random.IntN(8) {
	case 0:
		for _, name := range files {
			c.must(disk.Remove(name))
		}
	case 1:
		if !c.opts.Log.ByTime { // otherwise nothing shows that the first records are missing
			c.must(disk.Remove(files[0]))
		}
	case 2:
		file, err := disk.Open(files[len(files)-1])
		c.must(err)
		size, err := file.Size()
		c.must(errors.Join(err, file.Truncate(random.Int64N(size+1)), file.Close()))
	case 3:
		c.must(disk.FlipBit(files[random.IntN(len(files))], random.Int64N(state.HeaderSize), 3))
	}
}

// Sources are state.Sources whose text a test sets.
type Sources struct{ text *string }

// Set sets how far the sources have come in the open transaction.
func (s *Sources) Set(text string) { s.text = &text }

// Text implements state.Sources.
func (s *Sources) Text(stored string) string {
	if s.text == nil {
		return stored
	}
	return *s.text
}

// Forget implements state.Sources.
func (s *Sources) Forget() { s.text = nil }
