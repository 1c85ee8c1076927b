package logstore

import (
	"context"
	"errors"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
)

// spill writes the oldest sealed segments to a run and deletes them, so that their keys
// leave memory. It takes several segments if that needs little memory. It returns false if
// there is no segment to write. The caller holds m.maintaining.
//
// The run exists as soon as it is renamed: an open then ignores the segments that it
// replaces. So what else they hold is durable at the end of the log before.
func (m *maintenance) spill(ctx context.Context) (bool, error) {
	m.finder.runs.spills.Lock()
	defer m.finder.runs.spills.Unlock()
	group := m.spillable()
	if len(group) == 0 {
		return false, nil
	}
	if err := m.log.dir.allowRuns(); err != nil {
		m.log.mu.Lock()
		defer m.log.mu.Unlock()
		return false, m.log.stopIfUnsynced(err)
	}
	o := m.keys.newOp()
	o.maintains = true
	defer o.free()
	var err error
	for _, g := range group {
		err = errors.Join(err, m.carryRest(ctx, o, g, 0))
	}
	if err = m.settle(ctx, o, err); err != nil {
		return false, err
	}
	m.log.mu.Lock()
	m.finder.runs.spilling = group[len(group)-1].num + 1
	m.log.mu.Unlock()
	s, err := m.writeRun(ctx, group)
	m.log.mu.Lock()
	m.finder.runs.spilling = 0
	if err == nil {
		m.install(group, s)
	} else {
		m.finder.runs.uncover() // keys of the run that failed
		err = m.log.stopIfUnsynced(err)
	}
	m.log.mu.Unlock()
	if err != nil {
		return false, err
	}
	for _, g := range group {
		err = errors.Join(err, m.log.deleteSegment(g))
	}
	m.finder.sweep()
	m.merger.wakeUp()
	return true, err
}

// spillable returns the segments that the next run is made of.
func (m *maintenance) spillable() (group []*segment) {
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	if m.log.usable() != nil {
		return nil
	}
	most := max(m.log.opts.MaxIndexBytes/16, minSegmentSize)
	bytes := int64(0)
	for num := m.log.segments.first; ; num++ {
		g := m.log.segments.byNum(num)
		bytes += int64(g.limit)
		if !g.sealed || g == m.log.writing || len(group) > 0 && (bytes > most || m.finder.runs.isNext(num)) {
			return group
		}
		group = append(group, g)
	}
}

// install replaces segments by a run. The caller holds the lock.
func (m *maintenance) install(group []*segment, s *sortedRun) {
	r := &m.finder.runs
	for d, pos := range r.hidden.All() {
		if slices.Contains(group, m.log.segments.at(*pos)) {
			r.hidden.Remove(d) // the run hides it
		}
	}
	for _, g := range group {
		m.log.segments.ring[g.num%ringSize] = nil
	}
	m.log.segments.first = s.to + 1
	r.add(s)
	r.unswept = s.summary.entries
	for _, l := range r.listings {
		if l.next <= s.from {
			s.pins++
			l.runs = append(l.runs, s)
		}
	}
}

// spiller writes the done keys of segments to a run.
type spiller struct {
	m        *maintenance
	group    []*segment
	images   [][]byte
	older    []*sortedRun
	removals []semel.Digest // sorted; the entries behind hide those of older runs
	slots    []uint64       // of a shard of the index
	entries  []spilled      // of that shard
}

// spilled is an entry on its way into a run.
type spilled struct {
	raw  []byte // the entry and the bytes behind it
	base int64  // tick from which its expiry counts
}

func (e *spilled) digest() *semel.Digest { return (*semel.Digest)(e.raw) }

// writeRun writes the current done keys of segments to a run.
func (m *maintenance) writeRun(ctx context.Context, group []*segment) (*sortedRun, error) {
	p := &spiller{m: m, group: group}
	most := int64(0)
	for _, g := range group {
		most += g.summary.entries // sealed, so it does not change
		if ctx.Err() != nil {
			return nil, interrupted(ctx)
		}
		if err := p.read(g); err != nil {
			return nil, err
		}
	}
	p.collectRemovals()
	w, err := newRunWriter(m.log, group[0].num, group[len(group)-1].num, group[0].base, most)
	if err != nil {
		return nil, err
	}
	for _, g := range group {
		w.cover(&g.summary)
	}
	if err := p.write(ctx, w); err != nil {
		return nil, w.abort(err)
	}
	return w.finish()
}

// read reads and verifies a segment.
func (p *spiller) read(g *segment) error {
	l := p.m.log
	img, err := l.image(g, g.written, nil)
	if err != nil {
		return err
	}
	end, _, _, err := scan(img, g, firstSeq(img), func(record) error { return nil })
	if err == nil && end < len(img) {
		err = errors.New("record checksum mismatch")
	}
	if err != nil {
		return l.dir.corrupt(g, end, err)
	}
	p.images = append(p.images, img)
	return nil
}

// collectRemovals collects the removals in the segments that hide an entry of a run.
func (p *spiller) collectRemovals() {
	m := p.m
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	p.older = m.finder.runs.list
	for d, pos := range m.finder.runs.hidden.All() {
		if slices.Contains(p.group, m.log.segments.at(*pos)) && m.finder.runs.mayHave(d) {
			p.removals = append(p.removals, *d)
		}
	}
	slices.SortFunc(p.removals, func(a, b semel.Digest) int { return run.Compare(&a, &b) })
}

// write writes the entries in the order of their digests. That is the order of the index,
// which has all that are current. It holds the lock for one shard at a time.
func (p *spiller) write(ctx context.Context, w *runWriter) error {
	now := p.m.log.clock.Nanos()
	for number := range shards {
		if ctx.Err() != nil {
			return interrupted(ctx)
		}
		if err := p.collect(&p.m.finder.index.shards[number], uint64(number)); err != nil {
			return err
		}
		for i := range p.entries {
			if err := p.writeEntry(w, &p.entries[i], now); err != nil {
				return err
			}
		}
	}
	return p.writeRemovals(w, nil)
}

// writeEntry writes an entry, unless it has expired and hides none of an older run.
func (p *spiller) writeEntry(w *runWriter, of *spilled, now int64) error {
	e, ok := decodeEntry(of.raw, of.base)
	if !ok {
		return errUndecoded
	}
	if err := p.writeRemovals(w, &e.digest); err != nil {
		return err
	}
	if now >= e.expires && !slices.ContainsFunc(p.older, func(s *sortedRun) bool { return s.MayHave(&e.digest) }) {
		return nil
	}
	return w.add(&e, of.raw, of.base)
}

// collect collects the entries of a shard of the index that are in the segments.
func (p *spiller) collect(s *shard, number uint64) error {
	l := p.m.log
	image := func(slot uint64) uint64 { // the number of its segment in the group, if it is less than their number
		return (slot&(1<<posBits-1)>>strideBits - uint64(p.group[0].num)) % ringSize
	}
	p.slots, p.entries = p.slots[:0], p.entries[:0]
	l.mu.Lock()
	for _, slot := range s.slots {
		if slot != 0 && image(slot) < uint64(len(p.group)) {
			p.slots = append(p.slots, slot)
		}
	}
	l.mu.Unlock()
	for _, slot := range p.slots {
		i, off := image(slot), offset(slot)
		g, img := p.group[i], p.images[i]
		if off+entryHead > len(img) {
			return l.dir.corrupt(g, off, errUndecoded)
		}
		e := spilled{img[off:], g.base}
		if sh, tag := split(e.digest()); sh != number || tag != slot>>posBits {
			return l.dir.corrupt(g, off, errUndecoded)
		}
		p.entries = append(p.entries, e)
		// The index compares fewer bits, so a few neighbours may change their places.
		for j := len(p.entries) - 1; j > 0 && run.Compare(p.entries[j].digest(), p.entries[j-1].digest()) < 0; j-- {
			p.entries[j], p.entries[j-1] = p.entries[j-1], p.entries[j]
		}
	}
	return nil
}

// writeRemovals writes the removals before a digest, or all that are left. If the digest
// itself was removed, it is done again, and that entry hides the older ones.
func (p *spiller) writeRemovals(w *runWriter, d *semel.Digest) error {
	for len(p.removals) > 0 {
		next, order := &p.removals[0], -1
		if d != nil {
			order = run.Compare(next, d)
		}
		if order > 0 {
			return nil
		}
		p.removals = p.removals[1:]
		if order == 0 {
			return nil
		}
		if err := w.addRemoval(next); err != nil {
			return err
		}
	}
	return nil
}

// relieve lets the oldest keys leave memory until there is room for more, or until those of
// all segments have left it that were sealed when it began. Claims are copied to new ones,
// so a later end might never come.
func (m *maintenance) relieve(ctx context.Context) error {
	m.maintaining.Lock()
	defer m.maintaining.Unlock()
	m.log.mu.Lock()
	end := m.log.active.num
	m.log.mu.Unlock()
	for {
		m.log.mu.Lock()
		more := m.keys.crowded(1, 2) && m.log.segments.first < end
		m.log.mu.Unlock()
		if !more {
			return nil
		}
		if more, err := m.spill(ctx); !more || err != nil {
			return err
		}
	}
}

// dropRun deletes the oldest run, if all its keys have expired. It returns false if it did
// not. The caller holds m.maintaining.
func (m *maintenance) dropRun(ctx context.Context) (forgotten int64, dropped bool, err error) {
	if !m.merger.merging.TryLock() {
		return 0, false, nil // the next round retries
	}
	defer m.merger.merging.Unlock()
	o := m.keys.newOp()
	o.maintains = true
	defer o.free()
	m.log.mu.Lock()
	s := m.finder.runs.list[0]
	expired := s.expired(m.log.clock.Nanos()) // a merge may have replaced it since the caller looked
	m.log.mu.Unlock()
	if !expired {
		return 0, false, nil
	}
	if err = m.settle(ctx, o, m.carryRest(ctx, o, nil, s.to+1)); err != nil {
		return 0, false, err
	}
	m.log.mu.Lock()
	m.finder.runs.replace(0, 1)
	m.finder.runs.uncover()
	m.log.mu.Unlock()
	return s.summary.entries, true, m.log.deleteRuns(s)
}
