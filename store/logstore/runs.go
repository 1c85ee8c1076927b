package logstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"
	"syscall"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
	"github.com/semel-dev/semel/store/logstore/internal/digestmap"
)

// runs are the keys that have left memory. Each run holds the done keys of consecutive
// segments, which no longer exist. The newest run that has a key decides about it, and the
// index decides before all runs. log.mu guards the fields.
type runs struct {
	list   []*sortedRun // oldest first, without gaps
	memory int64        // of all runs
	count  int64        // done entries, less the removals, each of which hides one
	// unswept are the entries of the newest run that still have a slot in the index.
	unswept int64
	// hidden are the keys that were removed by hand while a run may have them, with the
	// position of the removal in the log. The removal is in a segment that exists.
	hidden digestmap.Map[uint64]
	// spilling is behind the segments that are being written to a run. A key that is
	// removed there must be hidden.
	spilling uint32
	listings []*listing // to which the runs of segments belong that they have not listed
	// spills is held while segments are spilled. Lock it before log.mu.
	spills sync.Mutex
}

// sortedRun is a run with the data that the store keeps in its header.
type sortedRun struct {
	*run.Run
	from, to uint32 // numbers of the segments that it replaces
	base     int64  // tick from which expiries count
	summary  summary

	pins int  // readers outside the lock
	dead bool // deleted; the last reader closes it
}

// runName returns the file name of a run.
func runName(from, to uint32) string { return fmt.Sprintf("%08d-%08d%s", from, to, run.Suffix) }

// parseRunName returns the numbers in a run's file name.
func parseRunName(name string) (from, to uint32, ok bool) {
	n, err := fmt.Sscanf(name, "%d-%d"+run.Suffix, &from, &to)
	return from, to, n == 2 && err == nil && from <= to && runName(from, to) == name
}

// runMeta returns the data that the store keeps in the header of a run.
func runMeta(base int64, s *summary) []byte {
	return s.encode(binary.LittleEndian.AppendUint64(nil, uint64(base)))
}

// runPlace returns where the runs of a store are.
func (d *directory) runPlace() *run.Place {
	return &run.Place{FS: d.fs, Dir: d.path, Store: d.id.store, Size: entrySize, Unsynced: runUnsynced}
}

// runUnsynced wraps the error of a sync, unless the file system found only then that the disk
// is full: the run is given up, and its entries are elsewhere.
func runUnsynced(err error) error {
	if errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return syncFailed(err)
}

// newSortedRun returns an open run with the decoded header.
func newSortedRun(r *run.Run) (*sortedRun, error) {
	from, to, _ := parseRunName(r.Name())
	s := &sortedRun{Run: r, from: from, to: to}
	meta := r.Meta()
	if len(meta) != 8+summaryLength {
		return nil, errors.New("wrong length of the summary")
	}
	s.base = int64(binary.LittleEndian.Uint64(meta))
	s.summary.decode(meta[8:])
	return s, nil
}

// replace puts runs in the place of those in [from, to), which are closed.
func (r *runs) replace(from, to int, by ...*sortedRun) {
	for _, s := range r.list[from:to] {
		r.memory -= s.MemoryBytes()
		r.count -= s.keys()
		s.dead = true
		s.closeIfUnused()
	}
	for _, s := range by {
		r.memory += s.MemoryBytes()
		r.count += s.keys()
	}
	r.list = slices.Concat(r.list[:from], by, r.list[to:])
}

// keys returns the number of done keys, with those that have expired. A key that was
// removed by hand and then done again may count twice while both entries are in runs.
func (r *runs) keys() int64 {
	return max(r.count-r.unswept-int64(r.hidden.Len()), 0)
}

// add adds the newest run.
func (r *runs) add(s *sortedRun) { r.replace(len(r.list), len(r.list), s) }

// mayHave reports whether a run may have a digest.
func (r *runs) mayHave(d *semel.Digest) bool {
	return slices.ContainsFunc(r.list, func(s *sortedRun) bool { return s.MayHave(d) })
}

// isNext reports whether a listing has listed the segments before a number, and not it. A run
// must not have segments of both kinds.
func (r *runs) isNext(num uint32) bool {
	return slices.ContainsFunc(r.listings, func(l *listing) bool { return l.next == num })
}

// hide records that a key was removed at a position of the log.
func (r *runs) hide(d *semel.Digest, pos uint64) {
	if r.mayHave(d) || r.spilling > 0 {
		r.hidden.Put(d, &pos)
	}
}

// uncover forgets the removals of keys that no run has, or no longer. If there is no run,
// segments are deleted without a look at their removals, and a later run with such a key
// must not be hidden.
func (r *runs) uncover() {
	for d := range r.hidden.All() {
		if !r.mayHave(d) {
			r.hidden.Remove(d)
		}
	}
}

// bytes is the memory that the runs take.
func (r *runs) bytes() int64 {
	const hiddenBytes = 48
	return r.memory + int64(r.hidden.Len())*hiddenBytes
}

// closeIfUnused closes the file of a deleted run without readers.
func (s *sortedRun) closeIfUnused() {
	if s.dead && s.pins == 0 {
		_ = s.Close() // it was only read
		s.pins = -1
	}
}

// expired reports whether all keys of the run have expired.
func (s *sortedRun) expired(now int64) bool {
	return s.summary.expired(now, s.base) == s.summary.entries
}

// keys returns the number of keys that the run adds to the older ones.
func (s *sortedRun) keys() int64 { return 2*s.summary.entries - s.Entries() }

// needless returns a lower bound of the number of entries that are needed only if they hide
// others: of expired keys, and removals.
func (s *sortedRun) needless(now int64) int64 {
	return s.summary.expired(now, s.base) + s.Entries() - s.summary.entries
}

// deleteRuns deletes the files of runs. Current readers can finish.
func (l *log) deleteRuns(list ...*sortedRun) error {
	var names []string
	for _, s := range list {
		names = append(names, run.Files(s.Name())...)
	}
	return l.deleteFiles(names...)
}

// errUndecoded means that an entry of a run is not one of this version.
var errUndecoded = errors.New("cannot decode an entry")

// damaged returns the error of a run that is not as it was written.
func damaged(err error) error {
	if d, ok := errors.AsType[*run.Damage](err); ok {
		return &CorruptError{File: d.File, Offset: d.Offset, Err: d.Err}
	}
	return err
}

// runRead is a block of a run that must be read for a digest.
type runRead struct {
	run     *sortedRun // pinned
	off     int64
	size    int
	digest  semel.Digest
	request int // whose key it is
}

// runKey identifies the result of a read.
type runKey struct {
	run    *sortedRun
	digest semel.Digest
}

// screen has what the filters of the runs say about the keys of a call. It asks for keys that
// are near each other together: their answers are independent, so that the memory latencies
// overlap. It asks only when the runs must be searched for one of them.
type screen struct {
	digests []semel.Digest // by request
	runs    []*sortedRun   // that were asked
	may     []uint64       // by request, a bit for each run; all if it was not asked
	asked   []bool         // by group of requests
}

const (
	// screenGroup is how many keys are asked for together.
	screenGroup = 64
	// mostScreened is how many runs are asked for keys together, the oldest ones.
	mostScreened = 64
)

// begin sets the keys of a call, and forgets those of the one before.
func (s *screen) begin(digests []semel.Digest) { s.digests, s.runs = digests, nil }

// of returns which runs of a list may have a digest, which is that of a request if the call has
// set its keys. A run whose bit is not set does not have it.
func (s *screen) of(d *semel.Digest, request int, list []*sortedRun, x *index) uint64 {
	if request >= len(s.digests) || s.digests[request] != *d {
		return math.MaxUint64
	}
	if len(s.runs) != len(list) || &s.runs[0] != &list[0] {
		s.runs = list
		s.may = append(s.may[:0], make([]uint64, len(s.digests))...)
		s.asked = append(s.asked[:0], make([]bool, (len(s.digests)+screenGroup-1)/screenGroup)...)
	}
	if group := request / screenGroup; !s.asked[group] {
		s.asked[group] = true
		s.ask(group*screenGroup, min((group+1)*screenGroup, len(s.digests)), x)
	}
	return s.may[request]
}

// ask asks for the keys from one to another, except those that the index seems to have.
func (s *screen) ask(from, to int, x *index) {
	var ask [screenGroup]int
	n := 0
	for i := from; i < to; i++ {
		sh, tag := split(&s.digests[i])
		if at := x.shards[sh].seek(tag); x.shards[sh].has(at, tag) {
			s.may[i] = math.MaxUint64
			continue
		}
		ask[n], n = i, n+1
	}
	for bit, r := range s.runs[:min(len(s.runs), mostScreened)] {
		for _, i := range ask[:n] {
			if r.MayHave(&s.digests[i]) {
				s.may[i] |= 1 << bit
			}
		}
	}
}

// findSpilled is find for the runs. It adds at most one read at a time, so that a key takes
// as few as it can.
func (f *finder) findSpilled(o *op, d *semel.Digest, hit *found) (ok, pending bool, err error) {
	if len(f.runs.list) == 0 || f.runs.hidden.Get(d) != nil {
		return false, false, nil
	}
	may := o.screen.of(d, o.request, f.runs.list, &f.index)
	for i, s := range slices.Backward(f.runs.list) {
		if i < mostScreened && may>>i&1 == 0 || !s.MayHave(d) {
			continue
		}
		is, known := o.inRuns[runKey{s, *d}]
		switch {
		case !known:
			s.pins++
			off, size := s.Block(d)
			o.blocks = append(o.blocks, runRead{s, off, size, *d, o.request})
			return false, true, nil
		case is.err != nil:
			return false, false, is.err
		case is.entry.kind == kindDone:
			hit.run, hit.pos, hit.entry = s, 0, is.entry
			return true, false, nil
		case is.entry.kind == kindRemoval:
			return false, false, nil
		}
	}
	return false, false, nil
}

// closeRuns closes the files of all runs without readers.
func (f *finder) closeRuns() {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	f.runs.replace(0, len(f.runs.list))
}

// remove takes a found key out of the index. A key that is in a run stays there: an entry
// that is added hides it.
func (f *finder) remove(hit *found) {
	if hit.run == nil {
		f.index.remove(hit.shard, hit.slot)
	}
}

// unpinRuns ends the use of runs outside the lock.
func (f *finder) unpinRuns(list []*sortedRun) {
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	for _, s := range list {
		s.pins--
		s.closeIfUnused()
	}
}

// isCurrent reports whether a live entry of a run of a listing is not hidden, by a removal or
// by an entry of newer runs. A live entry is hidden in no other way.
func (f *finder) isCurrent(e *entry, l *listing, i int) (bool, error) {
	f.log.mu.Lock()
	now, hidden, newer := f.log.clock.Nanos(), f.runs.hidden.Get(&e.digest), l.runs[i+1:]
	f.log.mu.Unlock()
	if hidden != nil || now >= e.expires {
		return false, nil
	}
	for _, s := range newer {
		if !s.MayHave(&e.digest) {
			continue
		}
		off, size := s.Block(&e.digest)
		b := make([]byte, size)
		if err := s.ReadAt(b, off); err != nil {
			return false, damaged(err)
		}
		if raw, err := s.Find(b, off, &e.digest); raw != nil || err != nil {
			return false, damaged(err)
		}
	}
	return true, nil
}

// readBlocks does the queued reads of runs without the lock, in the order of their places.
// Then it passes each result to got.
func (f *finder) readBlocks(o *op, got func(r *runRead, is reading)) {
	n := len(o.blocks)
	if n == 0 {
		return
	}
	slices.SortFunc(o.blocks, func(a, b runRead) int {
		return cmp.Or(cmp.Compare(a.run.from, b.run.from), cmp.Compare(a.off, b.off))
	})
	results := make([]reading, n)
	parts := max(1, min(runtime.GOMAXPROCS(0), n/readLeast))
	var others sync.WaitGroup
	for part := 1; part < parts; part++ {
		others.Go(func() { readRunPart(o.blocks, results, part*n/parts, (part+1)*n/parts) })
	}
	readRunPart(o.blocks, results, 0, n/parts)
	others.Wait()
	for i := range o.blocks {
		got(&o.blocks[i], results[i])
	}
	f.log.mu.Lock()
	defer f.log.mu.Unlock()
	for i := range o.blocks {
		s := o.blocks[i].run
		s.pins--
		s.closeIfUnused()
	}
	clear(o.blocks)
	o.blocks = o.blocks[:0]
}

// readRunPart does the reads from one to another. Blocks that follow each other are one
// read.
func readRunPart(blocks []runRead, results []reading, from, to int) {
	var buf []byte
	for from < to {
		first := &blocks[from]
		end, next := first.off+int64(first.size), from+1
		for ; next < to; next++ {
			b := &blocks[next]
			if b.run != first.run || b.off > end+readGap || b.off+int64(b.size)-first.off > readMost {
				break
			}
			end = max(end, b.off+int64(b.size))
		}
		n := int(end - first.off)
		if cap(buf) < n {
			buf = make([]byte, max(n, readMost))
		}
		err := first.run.ReadAt(buf[:n], first.off)
		for ; from < next; from++ {
			b, at := &blocks[from], int(blocks[from].off-first.off)
			if err != nil {
				results[from].err = damaged(err)
				continue
			}
			results[from] = b.find(buf[at : at+b.size])
		}
	}
}

// find returns the entry of the digest from the bytes of its block. An entry of no kind
// means that the run does not have it.
func (b *runRead) find(block []byte) reading {
	raw, err := b.run.Find(block, b.off, &b.digest)
	if err != nil || raw == nil {
		return reading{err: damaged(err)}
	}
	e, ok := decodeEntry(raw, b.run.base)
	if !ok {
		return reading{err: damaged(b.run.Damaged(b.off, errUndecoded))}
	}
	return reading{entry: e}
}
