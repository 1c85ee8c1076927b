package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// op is the scratch space of one call.
type op struct {
	store   *Store
	digests []semel.Digest
	owners  digest.Owners
	reads   []read
	order   []uint64           // of reads: positions and numbers
	results []reading          // of reads
	touched []residentChunk    // the chunk of each read of a file, among zeros
	known   map[uint64]reading // results of file reads, by position
	request int                // the request whose key find looks up, for transactions
	live    []liveKey          // by request, keys that a read found; zero if it found none
	led     []*batch           // batches that this call must write
	wait    *batch             // the latest batch that its answers depend on
	found   found
	now     int64 // the time of the run, the same for all its keys
	buf     []byte
	scratch [compactMost]byte
}

// read is an entry that must be read from a file.
type read struct {
	pos     uint64
	segment *segment
	digest  semel.Digest // of the key to find
	request int          // whose key it is
}

// liveKey is what a transaction needs of a key that is done.
type liveKey struct {
	expires int64
	print   uint64
}

// reading is the result of a read.
type reading struct {
	entry entry
	err   error
}

// maxKept limits the size of scratch space that is kept for later calls.
const maxKept = 1 << 20

func (s *Store) newOp() *op { return s.ops.Get().(*op) }

func (o *op) free() {
	if cap(o.buf) > maxKept || cap(o.digests)*16 > maxKept {
		return
	}
	o.digests, o.reads, o.wait = o.digests[:0], o.reads[:0], nil
	o.found = found{}
	o.owners = digest.Owners{} // do not keep the caller's name
	clear(o.led)
	o.led = o.led[:0]
	clear(o.known)
	o.store.ops.Put(o)
}

// checkOfOwner returns the check of the owner of a Done claim. 0 means no
// owner.
func (o *op) checkOfOwner(owner *semel.Owner) uint32 {
	if *owner == (semel.Owner{}) {
		return 0
	}
	o.owners.Hasher = o.store.hasher
	d := o.owners.Of(owner)
	return max(binary.LittleEndian.Uint32(d[:]), 1)
}

// waitFor makes the call wait for a batch.
func (o *op) waitFor(b *batch) {
	if b != nil && (o.wait == nil || int32(b.seq-o.wait.seq) > 0) {
		o.wait = b
	}
}

// found is a key's entry in the log. It is valid until the next find. If find
// found no entry, pos and entry are not valid.
type found struct {
	shard *shard
	slot  int
	pos   uint64
	entry entry
}

// find looks up a digest. It compares the whole digest in the log for every
// slot with a matching tag. If that takes a file read, it adds the read to
// o.reads and returns pending. The caller must then read and call find again.
// If the key is not found, f.slot is the slot where it belongs.
func (s *Store) find(o *op, d *semel.Digest) (f *found, ok, pending bool, err error) {
	f = &o.found
	sh, tag := split(d)
	x := &s.index.shards[sh]
	at := x.seek(tag)
	for i := at; x.has(i, tag); i++ {
		pos := x.pos(i)
		g := s.log.at(pos)
		if g == nil {
			continue // deleted with its segment
		}
		e, same, inMemory := s.inMemory(o, g, offset(pos), d)
		if !inMemory {
			r, known := o.known[pos]
			if known && r.entry.kind == 0 && r.entry.digest == *d {
				delete(o.known, pos) // the read was for another key with this tag
				known = false
			}
			if !known {
				g.pin()
				o.reads = append(o.reads, read{pos, g, *d, o.request})
				pending = true
				continue
			}
			if r.err != nil {
				return f, false, false, r.err
			}
			e, same = r.entry, r.entry.digest == *d
		}
		if same {
			f.shard, f.slot, f.pos, f.entry = x, i, pos, e
			return f, true, false, nil
		}
	}
	f.shard, f.slot = x, at
	return f, false, pending, nil
}

// inMemory compares a digest with the entry at an offset, if that entry is in memory. If it
// came from the file and is not the same, it may be damaged: the reading of the file finds out.
func (s *Store) inMemory(o *op, g *segment, off int, d *semel.Digest) (e entry, same, ok bool) {
	head, ok := g.memory(off, entryHead, o.scratch[:])
	if !ok || semel.Digest(head[:16]) != *d {
		return e, false, ok && !g.unchecked(off, entryHead)
	}
	size := entrySize(binary.LittleEndian.Uint32(head[16:]))
	if cap(o.buf) < size {
		o.buf = make([]byte, size)
	}
	b, ok := g.memory(off, size, o.buf[:0:cap(o.buf)])
	if !ok {
		return e, false, false
	}
	e, same = decodeEntry(b, g.base)
	return e, same, same || !g.unchecked(off, size)
}

// unchecked reports whether a part of the n bytes at off, which are in memory, came from the file.
func (g *segment) unchecked(off, n int) bool {
	return g.fromFile[off>>chunkBits] || g.fromFile[(off+n-1)>>chunkBits]
}

// readAll does the queued reads without the lock, and keeps the results in o.known.
func (s *Store) readAll(o *op) {
	if o.known == nil {
		o.known = make(map[uint64]reading)
	}
	s.readQueued(o, func(r *read, is reading) { o.known[r.pos] = is })
}

const (
	// Entries that are this near to each other are read together, because to copy the
	// bytes between them takes less time than another call of the system.
	readGap = 2 << 10
	// readMost bounds the bytes of one read.
	readMost = 64 << 10

	// readLeast is the number of reads for which another goroutine is worth its start.
	readLeast = 128

	readBits = 64 - posBits // for the number of a read
)

// readQueued does the queued reads without the lock, in the order of their places. Then it
// passes each result to got.
func (s *Store) readQueued(o *op, got func(r *read, is reading)) {
	n := len(o.reads)
	o.order = o.order[:0]
	for i := range o.reads {
		o.order = append(o.order, o.reads[i].pos<<readBits|uint64(i))
	}
	slices.Sort(o.order)
	o.touched = append(o.touched[:0], make([]residentChunk, n)...)
	o.results = append(o.results[:0], make([]reading, n)...)
	parts := max(1, min(runtime.GOMAXPROCS(0), n/readLeast))
	var others sync.WaitGroup
	for part := 1; part < parts; part++ {
		others.Go(func() { s.readPart(o, part*n/parts, (part+1)*n/parts, nil) })
	}
	o.buf = s.readPart(o, 0, n/parts, o.buf)
	others.Wait()
	for i := range o.reads {
		got(&o.reads[i], o.results[i])
	}
	clear(o.results) // do not keep a result of a key
	s.unpinAll(o)
}

// readPart does the reads from one place in o.order to another. Several goroutines do
// different parts. It returns its buffer.
func (s *Store) readPart(o *op, from, to int, buf []byte) []byte {
	queued := func(n int) *read { return &o.reads[o.order[n]&(1<<readBits-1)] }
	for from < to {
		first := queued(from)
		start := offset(first.pos)
		end, next := start+compactMost, from+1
		for ; next < to; next++ {
			r := queued(next)
			off := offset(r.pos)
			if r.segment != first.segment || off > end+readGap || off+compactMost-start > readMost {
				break
			}
			end = off + compactMost
		}
		if cap(buf) < end-start {
			buf = make([]byte, min(2*(end-start), readMost))
		}
		b := buf[:end-start]
		n, err := first.segment.file.ReadAt(b, int64(start))
		o.touched[from] = residentChunk{first.segment, start >> chunkBits}
		for ; from < next; from++ {
			r, result := queued(from), &o.results[o.order[from]&(1<<readBits-1)]
			at := offset(r.pos) - start
			if n < at+entryHead {
				result.err = s.corrupt(r.segment, offset(r.pos), errors.Join(errors.New("cannot read an entry"), err))
				continue
			}
			*result = s.readEntry(r, b[at:n])
		}
	}
	return buf
}

// unpinAll ends the queued reads. It keeps chunks in memory that were read often.
func (s *Store) unpinAll(o *op) {
	s.mu.Lock()
	worth := o.touched[:0]
	for _, c := range o.touched {
		if c.segment != nil && s.countRead(c) {
			worth = append(worth, c)
		}
	}
	s.mu.Unlock()
	for _, c := range worth {
		s.keepChunk(c)
	}
	clear(o.touched) // do not keep a deleted segment
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range o.reads {
		s.unpinLocked(o.reads[i].segment)
		o.reads[i].segment = nil
	}
	o.reads = o.reads[:0]
}

// readEntry returns the entry of a read, whose first bytes are b. If the entry has another
// key than expected, either two keys share a tag, which is rare, or the file is corrupt.
// Then readEntry verifies the whole record, so that corruption never makes a key look new.
func (s *Store) readEntry(r *read, b []byte) reading {
	g, off := r.segment, offset(r.pos)
	e := entry{digest: semel.Digest(b[:16])}
	if e.digest == r.digest {
		if size := entrySize(binary.LittleEndian.Uint32(b[16:])); size > len(b) {
			b = make([]byte, size)
			if n, err := g.file.ReadAt(b, int64(off)); n < size {
				return reading{err: s.corrupt(g, off, errors.Join(errors.New("cannot read an entry"), err))}
			}
		}
		if whole, ok := decodeEntry(b, g.base); ok {
			return reading{entry: whole}
		}
	}
	if err := s.verifyAround(g, off); err != nil {
		return reading{err: err}
	}
	return reading{entry: e}
}

// corrupt returns a CorruptError for an offset of a segment.
func (s *Store) corrupt(g *segment, off int, err error) error {
	return &CorruptError{File: filepath.Join(s.dir, segmentName(g.num)), Offset: int64(off), Err: err}
}

// verifyAround reads and verifies the record that contains an offset.
func (s *Store) verifyAround(g *segment, off int) error {
	r, err := s.recordAround(g, off)
	if err != nil {
		return err
	}
	img := make([]byte, r.length)
	if n, err := g.file.ReadAt(img, int64(r.off)); n < r.length {
		return s.corrupt(g, r.off, errors.Join(errors.New("cannot read a record"), err))
	}
	whole := r
	whole.off = 0
	if !checkRecord(img, whole, g.seed) {
		return s.corrupt(g, r.off, errors.New("record checksum mismatch"))
	}
	return nil
}

// recordAround finds the header of the record that contains an offset. It
// starts at a known record and follows the record lengths.
func (s *Store) recordAround(g *segment, off int) (record, error) {
	s.mu.Lock()
	at, limit := g.markBefore(off), g.next
	s.mu.Unlock()
	var b []byte // bytes of the file from begin on
	begin := at
	for {
		if at-begin+recordHead > len(b) {
			begin = at
			b = make([]byte, max(min(off-at, chunkSize), recordHead))
			if n, err := g.file.ReadAt(b, int64(at)); n < len(b) {
				return record{}, s.corrupt(g, at, errors.Join(errors.New("cannot read a record"), err))
			}
		}
		r := headOf(b[at-begin:], at)
		if r.length < emptyRecord || r.end() > limit {
			return r, s.corrupt(g, at, errors.New("damaged record header"))
		}
		if off < r.end() {
			return r, nil
		}
		at = r.end()
	}
}

// each makes the changes of a call, in runs that hold the lock for a bounded
// time. room(i) is an upper bound of the bytes that request i adds to the log.
// decide(i) answers request i, or returns false if it must read first. Then
// plan queues the reads of the requests behind it, so that one step makes all
// reads of a run.
func (s *Store) each(ctx context.Context, o *op, n int, room func(i int) int, plan func(i int), decide func(i int) bool) error {
	for i := 0; i < n; {
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		if err := s.enter(ctx); err != nil {
			return err
		}
		o.now = s.clock.Nanos()
		j, bytes := runEnd(i, n, room)
		moved, err := s.reserve(bytes)
		if moved || err != nil {
			s.mu.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		for ahead := i; i < j; i++ {
			if i == ahead && j-i > 1 && i < len(o.digests) { // some calls find their keys only when they decide
				ahead = min(i+touchAhead, j)
				near := o.digests[i:min(ahead, len(o.digests))]
				s.index.touch(near)
				s.claims.Touch(near)
			}
			if !decide(i) {
				break
			}
		}
		if len(o.reads) > 0 {
			for k := i + 1; k < j; k++ {
				plan(k)
			}
		}
		s.mu.Unlock()
		if len(o.reads) > 0 {
			s.readAll(o)
		} else {
			clear(o.known)
		}
	}
	return nil
}

// touchAhead is the number of keys whose table slots are loaded together. It is
// large enough to overlap their latencies. It is small enough that the slots
// are still in the first-level cache when they are used.
const touchAhead = 64

// noRoom is the room of a request that adds nothing to the log.
const noRoom = -1

// runEnd returns the end of the run that starts at i.
func runEnd(i, n int, room func(i int) int) (j, bytes int) {
	const (
		mostRequests = 1024
		mostBytes    = 1 << 20
	)
	bytes = room(i) // noRoom only if no request of the run needs room
	for j = i + 1; j < n && j-i < mostRequests; j++ {
		more := room(j)
		if more == noRoom {
			continue
		}
		if max(bytes, 0)+more > mostBytes {
			break
		}
		bytes = max(bytes, 0) + more
	}
	return j, bytes
}

// pendingAt returns the unwritten batch that contains a position, or nil.
func (s *Store) pendingAt(pos uint64) *batch {
	g, off := s.log.at(pos), offset(pos)
	if off < g.written {
		return nil
	}
	b := s.last
	for b != nil && b.prev != nil && (b.segment != g || b.start > off) {
		b = b.prev
	}
	return b
}
