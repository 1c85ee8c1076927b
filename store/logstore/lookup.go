package logstore

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// op is the scratch space of one call.
type op struct {
	pool      *sync.Pool // to which it returns
	hasher    digest.Hasher
	digests   []semel.Digest
	owners    digest.Owners
	reads     []read
	order     []uint64           // of reads: positions and numbers
	results   []reading          // of reads
	touched   []residentChunk    // the chunk of each read of a file, among zeros
	known     map[uint64]reading // results of file reads, by position
	blocks    []runRead          // blocks of runs that must be read
	inRuns    map[runKey]reading // results of their reads
	screen    screen             // of the runs
	request   int                // the request whose key find looks up
	live      []liveKey          // by request, keys that a read found; zero if it found none
	led       []*batch           // batches that this call must write
	wait      *batch             // the latest batch that its answers depend on
	found     found
	maintains bool  // a call of the maintenance, which makes room itself
	now       int64 // the time of the run, the same for all its keys
	buf       []byte
	scratch   [compactMost]byte
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

func (o *op) free() {
	if cap(o.buf) > maxKept || cap(o.digests)*16 > maxKept {
		return
	}
	o.digests, o.reads, o.blocks, o.wait = o.digests[:0], o.reads[:0], o.blocks[:0], nil
	o.found = found{}
	o.screen.begin(nil)
	o.owners = digest.Owners{} // do not keep the caller's name
	clear(o.led)
	o.led = o.led[:0]
	o.maintains = false
	o.forgetReads()
	o.pool.Put(o)
}

// mustRead reports whether reads are queued.
func (o *op) mustRead() bool { return len(o.reads)+len(o.blocks) > 0 }

// forgetReads forgets the results of reads.
func (o *op) forgetReads() {
	clear(o.known)
	clear(o.inRuns)
}

// checkOfOwner returns the check of the owner of a Done claim. 0 means no
// owner.
func (o *op) checkOfOwner(owner *semel.Owner) uint32 {
	if *owner == (semel.Owner{}) {
		return 0
	}
	o.owners.Hasher = o.hasher
	d := o.owners.Of(owner)
	return max(binary.LittleEndian.Uint32(d[:]), 1)
}

// waitFor makes the call wait for a batch.
func (o *op) waitFor(b *batch) {
	if b != nil && (o.wait == nil || int32(b.seq-o.wait.seq) > 0) {
		o.wait = b
	}
}

// keep keeps the result of a read. A live key stays as it is while the transaction is
// open, so it need not be looked up again.
func (o *op) keep(r *read, is reading, now int64) {
	if !o.keepLive(r.request, &r.digest, &is, now) {
		o.put(r, is)
	}
}

// keepBlock is keep for a block of a run.
func (o *op) keepBlock(r *runRead, is reading, now int64) {
	if !o.keepLive(r.request, &r.digest, &is, now) {
		o.putBlock(r, is)
	}
}

func (o *op) keepLive(request int, d *semel.Digest, is *reading, now int64) bool {
	live := is.err == nil && is.entry.kind == kindDone && is.entry.digest == *d && now < is.entry.expires
	if live {
		o.live[request] = liveKey{is.entry.expires, is.entry.print}
	}
	return live
}

// put keeps the result of a read for the next find.
func (o *op) put(r *read, is reading) {
	if o.known == nil {
		o.known = make(map[uint64]reading)
	}
	o.known[r.pos] = is
}

// putBlock is put for a block of a run.
func (o *op) putBlock(r *runRead, is reading) {
	if o.inRuns == nil {
		o.inRuns = make(map[runKey]reading)
	}
	o.inRuns[runKey{r.run, r.digest}] = is
}

// found is a key's entry, in the log or in a run. It is valid until the next find. If find
// found no entry, pos and entry are not valid. In a run, an entry has no position.
type found struct {
	run   *sortedRun // nil in the log
	shard *shard
	slot  int
	pos   uint64
	entry entry
}

// finder finds the entry of a key: the index has its place in the log, and the runs have
// the keys that have left memory.
type finder struct {
	log   *log
	index index
	runs  runs
}

// touch loads where the index and the log have digests. Loads that do not depend on each other
// overlap their latencies, as in [index.touch]. It is not inlined for the same reason.
//
//go:noinline
func (f *finder) touch(digests []semel.Digest) (sum uint64) {
	sum = f.index.touch(digests)
	for i := range digests {
		sh, tag := split(&digests[i])
		x := &f.index.shards[sh]
		at := x.seek(tag)
		if !x.has(at, tag) {
			continue
		}
		pos := x.pos(at)
		if g, off := f.log.segments.at(pos), offset(pos); g != nil && g.holds(off) {
			sum += uint64(g.chunks[off>>chunkBits][off&(chunkSize-1)])
		}
	}
	return sum
}

// plan queues the reads that the decision on a key needs.
func (f *finder) plan(o *op, d *semel.Digest) {
	sh, tag := split(d)
	if x := &f.index.shards[sh]; len(f.runs.list) > 0 || x.has(x.seek(tag), tag) {
		_, _, _, _ = f.find(o, d) // decide handles the errors
	}
}

// find looks up a digest. It compares the whole digest in the log for every
// slot with a matching tag. If that takes a file read, it adds the read to
// o.reads and returns pending. The caller must then read and call find again.
// If the key is not found, hit.slot is the slot where it belongs.
func (f *finder) find(o *op, d *semel.Digest) (hit *found, ok, pending bool, err error) {
	hit = &o.found
	sh, tag := split(d)
	x := &f.index.shards[sh]
	at := x.seek(tag)
	for i := at; x.has(i, tag); i++ {
		pos := x.pos(i)
		g := f.log.segments.at(pos)
		if g == nil {
			continue // deleted with its segment
		}
		e, same, inMemory := f.inMemory(o, g, offset(pos), d)
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
				return hit, false, false, r.err
			}
			e, same = r.entry, r.entry.digest == *d
		}
		if same {
			*hit = found{nil, x, i, pos, e}
			return hit, true, false, nil
		}
	}
	hit.run, hit.shard, hit.slot = nil, x, at
	if !pending && len(f.runs.list) > 0 {
		ok, pending, err = f.findSpilled(o, d, hit)
	}
	return hit, ok, pending, err
}

// inMemory compares a digest with the entry at an offset, if that entry is in memory. If it
// came from the file and is not the same, it may be damaged: the reading of the file finds out.
func (f *finder) inMemory(o *op, g *segment, off int, d *semel.Digest) (e entry, same, ok bool) {
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

// readAll does the queued reads without the lock, and keeps the results for the next find.
func (f *finder) readAll(o *op) {
	f.readQueued(o, o.put)
	f.readBlocks(o, o.putBlock)
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
func (f *finder) readQueued(o *op, got func(r *read, is reading)) {
	n := len(o.reads)
	if n == 0 {
		return
	}
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
		others.Go(func() { f.readPart(o, part*n/parts, (part+1)*n/parts, nil) })
	}
	o.buf = f.readPart(o, 0, n/parts, o.buf)
	others.Wait()
	for i := range o.reads {
		got(&o.reads[i], o.results[i])
	}
	clear(o.results) // do not keep a result of a key
	f.unpinAll(o)
}

// readPart does the reads from one place in o.order to another. Several goroutines do
// different parts. It returns its buffer.
func (f *finder) readPart(o *op, from, to int, buf []byte) []byte {
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
				result.err = f.log.dir.corrupt(r.segment, offset(r.pos), errors.Join(errors.New("cannot read an entry"), err))
				continue
			}
			*result = f.readEntry(r, b[at:n])
		}
	}
	return buf
}

// unpinAll ends the queued reads. It keeps chunks in memory that were read often.
func (f *finder) unpinAll(o *op) {
	f.log.mu.Lock()
	worth := o.touched[:0]
	for _, c := range o.touched {
		if c.segment != nil && f.log.cache.countRead(c) {
			worth = append(worth, c)
		}
	}
	f.log.mu.Unlock()
	for _, c := range worth {
		f.log.keepChunk(c)
	}
	clear(o.touched) // do not keep a deleted segment
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	for i := range o.reads {
		f.log.unpinLocked(o.reads[i].segment)
		o.reads[i].segment = nil
	}
	o.reads = o.reads[:0]
}

// readEntry returns the entry of a read, whose first bytes are b. If the entry has another
// key than expected, either two keys share a tag, which is rare, or the file is corrupt.
// Then readEntry verifies the whole record, so that corruption never makes a key look new.
func (f *finder) readEntry(r *read, b []byte) reading {
	g, off := r.segment, offset(r.pos)
	e := entry{digest: semel.Digest(b[:16])}
	if e.digest == r.digest {
		if size := entrySize(binary.LittleEndian.Uint32(b[16:])); size > len(b) {
			b = make([]byte, size)
			if n, err := g.file.ReadAt(b, int64(off)); n < size {
				return reading{err: f.log.dir.corrupt(g, off, errors.Join(errors.New("cannot read an entry"), err))}
			}
		}
		if whole, ok := decodeEntry(b, g.base); ok {
			return reading{entry: whole}
		}
	}
	if err := f.verifyAround(g, off); err != nil {
		return reading{err: err}
	}
	return reading{entry: e}
}

// verifyAround reads and verifies the record that contains an offset.
func (f *finder) verifyAround(g *segment, off int) error {
	r, err := f.recordAround(g, off)
	if err != nil {
		return err
	}
	img := make([]byte, r.length)
	if n, err := g.file.ReadAt(img, int64(r.off)); n < r.length {
		return f.log.dir.corrupt(g, r.off, errors.Join(errors.New("cannot read a record"), err))
	}
	whole := r
	whole.off = 0
	if !checkRecord(img, whole, g.seed) {
		return f.log.dir.corrupt(g, r.off, errors.New("record checksum mismatch"))
	}
	return nil
}

// recordAround finds the header of the record that contains an offset. It
// starts at a known record and follows the record lengths.
func (f *finder) recordAround(g *segment, off int) (record, error) {
	f.log.mu.Lock()
	at, limit := g.markBefore(off), g.next
	f.log.mu.Unlock()
	var b []byte // bytes of the file from begin on
	begin := at
	for {
		if at-begin+recordHead > len(b) {
			begin = at
			b = make([]byte, max(min(off-at, chunkSize), recordHead))
			if n, err := g.file.ReadAt(b, int64(at)); n < len(b) {
				return record{}, f.log.dir.corrupt(g, at, errors.Join(errors.New("cannot read a record"), err))
			}
		}
		r := headOf(b[at-begin:], at)
		if r.length < emptyRecord || r.end() > limit {
			return r, f.log.dir.corrupt(g, at, errors.New("damaged record header"))
		}
		if off < r.end() {
			return r, nil
		}
		at = r.end()
	}
}

// sweep removes the slots of deleted segments from the index. The positions of
// those segments may be reused only after that.
func (f *finder) sweep() {
	const step = 64
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	first := f.log.segments.first
	if f.log.segments.swept == first {
		return
	}
	for i := range f.index.shards {
		before := f.index.count
		f.index.sweep(&f.index.shards[i], &f.log.segments)
		f.runs.unswept = max(f.runs.unswept-(before-f.index.count), 0)
		if i%step == step-1 {
			f.log.mu.Unlock() // let other calls run
			f.log.mu.Lock()
		}
	}
	f.log.segments.swept = first
	f.runs.unswept = 0
}
