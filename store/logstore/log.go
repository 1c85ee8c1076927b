package logstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/vfs"
)

// log is the segments of a store. It creates them ahead of use and deletes them whole.
type log struct {
	dir   *directory
	opts  *Options
	clock *clock.Clock

	// mu guards the fields below, and all parts of the store. Nothing blocks while it is
	// held: files are read and written without it. After a file read, the key is looked up
	// again under mu.
	mu       sync.Mutex
	segments segmentTable
	cache    cache
	active   *segment // where entries are appended
	spare    *segment // the next segment, created ahead
	writing  *segment // last segment of the writer; there is one writer at a time
	failed   error    // why the store stopped
	closed   bool

	// prepare is held while a segment is created or lengthened. Lock it before
	// mu.
	prepare sync.Mutex

	// deleting is held while files are deleted. Lock it before mu.
	deleting sync.Mutex
	needless []string // files that must be deleted before others

	background sync.WaitGroup // goroutines and calls for which Close waits
	wake       chan struct{}  // tells the maintenance that a segment was started
}

// usable returns an error if the store cannot be used.
func (l *log) usable() error {
	if l.failed != nil {
		return l.failed
	}
	if l.closed {
		return errClosed
	}
	return nil
}

// fail stops the store. Writes since the last sync may be lost, and no later
// sync can prove that they are not.
func (l *log) fail(cause error) {
	if l.failed == nil {
		l.failed = fmt.Errorf("logstore: %w: reopen the store: %w", semel.ErrStoreFailed, cause)
	}
}

// end returns where the log ends.
func (l *log) end() logEnd { return logEnd{l.active.num, l.active.next} }

// stopIfUnsynced stops the store if err is a sync error.
func (l *log) stopIfUnsynced(err error) error {
	var unsynced *syncError
	if errors.As(err, &unsynced) {
		l.fail(err)
		return l.failed
	}
	return err
}

// The first segment, and each extension at an open, is small. Later segments
// grow up to Options.SegmentSize. A small store therefore takes little space,
// and an open does not wait until many zeros are written.
const (
	firstSize  = 1 << 20
	sizeGrowth = 4
	// resumedZeros is how much of the extension at an open has zeros. The first sync
	// writes them, and a process that opens the store for one key waits for it.
	resumedZeros = 64 << 10
)

// wantsSpare reports whether this process has used half of the room of the active segment. A
// process that writes little creates no segment, however much earlier ones wrote. The caller
// holds the lock.
func (l *log) wantsSpare() bool {
	g := l.active
	return l.spare == nil && g.next-g.memFrom > (g.limit-g.memFrom)/2
}

// segmentSize returns the size of segments: several must fit into the memory of the index,
// so that the oldest can leave it.
func (l *log) segmentSize() int {
	return int(min(l.opts.SegmentSize, max(l.opts.MaxIndexBytes/8, minSegmentSize)))
}

// prepareSpare creates the next segment, of at least the given size.
func (l *log) prepareSpare(least int) error {
	l.prepare.Lock()
	defer l.prepare.Unlock()
	l.mu.Lock()
	spare, num, oldest, err := l.spare, l.active.num+1, l.segments.swept, l.usable()
	size := min(l.active.limit*sizeGrowth, l.segmentSize())
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if spare != nil {
		return l.lengthen(spare, least)
	}
	if num-oldest >= ringSize {
		return fmt.Errorf("logstore: %d segments are in use, which is the limit: use larger segments or shorter windows: %w",
			num-oldest, semel.ErrStoreFull)
	}
	if least > segmentStride {
		return invalid("an entry of %d bytes does not fit into a segment of %d", least, segmentStride)
	}
	spare, err = l.createLargest(num, size, least)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		return l.stopIfUnsynced(err)
	}
	l.spare = spare
	return nil
}

// createLargest creates a segment of the given size, or a smaller one if the
// disk is nearly full.
func (l *log) createLargest(num uint32, size, least int) (*segment, error) {
	size = max(size, least)
	for {
		g, err := l.createSegment(num, size)
		if !errors.Is(err, syscall.ENOSPC) || size == max(least, minSegmentSize) {
			return g, refusal(err)
		}
		size = max(size/4&^7, least, minSegmentSize)
	}
}

// createSegment creates a durable, allocated segment without records. It
// creates the file under a temporary name and renames it, so that a segment
// file always has a valid header.
func (l *log) createSegment(num uint32, size int) (*segment, error) {
	base := l.clock.Nanos() / tickNanos
	g := newSegment(num, base, encodeHeader(num, l.dir.id.store, base))
	name, temp := filepath.Join(l.dir.path, segmentName(num)), filepath.Join(l.dir.path, segmentName(num)+".tmp")
	file, err := l.makeSegmentFile(temp, encodeHeader(num, l.dir.id.store, base), size)
	if err == nil {
		err = l.dir.fs.Rename(temp, name)
	}
	if err == nil {
		err = syncFailed(l.dir.fs.SyncDir(l.dir.path))
	}
	if err != nil {
		if file != nil {
			err = errors.Join(err, file.Close())
		}
		return nil, fmt.Errorf("logstore: create segment %d: %w", num, err)
	}
	g.file, g.limit = file, size
	return g, nil
}

// tempSuffix is the name suffix of a segment that is being created.
const tempSuffix = ".seg.tmp"

func (l *log) makeSegmentFile(temp string, header []byte, size int) (vfs.File, error) {
	if err := l.dir.removeIfThere(temp); err != nil {
		return nil, err
	}
	file, err := l.dir.fs.Create(temp)
	if err != nil {
		return nil, err
	}
	if err = extend(file, 0, size); err == nil {
		_, err = file.WriteAt(header, 0)
	}
	if err == nil {
		err = syncFailed(file.Sync())
	}
	if err != nil {
		return nil, errors.Join(err, file.Close(), l.dir.fs.Remove(temp))
	}
	return file, nil
}

// extend allocates a file from one length to another and writes zeros there, so that a
// later sync of data in that range does not wait for the file system's journal.
func extend(file vfs.File, from, to int) error {
	if err := file.Allocate(int64(to)); err != nil {
		return err
	}
	return writeZeros(file, from, to)
}

// writeZeros writes and syncs in steps: a large write would need a large sync, and other
// syncs can run between the steps.
func writeZeros(file vfs.File, from, to int) error {
	const (
		step      = 64 << 10
		syncEvery = 4 << 20
	)
	zeros := make([]byte, min(step, to-from))
	for off := from; off < to; off += len(zeros) {
		if _, err := file.WriteAt(zeros[:min(len(zeros), to-off)], int64(off)); err != nil {
			return err
		}
		if (off-from)%syncEvery == syncEvery-step {
			if err := file.Sync(); err != nil {
				return syncFailed(err)
			}
		}
	}
	return nil
}

// allocate lengthens the active segment, for a transaction.
func (l *log) allocate(g *segment, least int) error {
	l.prepare.Lock()
	defer l.prepare.Unlock()
	return l.lengthen(g, least)
}

// lengthen allocates more of a segment. The caller holds l.prepare.
func (l *log) lengthen(g *segment, least int) error {
	l.mu.Lock()
	limit := g.limit
	l.mu.Unlock()
	if least <= limit {
		return nil
	}
	if least > segmentStride {
		return invalid("a record of %d bytes does not fit into a segment of %d", least, segmentStride)
	}
	if err := g.file.Allocate(int64(least)); err != nil {
		return refusal(fmt.Errorf("logstore: lengthen segment %d: %w", g.num, err))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	g.limit = least
	return nil
}

// refusal classifies an error that occurred before anything was written.
func refusal(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC):
		return fmt.Errorf("%w: %w", semel.ErrStoreFull, err)
	}
	return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
}

// image reads the written part of a segment.
func (l *log) image(g *segment, size int, buf []byte) ([]byte, error) {
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if n, err := g.file.ReadAt(buf, 0); n < size {
		return nil, l.dir.corrupt(g, n, fmt.Errorf("cannot read the segment: %w", err))
	}
	return buf, nil
}

// keepChunk reads a chunk into memory, where it stays until newer ones need the space. A
// failed read is left to the caller who needs the data.
func (l *log) keepChunk(c residentChunk) {
	g, i := c.segment, c.index
	b := make([]byte, chunkSize)
	if n, _ := g.file.ReadAt(b, int64(i)<<chunkBits); n < len(b) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.dead || i < len(g.chunks) && g.chunks[i] != nil || !l.cache.room() {
		return
	}
	l.cache.keep(c, b)
}

// unpin releases a pin.
func (l *log) unpin(g *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unpinLocked(g)
}

// unpinLocked releases a pin. The caller holds the lock.
func (l *log) unpinLocked(g *segment) {
	g.pins--
	g.closeIfUnused()
}

// deleteSegment deletes a segment. Current readers can finish.
func (l *log) deleteSegment(g *segment) error {
	l.mu.Lock()
	if l.segments.byNum(g.num) == g {
		l.segments.ring[g.num%ringSize] = nil
	}
	g.dead = true
	g.closeIfUnused()
	l.mu.Unlock()
	return l.deleteFiles(segmentName(g.num))
}

// deleteFiles deletes files in the order in which they became needless, also on the disk,
// because an open takes a gap for damage. The file next to a run leaves no gap. If it fails,
// the next call begins where this one ended.
func (l *log) deleteFiles(names ...string) error {
	l.deleting.Lock()
	defer l.deleting.Unlock()
	l.needless = append(l.needless, names...)
	for len(l.needless) > 0 {
		name := l.needless[0]
		if err := l.dir.removeIfThere(filepath.Join(l.dir.path, name)); err != nil {
			return fmt.Errorf("logstore: delete %s: %w", name, err)
		}
		if len(l.needless) == 1 || filepath.Ext(name) != run.IndexSuffix {
			if err := l.syncDeletions(); err != nil {
				return err
			}
		}
		l.needless = l.needless[1:]
	}
	return nil
}

func (l *log) syncDeletions() error {
	err := syncFailed(l.dir.fs.SyncDir(l.dir.path))
	if err == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return fmt.Errorf("logstore: sync %s after deletions: %w", l.dir.path, l.stopIfUnsynced(err))
}

// closeFiles closes every segment. The store is not usable afterwards.
func (l *log) closeFiles() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for i, g := range l.segments.ring {
		if g != nil && g.file != nil && g.pins == 0 {
			errs = append(errs, g.file.Close())
			g.file = nil
		}
		if g != nil {
			g.dead = true // the last reader closes it
		}
		l.segments.ring[i] = nil
	}
	return errors.Join(errs...)
}

func (l *log) wakeMaintenance() {
	select {
	case l.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}
