package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"syscall"

	"github.com/semel-dev/semel"
)

// slack is the space that every segment keeps free after a record: the end of
// the open record, the start of another, the empty record of a close, and the
// seal.
const slack = 3*recordExtra + sealRecord

// The first segment, and each extension at an open, is small. Later segments
// grow up to Options.SegmentSize. A small store therefore takes little space,
// and an open does not wait until many zeros are written.
const (
	firstSize  = 1 << 20
	sizeGrowth = 4
)

// reserve reserves room for n bytes of entries at the end of the log, in a new
// segment if necessary. The blocks of a segment are allocated when it is
// created. A full disk therefore refuses a change here, before anything was
// changed. moved reports whether reserve released the lock in between. The
// caller must then pass the gate again.
func (s *Store) reserve(n int) (moved bool, err error) {
	if n == noRoom {
		return false, nil
	}
	g := s.active
	need := n + slack
	if g.next+need <= g.limit && !s.worn(g) {
		return false, nil
	}
	if s.spare != nil && headerSize+need <= s.spare.limit {
		s.rotate()
		return false, nil
	}
	s.mu.Unlock()
	defer s.mu.Lock()
	return true, s.prepareSpare(headerSize + need)
}

// worn reports whether a segment is so old that more entries in it would keep
// its first entries far beyond their windows.
func (s *Store) worn(g *segment) bool {
	const minute = int64(60e9)
	if g.window == 0 || g.next < int(min(1<<20, s.opts.SegmentSize/4)) {
		return false
	}
	return s.clock.Nanos()-g.summary.first > max(g.window*tickNanos/8, minute)
}

// rotate continues in the spare segment. The writer seals the full segment
// before it writes into the next.
func (s *Store) rotate() {
	if s.open != nil {
		s.closeBatch(s.open)
	}
	s.seq++
	s.active.sealSeq = s.seq
	s.active, s.spare = s.spare, nil
	s.log.ring[s.active.num%ringSize] = s.active
	s.wakeMaintenance()
}

func (s *Store) wakeMaintenance() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}

// prepareSpare creates the next segment, of at least the given size.
func (s *Store) prepareSpare(least int) error {
	s.prepare.Lock()
	defer s.prepare.Unlock()
	s.mu.Lock()
	spare, num, oldest, err := s.spare, s.active.num+1, s.log.swept, s.usable()
	size := min(s.active.limit*sizeGrowth, int(s.opts.SegmentSize))
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if spare != nil {
		return s.lengthen(spare, least)
	}
	if num-oldest >= ringSize {
		return fmt.Errorf("logstore: %d segments are in use, which is the limit: use larger segments or shorter windows: %w",
			num-oldest, semel.ErrStoreFull)
	}
	if least > segmentStride {
		return invalid("an entry of %d bytes does not fit into a segment of %d", least, segmentStride)
	}
	spare, err = s.createLargest(num, size, least)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		return s.stopIfUnsynced(err)
	}
	s.spare = spare
	return nil
}

// stopIfUnsynced stops the store if err is a sync error.
func (s *Store) stopIfUnsynced(err error) error {
	var unsynced *syncError
	if errors.As(err, &unsynced) {
		s.fail(err)
		return s.failed
	}
	return err
}

// createLargest creates a segment of the given size, or a smaller one if the
// disk is nearly full.
func (s *Store) createLargest(num uint32, size, least int) (*segment, error) {
	size = max(size, least)
	for {
		g, err := s.createSegment(num, size)
		if !errors.Is(err, syscall.ENOSPC) || size == max(least, minSegmentSize) {
			return g, refusal(err)
		}
		size = max(size/4&^7, least, minSegmentSize)
	}
}

// allocate lengthens the active segment, for a transaction.
func (s *Store) allocate(g *segment, least int) error {
	s.prepare.Lock()
	defer s.prepare.Unlock()
	return s.lengthen(g, least)
}

// lengthen allocates more of a segment. The caller holds s.prepare.
func (s *Store) lengthen(g *segment, least int) error {
	s.mu.Lock()
	limit := g.limit
	s.mu.Unlock()
	if least <= limit {
		return nil
	}
	if least > segmentStride {
		return invalid("a record of %d bytes does not fit into a segment of %d", least, segmentStride)
	}
	if err := g.file.Allocate(int64(least)); err != nil {
		return refusal(fmt.Errorf("logstore: lengthen segment %d: %w", g.num, err))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
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

// sealSegment ends a full segment with its summary. It syncs the segment under
// every sync policy, so that only the last segment can have a torn end.
func (s *Store) sealSegment(g *segment) error {
	s.mu.Lock()
	r := record{off: g.next, length: sealRecord, time: g.summary.last, synced: g.synced, seq: g.sealSeq, seal: true}
	body := g.summary.encode(nil)
	s.mu.Unlock()
	b := make([]byte, 0, sealRecord)
	b = append(append(b, make([]byte, recordHead)...), body...)
	b = binary.LittleEndian.AppendUint32(b, trailer)
	r.encodeHead(b)
	binary.LittleEndian.PutUint32(b, crc32.Update(g.seed, castagnoli, b[4:len(b)-recordTrail]))
	if _, err := g.file.WriteAt(b, int64(r.off)); err != nil {
		return fmt.Errorf("seal segment %d: %w", g.num, err)
	}
	if err := g.file.Truncate(int64(r.end())); err != nil {
		return fmt.Errorf("seal segment %d: %w", g.num, err)
	}
	if err := s.syncSegment(g, r.end()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g.sealed = true
	g.limit = r.end()
	return nil
}
