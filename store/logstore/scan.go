package logstore

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// scan visits the records of a segment's image and returns where they end: at
// the end of the image, at the seal, or where no valid record follows.
func scan(img []byte, g *segment, seq uint32, visit func(r record) error) (end int, next uint32, sealed bool, err error) {
	off := headerSize
	for !sealed {
		r, ok := decodeHead(img, off)
		if !ok || r.seq != seq || !checkRecord(img, r, g.seed) {
			break
		}
		if r.seal && r.length != sealRecord {
			return off, seq, false, errors.New("a seal has a wrong length")
		}
		if r.synced > off {
			return off, seq, false, errors.New("a record says that more was durable than was written")
		}
		if err := visit(r); err != nil {
			return off, seq, false, err
		}
		off, seq, sealed = r.end(), seq+1, r.seal
	}
	return off, seq, sealed, nil
}

// firstSeq returns the sequence number of the first record in an image.
func firstSeq(img []byte) uint32 {
	if len(img) < headerSize+recordHead {
		return 0
	}
	return headOf(img[headerSize:], headerSize).seq
}

// judge says what to make of an end of the log at which no valid record is: nil
// if it was never written, or cut short by a crash; an error if it was written
// in full and then damaged, or damaged after it was known to be durable.
//
// A write that was cut short leaves zeros where segments are zero beforehand:
// whole sectors of them, or everything behind some byte. Damage leaves neither.
func judge(img []byte, off int, seed, seq uint32) (torn bool, err error) {
	region := bytes.TrimRight(img[off:], "\x00")
	if len(region) == 0 {
		return false, nil
	}
	end := off + (len(region)+3)&^3
	if end > len(img) {
		end = len(img)
	}
	if at, ok := laterRecord(img[:end], off, seed, seq); ok {
		return false, fmt.Errorf("a later record, at %d, says that it was durable", at)
	}
	zeroSector := hasZeroSector(img, off, end)
	if !zeroSector && len(region)%4 == 0 && binary.LittleEndian.Uint32(img[end-4:]) == trailer {
		return false, errors.New("a record was written in full and fails its checksum")
	}
	if zeroSector || end-off < recordHead {
		return true, nil
	}
	r := headOf(img[off:], off)
	if r.length >= emptyRecord && r.length <= segmentStride {
		// The end of the record is not there, or lies behind the end of the file.
		if r.end() > len(img) || cutShort(img[r.end()-recordTrail:r.end()]) {
			return true, nil
		}
	}
	return false, errors.New("what is here is not a record, and not the beginning of one")
}

// cutShort reports whether a trailer was not, or only in part, written.
func cutShort(b []byte) bool {
	whole := binary.LittleEndian.AppendUint32(nil, trailer)
	for n := range b {
		if bytes.Equal(b[:n], whole[:n]) && len(bytes.Trim(b[n:], "\x00")) == 0 {
			return true
		}
	}
	return false
}

// hasZeroSector reports whether the part of some sector that lies in [from, to)
// is zero.
func hasZeroSector(img []byte, from, to int) bool {
	for from < to {
		next := min((from/sectorSize+1)*sectorSize, to)
		if len(bytes.Trim(img[from:next], "\x00")) == 0 {
			return true
		}
		from = next
	}
	return false
}

// laterRecord looks for a valid record behind off that was written when the log
// was known to be durable beyond off.
func laterRecord(img []byte, off int, seed, seq uint32) (int, bool) {
	const mostAhead = 1 << 24
	for at := off + 4; at+emptyRecord <= len(img); at += 4 {
		r, ok := decodeHead(img, at)
		if ok && r.synced > off && r.seq-seq-1 < mostAhead && checkRecord(img, r, seed) {
			return at, true
		}
	}
	return 0, false
}

// image reads a segment as far as it is written.
func (s *Store) image(g *segment, size int, buf []byte) ([]byte, error) {
	if cap(buf) < size {
		buf = make([]byte, size)
	}
	buf = buf[:size]
	if n, err := g.file.ReadAt(buf, 0); n < size {
		return nil, s.corrupt(g, n, fmt.Errorf("the segment cannot be read: %w", err))
	}
	return buf, nil
}

// listSegment yields the done keys of the first segment from num on.
func (s *Store) listSegment(ctx context.Context, num uint32, filter semel.ListOptions, yield func(semel.Record, error) bool) (listed uint32, more bool, err error) {
	if ctx.Err() != nil {
		return 0, false, interrupted(ctx)
	}
	s.mu.Lock()
	if err := s.usable(); err != nil {
		s.mu.Unlock()
		return 0, false, err
	}
	g := s.log.byNum(max(num, s.log.first))
	last := s.last
	active := g == s.active
	g.pin()
	s.mu.Unlock()
	defer s.unpin(g)
	if active && last != nil {
		// What was moved to the end of the log while it was listed is there now.
		if err := last.wait(ctx); err != nil {
			return 0, false, err
		}
	}
	more = true
	err = s.visitDone(g, false, func(e *entry) bool {
		var r semel.Record
		e.fill(&r)
		if matches(filter, &r) {
			more = yield(r, nil)
		}
		return more
	})
	return g.num, more && !active, err
}

// visitDone visits the keys that are done by an entry of this segment, those
// that are expired or the others. It holds the whole segment in memory, and the
// lock for a few keys at a time.
func (s *Store) visitDone(g *segment, expired bool, visit func(e *entry) bool) error {
	s.mu.Lock()
	size := g.written
	s.mu.Unlock()
	img, err := s.image(g, size, nil)
	if err != nil {
		return err
	}
	stopped := errors.New("stopped")
	group := make([]entry, 0, 256)
	flush := func() error {
		s.keepCurrent(g, group, expired)
		for i := range group {
			if group[i].kind == kindDone && !visit(&group[i]) {
				return stopped
			}
		}
		group = group[:0]
		return nil
	}
	end, _, _, err := scan(img, g, firstSeq(img), func(r record) error {
		if r.seal {
			return nil
		}
		err := walk(img, r, g.base, func(e entry) error {
			if e.kind != kindDone {
				return nil
			}
			group = append(group, e)
			if len(group) < cap(group) {
				return nil
			}
			return flush()
		})
		if err != nil {
			return err
		}
		return flush()
	})
	switch {
	case errors.Is(err, stopped):
		return nil
	case err == nil && end < size:
		err = errors.New("a record fails its checksum")
	}
	if err != nil {
		return s.corrupt(g, end, err)
	}
	return nil
}

// keepCurrent clears the kind of the entries that the index does not, or no
// longer, point to, and of those that are expired, or that are not.
func (s *Store) keepCurrent(g *segment, group []entry, expired bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Nanos()
	for i := range group {
		e := &group[i]
		if (now >= e.expires) != expired || !s.index.points(&e.digest, g.position(e.off)) {
			e.kind = 0
		}
	}
}
