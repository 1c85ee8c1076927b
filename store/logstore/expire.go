package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/semel-dev/semel"
)

// maintenancePeriod is the interval between checks of the segments when no
// writes trigger one.
const maintenancePeriod = time.Minute

// maintenance creates segments ahead of use and deletes expired ones.
type maintenance struct {
	log       *log
	committer *committer
	values    *values
	finder    *finder
	keys      *keys
	merger    *merger
	// maintaining is held while segments are deleted or leave memory. Lock it before
	// log.prepare and log.mu.
	maintaining sync.Mutex
}

// maintain creates segments ahead of use, deletes expired ones, and looks whether the
// files are still there, until the store is closed. If it fails, for lack of space or
// because the store failed, it retries in the next round. A call that needs the result
// retries too and reports the error.
func (m *maintenance) maintain(ctx context.Context) {
	ticker, looks := time.NewTicker(maintenancePeriod), time.NewTicker(lookPeriod)
	defer ticker.Stop()
	defer looks.Stop()
	for {
		select {
		case <-m.log.wake:
		case <-looks.C:
			m.lookAtFiles()
			continue
		case <-ticker.C:
			m.log.mu.Lock()
			m.keys.claims.dropAbandoned(m.log.clock.Nanos())
			m.log.mu.Unlock()
		case <-ctx.Done():
			return
		}
		m.log.mu.Lock()
		wanted := m.log.wantsSpare()
		m.log.mu.Unlock()
		if wanted {
			// A failed sync has already stopped the store. If space is missing,
			// the write that needs the segment retries and returns the error.
			_ = m.log.prepareSpare(minSegmentSize)
		}
		m.log.mu.Lock()
		crowded := m.keys.crowded(3, 4)
		m.log.mu.Unlock()
		if crowded {
			_ = m.relieve(ctx) // the next round retries
		}
		// A segment that was not deleted is still expired. The next round
		// retries.
		_, _ = m.expire(ctx)
	}
}

// purge deletes the segments whose keys have all
// expired, and removes the expired keys of the other segments from the index.
func (m *maintenance) purge(ctx context.Context) (int64, error) {
	deleted, err := m.expire(ctx)
	if err != nil {
		return deleted, err
	}
	dropped, err := m.dropExpired(ctx)
	return deleted + dropped, err
}

// expire deletes segments, oldest first. It deletes a segment when all its keys
// have expired and it has few claims. If expired segments lie behind older live
// ones and make up most of the log, it rewrites the live keys of the older
// segments and deletes those as well. Segments are deleted in order, so an
// entry never outlives a later entry of the same key.
func (m *maintenance) expire(ctx context.Context) (forgotten int64, err error) {
	m.maintaining.Lock()
	defer m.maintaining.Unlock()
	defer m.finder.sweep()
	defer m.merger.wakeUp() // keys of runs may have expired
	for {
		if ctx.Err() != nil {
			return forgotten, interrupted(ctx)
		}
		n, more, err := m.expireOldest(ctx)
		forgotten += n
		if !more || err != nil {
			return forgotten, err
		}
	}
}

// expireOldest deletes the oldest run or segment if it is due. It returns false if it is
// not. While there are runs, the oldest segment is not deleted but spilled, because it may
// hide keys of a run.
func (m *maintenance) expireOldest(ctx context.Context) (forgotten int64, more bool, err error) {
	m.log.mu.Lock()
	err = m.log.usable()
	g, runs := m.log.segments.byNum(m.log.segments.first), m.finder.runs.list
	due := err == nil && g != m.log.active && g != m.log.writing && m.due(g)
	dead := err == nil && len(runs) > 0 && runs[0].expired(m.log.clock.Nanos())
	m.log.mu.Unlock()
	switch {
	case dead:
		return m.dropRun(ctx)
	case !due:
		return 0, false, err
	case len(runs) > 0:
		more, err = m.spill(ctx)
		return 0, more, err
	}
	forgotten, err = m.retire(ctx, g)
	return forgotten, true, err
}

// due reports whether the oldest segment must be deleted.
func (m *maintenance) due(g *segment) bool {
	now := m.log.clock.Nanos()
	if g.summary.expired(now, g.base) == g.summary.entries && 2*m.restBytes(g) < g.limit {
		return true
	}
	var live, dead int64
	for num := m.log.segments.first; num < m.log.active.num; num++ {
		g := m.log.segments.byNum(num)
		share := int64(g.limit)
		if n := g.summary.entries; n > 0 {
			gone := share * g.summary.expired(now, g.base) / n
			dead += gone
			share -= gone
		}
		live += share
	}
	return dead > live
}

// restBytes returns an upper bound of the bytes of the claims and values in a segment.
// If they fill most of it, to copy them gains too little: segments that only have live
// claims would be copied without end.
func (m *maintenance) restBytes(g *segment) (n int) {
	for _, c := range m.keys.claims.All() {
		if c.durable && m.log.segments.at(c.pos) == g {
			r := c.rich()
			n += r.size()
		}
	}
	for name, v := range m.committer.named {
		if m.log.segments.at(v.pos) == g {
			n += valueRoom(name, v.data)
		}
	}
	return n
}

// retire deletes the oldest segment after its live entries were rewritten
// durably. It returns the number of forgotten keys.
func (m *maintenance) retire(ctx context.Context, g *segment) (int64, error) {
	carried, err := m.carry(ctx, g)
	if err != nil {
		return 0, err
	}
	m.log.mu.Lock()
	forgotten := g.summary.entries - carried
	m.log.segments.first = g.num + 1
	m.log.segments.ring[g.num%ringSize] = nil
	m.log.mu.Unlock()
	return forgotten, m.log.deleteSegment(g)
}

// carry rewrites the live entries of the oldest segment: live done keys, claims
// and values. Last it writes the number of the next segment, which becomes the
// oldest. It returns when all is durable.
func (m *maintenance) carry(ctx context.Context, g *segment) (int64, error) {
	var live []entry
	m.log.mu.Lock()
	expired := g.summary.expired(m.log.clock.Nanos(), g.base) == g.summary.entries
	m.log.mu.Unlock()
	if !expired {
		_, err := m.finder.visitDone(g, false, func(e *entry) bool {
			live = append(live, *e)
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	o := m.keys.newOp()
	o.maintains = true
	defer o.free()
	var carried int64
	err := m.keys.each(ctx, o, len(live), func(i int) int { return carryRoom(&live[i]) }, func(int) {}, func(i int) bool {
		carried += m.carryDone(o, g, &live[i])
		return true
	})
	if err == nil {
		err = m.carryRest(ctx, o, g, g.num+1)
	}
	return carried, m.settle(ctx, o, err)
}

// settle makes what was carried durable, under every sync policy: the files that had it
// are deleted next. It leads the batches of the call even after an error, and returns that.
func (m *maintenance) settle(ctx context.Context, o *op, err error) error {
	err = errors.Join(err, m.committer.settle(context.WithoutCancel(ctx), o))
	if err != nil || m.log.opts.Fsync == Always {
		return err
	}
	return m.committer.syncAll(true)
}

func carryRoom(e *entry) int {
	if e.rich == nil {
		return richLeast
	}
	return e.rich.size()
}

// carryDone rewrites one done entry if it is still the current entry of its
// key.
func (m *maintenance) carryDone(o *op, g *segment, e *entry) int64 {
	if !m.finder.index.forget(&e.digest, g.position(e.off)) {
		return 0
	}
	tick := int64(never)
	if e.expires != never {
		tick = e.expires / tickNanos
	}
	x := done{tick: tick, check: e.check, rich: rich{fingerprint: wholeOf(e.print)}}
	if e.rich != nil {
		x.rich = *e.rich
	}
	m.keys.addDone(o, &e.digest, &x, m.log.clock.Nanos())
	return 1
}

// carryRest rewrites the claims and values of a segment, if one is given, and writes the
// number of the oldest segment that must exist, unless it is 0.
func (m *maintenance) carryRest(ctx context.Context, o *op, g *segment, oldest uint32) error {
	var digests []semel.Digest
	var names []string
	room := valueRoom(firstSegment, make([]byte, 4))
	m.log.mu.Lock()
	if g == nil {
		g = new(segment) // in which nothing is
	}
	for d, c := range m.keys.claims.All() {
		if c.durable && m.log.segments.at(c.pos) == g {
			digests = append(digests, *d)
		}
	}
	if m.committer.tx != nil {
		for _, t := range m.committer.tx.taken { // they return if the transaction is aborted
			digests = append(digests, t.digest)
		}
	}
	for name, v := range m.committer.named {
		if m.log.segments.at(v.pos) == g && (name != firstSegment || oldest == 0) {
			names = append(names, name)
			room = max(room, valueRoom(name, v.data))
		}
	}
	o.waitFor(m.committer.last) // it may have what replaces a claim of the segment
	m.log.mu.Unlock()
	first := binary.LittleEndian.AppendUint32(nil, oldest)
	rest := len(digests) + len(names)
	n := rest
	if oldest > 0 {
		n++
	}
	return m.keys.each(ctx, o, n, func(i int) int {
		if i < len(digests) {
			if c := m.keys.claims.Get(&digests[i]); c != nil {
				return c.room()
			}
			return richLeast
		}
		return room
	}, func(int) {}, func(i int) bool {
		o.waitFor(m.committer.last)
		switch {
		case i == rest:
			m.values.write(o, firstSegment, first)
		case i >= len(digests):
			m.carryValue(o, g, names[i-len(digests)])
		default:
			if c := m.keys.claims.Get(&digests[i]); c != nil && c.durable && m.log.segments.at(c.pos) == g {
				m.keys.writeClaim(o, &digests[i], c)
			}
		}
		return true
	})
}

// carryValue rewrites a value, unless a record that is on its way to the disk has a newer
// one, for which the caller waits. The old one behind it would replace it.
func (m *maintenance) carryValue(o *op, g *segment, name string) {
	for b := m.committer.last; b != nil; b = b.prev {
		if slices.ContainsFunc(b.named, func(n namedValue) bool { return n.name == name }) {
			return
		}
	}
	if v, ok := m.committer.named[name]; ok && m.log.segments.at(v.pos) == g {
		m.values.write(o, name, v.data)
	}
}

// dropExpired removes expired keys from the index, segment by segment, and
// drops abandoned claims.
func (m *maintenance) dropExpired(ctx context.Context) (int64, error) {
	var dropped int64
	for num := uint32(0); ; num++ {
		if ctx.Err() != nil {
			return dropped, interrupted(ctx)
		}
		m.log.mu.Lock()
		if err := m.log.usable(); err != nil {
			m.log.mu.Unlock()
			return dropped, err
		}
		dropped += m.keys.claims.dropAbandoned(m.log.clock.Nanos())
		num = max(num, m.log.segments.first)
		g := m.log.segments.byNum(num)
		if g == nil {
			m.log.mu.Unlock()
			return dropped, nil
		}
		g.pin()
		m.log.mu.Unlock()
		_, err := m.finder.visitDone(g, true, func(e *entry) bool {
			m.log.mu.Lock()
			defer m.log.mu.Unlock()
			if m.finder.index.forget(&e.digest, g.position(e.off)) {
				dropped++
			}
			return true
		})
		m.log.unpin(g)
		if err != nil {
			return dropped, err
		}
	}
}
