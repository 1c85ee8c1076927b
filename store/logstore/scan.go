package logstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// scan visits the records of a segment's image. It stops at the end of the
// image, after the seal, or where no valid record follows, and returns that
// offset.
func scan(img []byte, g *segment, seq uint32, visit func(r record) error) (end int, next uint32, sealed bool, err error) {
	off := headerSize
	for !sealed {
		r, ok := decodeHead(img, off)
		if !ok || r.seq != seq || !checkRecord(img, r, g.seed) {
			break
		}
		if r.seal && r.length != sealRecord {
			return off, seq, false, errors.New("wrong length of a seal")
		}
		if r.synced > off {
			return off, seq, false, errors.New("a record reports more durable bytes than were written")
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

// judge classifies an end of the log without a valid record. It returns nil if
// the record was never written, or was cut short by a crash. It returns an
// error if the record was damaged after it was completely written, or after it
// was known to be durable.
//
// Segments are zero before they are written. A write that was cut short leaves
// zeros there: whole sectors, or everything after some byte. Damage leaves
// neither.
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
		return false, fmt.Errorf("the later record at %d shows that this position was durable", at)
	}
	zeroSector := hasZeroSector(img, off, end)
	if !zeroSector && len(region)%4 == 0 && binary.LittleEndian.Uint32(img[end-4:]) == trailer {
		return false, errors.New("checksum mismatch in a completely written record")
	}
	if zeroSector || end-off < recordHead {
		return true, nil
	}
	r := headOf(img[off:], off)
	if r.length >= emptyRecord && r.length <= segmentStride {
		// The end of the record is missing, or lies behind the end of the file.
		if r.end() > len(img) || cutShort(img[r.end()-recordTrail:r.end()]) {
			return true, nil
		}
	}
	return false, errors.New("not a record, and not the start of one")
}

// cutShort reports whether a trailer was not written, or only in part.
func cutShort(b []byte) bool {
	whole := binary.LittleEndian.AppendUint32(nil, trailer)
	for n := range b {
		if bytes.Equal(b[:n], whole[:n]) && isZero(b[n:]) {
			return true
		}
	}
	return false
}

// hasZeroSector reports whether some sector is zero in the part that lies in
// [from, to).
func hasZeroSector(img []byte, from, to int) bool {
	for from < to {
		next := min((from/sectorSize+1)*sectorSize, to)
		if isZero(img[from:next]) {
			return true
		}
		from = next
	}
	return false
}

// laterRecord looks for a valid record after off that was written when the log
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

func isZero(b []byte) bool { return bytes.Count(b, []byte{0}) == len(b) }

// visitDone visits the done keys whose current entry is in this segment: either
// the expired ones or the others. It holds the whole segment in memory, which it returns,
// and the lock for a few keys at a time.
func (f *finder) visitDone(g *segment, expired bool, visit func(e *entry) bool) (img []byte, err error) {
	f.log.mu.Lock()
	size := g.written
	f.log.mu.Unlock()
	if img, err = f.log.image(g, size, nil); err != nil {
		return nil, err
	}
	stopped := errors.New("stopped")
	group := make([]entry, 0, 256)
	flush := func() error {
		f.keepCurrent(g, group, expired)
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
		return img, nil
	case err == nil && end < len(img):
		err = errors.New("record checksum mismatch")
	}
	if err != nil {
		return nil, f.log.dir.corrupt(g, end, err)
	}
	return img, nil
}

// keepCurrent clears the kind of all entries that must not be visited: entries without a place in
// the index, and those that have expired or those that have not.
func (f *finder) keepCurrent(g *segment, group []entry, expired bool) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	now := f.log.clock.Nanos()
	for i := range group {
		e := &group[i]
		if (now >= e.expires) != expired || !f.index.points(&e.digest, g.position(e.off)) {
			e.kind = 0
		}
	}
}
