package logstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/run"
)

// loader reads the log into the index.
type loader struct {
	store   *Store
	found   []*segment
	now     int64
	seq     uint32   // of the next record
	last    int64    // time of the latest record
	torn    bool     // the last segment with records ends with a torn record
	tail    *segment // the last segment with records
	sure    int      // that segment is known to be durable up to here
	unsure  []byte   // the bytes after sure
	workers []*worker
	spilled uint32   // number of the last segment that a run replaces
	stale   []string // files of segments and runs that are not needed, left by a crash
}

func newLoader(s *Store) *loader {
	l := &loader{store: s}
	l.workers = newWorkers(l)
	return l
}

// recover rebuilds the state from the log. It finds the segments, reads and
// verifies them in order, and cuts off an incomplete last write.
func (l *loader) recover(names []string) error {
	left := run.Unfinished(names)
	for _, name := range names {
		if strings.HasSuffix(name, tempSuffix) {
			left = append(left, name)
		}
	}
	for _, name := range left {
		if err := l.store.dir.removeIfThere(filepath.Join(l.store.dir.path, name)); err != nil {
			return fmt.Errorf("logstore: remove the unfinished %s: %w", name, err)
		}
	}
	if err := l.openRuns(names); err != nil {
		return err
	}
	found, err := l.openSegments(names)
	if err != nil {
		return err
	}
	for _, g := range found {
		l.store.log.segments.ring[g.num%ringSize] = g
	}
	l.found, l.now = found, latest(l.store.opts.Clock, found, l.store.finder.runs.list)
	if len(found) > 0 {
		l.store.log.segments.first = found[0].num
		if err := l.load(); err != nil {
			return err
		}
	}
	if err := l.checkReached(found); err != nil {
		return err
	}
	if len(found) > 0 {
		if found, err = l.finish(found); err != nil {
			return err
		}
	}
	for _, s := range l.store.finder.runs.list { // their records may be the last ones
		l.last = max(l.last, s.summary.last)
	}
	last := time.Unix(0, max(l.store.dir.id.created, l.last))
	l.store.log.clock = clock.New(l.store.opts.Clock, last)
	return l.resume(found)
}

// latest returns the time of the wall clock, or of the last sealed segment if that is
// later.
func latest(wall func() time.Time, found []*segment, runs []*sortedRun) int64 {
	if wall == nil {
		wall = time.Now
	}
	now := wall().UnixNano()
	for _, g := range found {
		now = max(now, g.summary.last)
	}
	for _, s := range runs {
		now = max(now, s.summary.last)
	}
	return now
}

// openSegments opens the segments in order and reads their headers. For sealed
// segments, it reads the summaries as well.
func (l *loader) openSegments(names []string) ([]*segment, error) {
	var found []*segment
	for _, name := range names {
		num, ok := parseSegmentName(name)
		if !ok {
			continue
		}
		if num <= l.spilled {
			l.stale = append(l.stale, name)
			continue
		}
		g, err := l.openSegment(num)
		if err != nil {
			closeSegments(found)
			return nil, err
		}
		found = append(found, g)
	}
	slices.SortFunc(found, func(a, b *segment) int { return int(a.num) - int(b.num) })
	for i := range found {
		want := l.spilled + 1
		if i > 0 {
			want = found[i-1].num + 1
		}
		if found[i].num != want && (i > 0 || l.spilled > 0) {
			closeSegments(found)
			return nil, &CorruptError{File: filepath.Join(l.store.dir.path, segmentName(want)), Err: errors.New("the segment is missing")}
		}
	}
	return found, nil
}

// openRuns opens the runs, oldest first.
func (l *loader) openRuns(names []string) error {
	d, runs := l.store.dir, &l.store.finder.runs
	type numbers struct{ from, to uint32 }
	var found []numbers
	for _, name := range names {
		if from, to, ok := parseRunName(name); ok {
			found = append(found, numbers{from, to})
		}
	}
	// Of those that begin at the same segment, the longest comes first.
	slices.SortFunc(found, func(a, b numbers) int { return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(b.to, a.to)) })
	for _, n := range found {
		name := runName(n.from, n.to)
		switch {
		case n.to <= l.spilled: // it was merged into the one before
			l.stale = append(l.stale, run.Files(name)...)
			continue
		case l.spilled > 0 && n.from != l.spilled+1:
			return &CorruptError{File: filepath.Join(d.path, runName(l.spilled+1, n.from-1)), Err: errors.New("the run is missing, or its name was changed")}
		}
		r, err := run.Open(d.runPlace(), name)
		if err != nil {
			return fmt.Errorf("logstore: open run: %w", damaged(err))
		}
		s, err := newSortedRun(r)
		if err != nil {
			return errors.Join(&CorruptError{File: filepath.Join(d.path, name), Err: err}, r.Close())
		}
		runs.add(s)
		l.spilled = n.to
	}
	return nil
}

// closeSegments closes files that were only read.
func closeSegments(segments []*segment) {
	for _, g := range segments {
		_ = g.file.Close()
	}
}

func (l *loader) openSegment(num uint32) (*segment, error) {
	name := filepath.Join(l.store.dir.path, segmentName(num))
	file, err := l.store.dir.fs.Open(name)
	if err != nil {
		return nil, fmt.Errorf("logstore: open segment %d: %w", num, err)
	}
	g, err := l.readHead(num, file)
	if err != nil {
		return nil, errors.Join(&CorruptError{File: name, Err: err}, file.Close())
	}
	g.file = file
	return g, nil
}

// readHead reads a segment's header, and its summary if it is sealed.
func (l *loader) readHead(num uint32, file interface {
	ReadAt(b []byte, off int64) (int, error)
	Size() (int64, error)
}) (*segment, error) {
	size, err := file.Size()
	if err != nil {
		return nil, err
	}
	if size < headerSize || size > segmentStride {
		return nil, fmt.Errorf("invalid segment length of %d bytes", size)
	}
	header := make([]byte, headerSize)
	if n, err := file.ReadAt(header, 0); n < headerSize {
		return nil, err
	}
	base, err := decodeHeader(header, num, l.store.dir.id.store)
	if err != nil {
		return nil, err
	}
	g := newSegment(num, base, header)
	g.limit = int(size)
	if g.limit < headerSize+sealRecord {
		return g, nil
	}
	tail := make([]byte, sealRecord)
	if n, err := file.ReadAt(tail, size-sealRecord); n < sealRecord {
		return nil, err
	}
	if r, ok := decodeHead(tail, 0); ok && r.seal && r.length == sealRecord && checkRecord(tail, r, g.seed) {
		g.sealed = true
		g.summary.decode(tail[recordHead:])
	}
	return g, nil
}

// load reads and verifies segments ahead of the workers that apply them.
func (l *loader) load() error {
	l.presize()
	ahead := make(chan image)
	buffers := make(chan []byte, 2)
	buffers <- nil
	buffers <- nil
	stop := make(chan struct{})
	go l.readAhead(ahead, buffers, stop)
	var err error
	for img := range ahead {
		if err == nil {
			if err = img.err; err == nil {
				err = l.apply(&img)
			}
			if err != nil {
				close(stop)
			}
		}
		buffers <- img.bytes
	}
	if err != nil {
		return err
	}
	l.merge()
	return nil
}

// presize makes the shards large enough for the keys of the sealed segments.
func (l *loader) presize() {
	var keys int64
	for _, g := range l.found {
		if g.sealed {
			keys += g.summary.entries - g.summary.expired(l.now, g.base)
		}
	}
	x := &l.store.finder.index
	if keys > 8*shards {
		for i := range x.shards {
			x.reserve(&x.shards[i], keys)
		}
	}
}

// image is a verified segment.
type image struct {
	segment *segment
	bytes   []byte
	records []record
	err     error
}

// readAhead reads and verifies the segments in order. It ends when all are
// read, one is bad, or stop is closed.
func (l *loader) readAhead(ahead chan<- image, buffers <-chan []byte, stop <-chan struct{}) {
	defer close(ahead)
	for i, g := range l.found {
		select {
		case <-stop:
			return
		case buf := <-buffers:
			img := l.read(i, g, buf)
			ahead <- img
			if img.err != nil {
				return
			}
		}
	}
}

// read reads one segment and verifies each of its records.
func (l *loader) read(i int, g *segment, buf []byte) image {
	img := image{segment: g}
	if cap(buf) < g.limit { // segments grow, so a smaller one would soon be garbage
		largest := slices.MaxFunc(l.found, func(a, b *segment) int { return a.limit - b.limit })
		buf = make([]byte, largest.limit)
	}
	img.bytes, img.err = l.store.log.image(g, g.limit, buf)
	if img.err != nil {
		return img
	}
	if i == 0 {
		l.seq = firstSeq(img.bytes)
	}
	var latest int64
	end, next, sealed, err := scan(img.bytes, g, l.seq, func(r record) error {
		img.records = append(img.records, r)
		latest = max(latest, r.time)
		return nil
	})
	if err == nil {
		err = l.checkEnd(i, g, img.bytes, end, next, sealed)
	}
	if err != nil {
		img.err = l.store.dir.corrupt(g, end, err)
	}
	g.next, g.written, g.synced, g.memFrom = end, end, end, end
	if len(img.records) > 0 {
		last := img.records[len(img.records)-1]
		l.tail, l.sure = g, last.synced
		l.unsure = append(l.unsure[:0], img.bytes[last.synced:end]...)
	}
	if g.sealed = sealed; sealed {
		g.summary.decode(img.bytes[end-sealRecord+recordHead:])
	}
	l.seq, l.last = next, max(l.last, latest)
	return img
}

// checkEnd checks the end of a segment. Only the last segment with records may
// lack a seal, because each segment is sealed before the next one is written.
func (l *loader) checkEnd(i int, g *segment, img []byte, end int, next uint32, sealed bool) error {
	if sealed {
		if rest := img[end:]; len(rest) > 0 && !isZero(rest) {
			return errSealed
		}
		return nil
	}
	if g.sealed {
		return errors.New("record checksum mismatch in a sealed segment")
	}
	torn, err := judge(img, end, g.seed, next)
	if err != nil {
		return err
	}
	l.torn = l.torn || torn
	for _, after := range l.found[i+1:] {
		if !l.isEmpty(after) {
			return errors.New("the segment has no seal, but another segment follows")
		}
	}
	return nil
}

// isEmpty reports whether a segment has only a header.
func (l *loader) isEmpty(g *segment) bool {
	img, err := l.store.log.image(g, g.limit, nil)
	return err == nil && isZero(img[headerSize:])
}

// checkReached refuses a log that ends before the position that it is known to
// have reached. That part was durable, so a crash cannot have cut it off. It
// changes nothing, so the next open returns the same error.
func (l *loader) checkReached(found []*segment) error {
	const restore = "restore it from a backup: without it, done keys would look new"
	reached := l.store.dir.id.reached
	if len(found) == 0 {
		if reached.segment == 0 && l.spilled == 0 {
			return nil
		}
		return l.store.dir.missing(max(reached.segment, l.spilled+1), restore)
	}
	last := found[len(found)-1]
	tail := last // the end of the log
	if i := slices.IndexFunc(found, func(g *segment) bool { return !g.sealed }); i >= 0 {
		tail = found[i]
	}
	end := logEnd{tail.num, tail.next}
	switch {
	case tail.sealed:
		// A segment is sealed only when the next one exists.
		return l.store.dir.missing(last.num+1, restore)
	case !end.before(reached):
		return nil
	case last.num < reached.segment:
		return l.store.dir.missing(last.num+1, restore)
	}
	return l.store.dir.corrupt(tail, tail.next, fmt.Errorf("the log ends here, but it had reached byte %d of %s: its end was truncated or overwritten: %s",
		reached.offset, segmentName(reached.segment), restore))
}

// finish handles the ends of the log that recovery found. It returns the
// remaining segments.
func (l *loader) finish(found []*segment) ([]*segment, error) {
	if err := l.checkFirst(found); err != nil {
		return found, err
	}
	if len(l.stale) > 0 { // what replaces them must be durable, with its name
		if err := l.secureEnd(found); err != nil {
			return found, err
		}
		if err := syncFailed(l.store.log.dir.fs.SyncDir(l.store.log.dir.path)); err != nil {
			return found, err
		}
	}
	if err := l.store.log.deleteFiles(l.stale...); err != nil {
		return found, err
	}
	l.store.log.segments.swept = found[0].num
	for len(found) > 0 && found[0].num < l.store.log.segments.first {
		if err := l.store.log.deleteSegment(found[0]); err != nil {
			return found, err
		}
		found = found[1:]
	}
	l.store.finder.sweep()
	for n := len(found); n >= 2 && !found[n-2].sealed; n-- {
		// The last segment was created ahead and never used.
		g := found[n-1]
		found = found[:n-1]
		if err := l.store.log.deleteSegment(g); err != nil {
			return found, err
		}
	}
	if err := l.secureEnd(found); err != nil {
		return found, err
	}
	l.store.committer.seq = l.seq - 1
	return found, nil
}

// secureEnd makes the segments durable to which a killed process may have written.
func (l *loader) secureEnd(found []*segment) error {
	for _, g := range found[max(len(found)-2, 0):] {
		if err := l.secure(g); err != nil {
			return err
		}
	}
	return nil
}

// secure makes the recovered data durable. Readable data need not be on disk:
// after a failed sync the system still shows the data and considers it written.
// So secure writes it again.
func (l *loader) secure(g *segment) error {
	var err error
	if g.sealed && g.limit > g.next || l.torn && !g.sealed {
		err = g.file.Truncate(int64(g.next))
		g.limit = g.next
	}
	if err == nil && g == l.tail {
		_, err = g.file.WriteAt(l.unsure, int64(l.sure))
	}
	if err == nil {
		err = g.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("logstore: make segment %d durable: %w", g.num, err)
	}
	return nil
}

// checkFirst checks that the oldest segment is the one that must be the oldest.
func (l *loader) checkFirst(found []*segment) error {
	first := uint32(1)
	if v, ok := l.store.committer.named[firstSegment]; ok && len(v.data) == 4 {
		first = binary.LittleEndian.Uint32(v.data)
	}
	runs := &l.store.finder.runs
	for len(runs.list) > 0 && runs.list[0].to < first { // their deletion was interrupted
		l.stale = append(l.stale, run.Files(runs.list[0].Name())...)
		runs.replace(0, 1)
	}
	runs.uncover()
	oldest := found[0].num
	if len(runs.list) > 0 {
		oldest = runs.list[0].from
	}
	if oldest > first {
		return &CorruptError{File: filepath.Join(l.store.dir.path, segmentName(first)), Err: errors.New("the segment is missing")}
	}
	l.store.log.segments.first = max(first, l.spilled+1)
	return nil
}

// resume prepares the log for appends.
func (l *loader) resume(found []*segment) error {
	if n := len(found); n > 0 {
		return l.resumeIn(found[n-1])
	}
	const num = 1
	l.store.log.segments.first, l.store.log.segments.swept = num, num
	g, err := l.store.log.createLargest(num, min(firstSize, int(l.store.opts.SegmentSize)), minSegmentSize)
	if err != nil {
		return err
	}
	l.store.log.active, l.store.log.writing = g, g
	l.store.log.segments.ring[num%ringSize] = g
	return nil
}

// resumeIn continues in a segment that is not full.
func (l *loader) resumeIn(g *segment) error {
	l.store.log.active, l.store.log.writing = g, g
	l.store.committer.emptySeq = l.store.committer.seq
	size := min(g.next+firstSize, l.store.log.segmentSize())
	if g.limit >= size {
		return nil
	}
	err := g.file.Allocate(int64(size))
	if err == nil {
		err = writeZeros(g.file, g.limit, min(g.limit+resumedZeros, size))
	}
	if err != nil {
		// The disk is full: the store can be read, and it refuses writes.
		if err = refusal(err); !errors.Is(err, semel.ErrStoreFull) {
			return fmt.Errorf("logstore: allocate segment %d: %w", g.num, err)
		}
		return nil
	}
	g.limit = size
	return nil
}
