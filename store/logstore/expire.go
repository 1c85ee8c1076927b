package logstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/semel-dev/semel"
)

// maintenancePeriod is the interval between checks of the segments when no
// writes trigger one.
const maintenancePeriod = time.Minute

// maintain creates segments ahead of use, deletes expired ones, and looks whether the
// files are still there, until the store is closed. If it fails, for lack of space or
// because the store failed, it retries in the next round. A call that needs the result
// retries too and reports the error.
func (s *Store) maintain(ctx context.Context) {
	ticker, looks := time.NewTicker(maintenancePeriod), time.NewTicker(lookPeriod)
	defer ticker.Stop()
	defer looks.Stop()
	for {
		select {
		case <-s.wake:
		case <-looks.C:
			s.lookAtFiles()
			continue
		case <-ticker.C:
			s.mu.Lock()
			s.dropClaims()
			s.mu.Unlock()
		case <-ctx.Done():
			return
		}
		if s.wantsSpare() {
			// A failed sync has already stopped the store. If space is missing,
			// the write that needs the segment retries and returns the error.
			_ = s.prepareSpare(minSegmentSize)
		}
		// A segment that was not deleted is still expired. The next round
		// retries.
		_, _ = s.expire(ctx)
	}
}

// wantsSpare reports whether the active segment is more than half full.
func (s *Store) wantsSpare() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spare == nil && s.active.next > s.active.limit/2
}

// Purge implements semel.Purger. It deletes the segments whose keys have all
// expired, and removes the expired keys of the other segments from the index.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	deleted, err := s.expire(ctx)
	if err != nil {
		return deleted, err
	}
	dropped, err := s.dropExpired(ctx)
	return deleted + dropped, err
}

// expire deletes segments, oldest first. It deletes a segment when all its keys
// have expired and it has few claims. If expired segments lie behind older live
// ones and make up most of the log, it rewrites the live keys of the older
// segments and deletes those as well. Segments are deleted in order, so an
// entry never outlives a later entry of the same key.
func (s *Store) expire(ctx context.Context) (forgotten int64, err error) {
	s.maintaining.Lock()
	defer s.maintaining.Unlock()
	defer s.sweep()
	for {
		if ctx.Err() != nil {
			return forgotten, interrupted(ctx)
		}
		s.mu.Lock()
		err := s.usable()
		g := s.log.byNum(s.log.first)
		last := err != nil || g == s.active || g == s.writing
		due := !last && s.due(g)
		s.mu.Unlock()
		if last || !due {
			return forgotten, err
		}
		n, err := s.retire(ctx, g)
		forgotten += n
		if err != nil {
			return forgotten, err
		}
	}
}

// sweep removes the slots of deleted segments from the index. The positions of
// those segments may be reused only after that.
func (s *Store) sweep() {
	const step = 64
	s.mu.Lock()
	defer s.mu.Unlock()
	first := s.log.first
	if s.log.swept == first {
		return
	}
	for i := range s.index.shards {
		s.index.sweep(&s.index.shards[i], &s.log)
		if i%step == step-1 {
			s.mu.Unlock() // let other calls run
			s.mu.Lock()
		}
	}
	s.log.swept = first
}

// due reports whether the oldest segment must be deleted.
func (s *Store) due(g *segment) bool {
	now := s.clock.Nanos()
	if g.summary.expired(now, g.base) == g.summary.entries && 2*s.restBytes(g) < g.limit {
		return true
	}
	var live, dead int64
	for num := s.log.first; num < s.active.num; num++ {
		g := s.log.byNum(num)
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
func (s *Store) restBytes(g *segment) (n int) {
	for _, c := range s.claims.All() {
		if c.durable && s.log.at(c.pos) == g {
			r := c.rich()
			n += r.size()
		}
	}
	for name, v := range s.values {
		if s.log.at(v.pos) == g {
			n += valueRoom(name, v.data)
		}
	}
	return n
}

// retire deletes the oldest segment after its live entries were rewritten
// durably. It returns the number of forgotten keys.
func (s *Store) retire(ctx context.Context, g *segment) (int64, error) {
	carried, err := s.carry(ctx, g)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	forgotten := g.summary.entries - carried
	s.log.first = g.num + 1
	s.log.ring[g.num%ringSize] = nil
	s.mu.Unlock()
	return forgotten, s.deleteSegment(g)
}

// deleteSegment removes a segment's file. Current readers can finish.
func (s *Store) deleteSegment(g *segment) error {
	s.mu.Lock()
	if s.log.byNum(g.num) == g {
		s.log.ring[g.num%ringSize] = nil
	}
	g.dead = true
	g.closeIfUnused()
	s.mu.Unlock()
	err := s.removeIfThere(filepath.Join(s.dir, segmentName(g.num)))
	if err == nil {
		err = syncFailed(s.fs.SyncDir(s.dir))
	}
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		err = s.stopIfUnsynced(err)
		return fmt.Errorf("logstore: delete segment %d: %w", g.num, err)
	}
	return nil
}

// carry rewrites the live entries of the oldest segment: live done keys, claims
// and values. Last it writes the number of the next segment, which becomes the
// oldest. It returns when all is durable.
func (s *Store) carry(ctx context.Context, g *segment) (int64, error) {
	var live []entry
	s.mu.Lock()
	expired := g.summary.expired(s.clock.Nanos(), g.base) == g.summary.entries
	s.mu.Unlock()
	if !expired {
		err := s.visitDone(g, false, func(e *entry) bool {
			live = append(live, *e)
			return true
		})
		if err != nil {
			return 0, err
		}
	}
	o := s.newOp()
	defer o.free()
	var carried int64
	err := s.each(ctx, o, len(live), func(i int) int { return carryRoom(&live[i]) }, func(int) {}, func(i int) bool {
		carried += s.carryDone(o, g, &live[i])
		return true
	})
	if err == nil {
		err = s.carryRest(ctx, o, g)
	}
	// Lead the batches even after an error.
	return carried, errors.Join(err, s.settle(context.WithoutCancel(ctx), o))
}

func carryRoom(e *entry) int {
	if e.rich == nil {
		return richLeast
	}
	return e.rich.size()
}

// carryDone rewrites one done entry if it is still the current entry of its
// key.
func (s *Store) carryDone(o *op, g *segment, e *entry) int64 {
	if !s.index.forget(&e.digest, g.position(e.off)) {
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
	s.addDone(o, &e.digest, &x, s.clock.Nanos())
	return 1
}

// carryRest rewrites the segment's claims and values, and writes the number of
// the next segment.
func (s *Store) carryRest(ctx context.Context, o *op, g *segment) error {
	var digests []semel.Digest
	var names []string
	room := valueRoom(firstSegment, make([]byte, 4))
	s.mu.Lock()
	for d, c := range s.claims.All() {
		if c.durable && s.log.at(c.pos) == g {
			digests = append(digests, *d)
		}
	}
	if s.tx != nil {
		for _, t := range s.tx.taken { // they return if the transaction is aborted
			digests = append(digests, t.digest)
		}
	}
	for name, v := range s.values {
		if s.log.at(v.pos) == g && name != firstSegment {
			names = append(names, name)
			room = max(room, valueRoom(name, v.data))
		}
	}
	s.mu.Unlock()
	first := binary.LittleEndian.AppendUint32(nil, g.num+1)
	n := len(digests) + len(names) + 1
	return s.each(ctx, o, n, func(i int) int {
		if i < len(digests) {
			if c := s.claims.Get(&digests[i]); c != nil {
				return c.room()
			}
			return richLeast
		}
		return room
	}, func(int) {}, func(i int) bool {
		switch {
		case i == n-1:
			s.writeValue(o, firstSegment, first)
		case i >= len(digests):
			s.carryValue(o, g, names[i-len(digests)])
		default:
			if c := s.claims.Get(&digests[i]); c != nil && c.durable && s.log.at(c.pos) == g {
				s.writeClaim(o, &digests[i], c)
			}
		}
		return true
	})
}

func (s *Store) carryValue(o *op, g *segment, name string) {
	if v, ok := s.values[name]; ok && s.log.at(v.pos) == g {
		s.writeValue(o, name, v.data)
	}
}

// dropExpired removes expired keys from the index, segment by segment, and
// drops abandoned claims.
func (s *Store) dropExpired(ctx context.Context) (int64, error) {
	var dropped int64
	for num := uint32(0); ; num++ {
		if ctx.Err() != nil {
			return dropped, interrupted(ctx)
		}
		s.mu.Lock()
		if err := s.usable(); err != nil {
			s.mu.Unlock()
			return dropped, err
		}
		dropped += s.dropClaims()
		num = max(num, s.log.first)
		g := s.log.byNum(num)
		if g == nil {
			s.mu.Unlock()
			return dropped, nil
		}
		g.pin()
		s.mu.Unlock()
		err := s.visitDone(g, true, func(e *entry) bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.index.forget(&e.digest, g.position(e.off)) {
				dropped++
			}
			return true
		})
		s.unpin(g)
		if err != nil {
			return dropped, err
		}
	}
}

// abandoned is how long after its lease the store remembers a claim without Hold. A
// late holder has that time to complete it. Claims of keys that
// never return do not pile up.
const abandoned = time.Hour

// dropClaims drops the abandoned claims. If one of them is in the log, an open drops
// it again, until its segment is deleted.
func (s *Store) dropClaims() (dropped int64) {
	now := s.clock.Nanos()
	for d, c := range s.claims.All() {
		if c.isAbandoned(now) {
			s.claims.Remove(d)
			dropped++
		}
	}
	return dropped
}
