package logstore

import (
	"context"
	"errors"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/run"
)

// spilled is an entry on its way into a run.
type spilled struct {
	order uint64 // the first by which it is sorted
	image int    // number of its segment, or -1 for a removal
	off   int    // in the segment, or number of the removal
}

// spill writes the oldest sealed segments to a run and deletes them, so that their keys
// leave memory. It takes several segments if that needs little memory. It returns false if
// there is none to write. The caller holds m.maintaining.
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
	if m.log.usable() != nil || m.finder.runs.listings > 0 {
		return nil
	}
	most := max(m.log.opts.MaxIndexBytes/16, minSegmentSize)
	bytes := int64(0)
	for num := m.log.segments.first; ; num++ {
		g := m.log.segments.byNum(num)
		bytes += int64(g.limit)
		if !g.sealed || g == m.log.writing || len(group) > 0 && bytes > most {
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
}

// spiller collects the entries of segments and writes them to a run.
type spiller struct {
	m        *maintenance
	group    []*segment
	images   [][]byte
	entries  []spilled
	removals []semel.Digest
}

// writeRun writes the current done keys of segments to a run.
func (m *maintenance) writeRun(ctx context.Context, group []*segment) (*sortedRun, error) {
	p := &spiller{m: m, group: group}
	most := int64(0)
	for _, g := range group {
		most += g.summary.entries // sealed, so it does not change
	}
	p.entries = make([]spilled, 0, most)
	for _, g := range group {
		if ctx.Err() != nil {
			return nil, interrupted(ctx)
		}
		if err := p.collect(g); err != nil {
			return nil, err
		}
	}
	p.collectRemovals()
	p.sort()
	w, err := newRunWriter(m.log, group[0].num, group[len(group)-1].num, group[0].base, int64(len(p.entries)))
	if err != nil {
		return nil, err
	}
	for _, g := range group {
		w.cover(&g.summary)
	}
	if err := p.write(w); err != nil {
		return nil, w.abort(err)
	}
	return w.finish()
}

// collect adds the done keys whose current entry is in a segment. An expired key is needed
// only if it may hide an entry of an older run.
func (p *spiller) collect(g *segment) error {
	f := p.m.finder
	img, err := p.m.log.image(g, g.written, nil)
	if err != nil {
		return err
	}
	image := len(p.images)
	p.images = append(p.images, img)
	return f.visitImage(g, img, func(e *entry, now int64) bool {
		return now < e.expires || f.runs.mayHave(&e.digest)
	}, func(e *entry) bool {
		p.entries = append(p.entries, spilled{run.Order(&e.digest), image, e.off})
		return true
	})
}

// collectRemovals adds the removals in the segments that hide an entry of a run.
func (p *spiller) collectRemovals() {
	m := p.m
	m.log.mu.Lock()
	defer m.log.mu.Unlock()
	for d, pos := range m.finder.runs.hidden.All() {
		if slices.Contains(p.group, m.log.segments.at(*pos)) && m.finder.runs.mayHave(d) {
			p.entries = append(p.entries, spilled{run.Order(d), -1, len(p.removals)})
			p.removals = append(p.removals, *d)
		}
	}
}

// digest returns the digest of an entry.
func (p *spiller) digest(e *spilled) *semel.Digest {
	if e.image < 0 {
		return &p.removals[e.off]
	}
	return (*semel.Digest)(p.images[e.image][e.off:])
}

// sort sorts the entries. Of a key that was removed and then done again, the removal comes
// last.
func (p *spiller) sort() {
	slices.SortFunc(p.entries, func(a, b spilled) int {
		switch {
		case a.order < b.order:
			return -1
		case a.order > b.order:
			return 1
		}
		if c := run.Compare(p.digest(&a), p.digest(&b)); c != 0 {
			return c
		}
		return b.image - a.image
	})
}

// write writes the sorted entries.
func (p *spiller) write(w *runWriter) error {
	var last semel.Digest
	for i := range p.entries {
		e := &p.entries[i]
		d := *p.digest(e)
		if i > 0 && d == last {
			continue // the removal of a key that is done again
		}
		last = d
		var err error
		if e.image < 0 {
			err = w.addRemoval(&d)
		} else {
			err = w.add(p.images[e.image][e.off:], p.group[e.image].base)
		}
		if err != nil {
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

// dropRun deletes the oldest run, if all its keys have expired. The caller holds
// m.maintaining.
func (m *maintenance) dropRun(ctx context.Context) (forgotten int64, err error) {
	if !m.merger.merging.TryLock() {
		return 0, nil // the next round retries
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
		return 0, nil
	}
	if err = m.settle(ctx, o, m.carryRest(ctx, o, nil, s.to+1)); err != nil {
		return 0, err
	}
	m.log.mu.Lock()
	m.finder.runs.replace(0, 1)
	m.finder.runs.uncover()
	m.log.mu.Unlock()
	return s.summary.entries, m.log.deleteRuns(s)
}
