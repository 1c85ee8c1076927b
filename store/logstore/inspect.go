package logstore

import (
	"context"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
)

// inspector reads records and changes none.
type inspector struct {
	log       *log
	committer *committer
	finder    *finder
	keys      *keys
}

// lookKeys fills the records of keys.
func (in *inspector) lookKeys(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if len(keys) != len(records) {
		return errLengths
	}
	o := in.keys.newOp()
	defer o.free()
	for _, k := range keys {
		if err := k.Validate(); err != nil {
			return err
		}
	}
	in.keys.digestAll(o, len(keys), func(i int) (semel.Key, error) { return keys[i], nil })
	err := in.look(ctx, o, records)
	for i := range records {
		if records[i].Key == (semel.Key{}) {
			records[i].Key = keys[i]
		}
	}
	return err
}

func (in *inspector) lookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	o := in.keys.newOp()
	defer o.free()
	o.digests = append(o.digests, d)
	var record [1]semel.Record
	err := in.look(ctx, o, record[:])
	return record[0], err
}

// look fills the records of o.digests.
func (in *inspector) look(ctx context.Context, o *op, records []semel.Record) error {
	var times []place
	for i := 0; i < len(records); {
		if err := ctx.Err(); err != nil {
			return interrupted(ctx)
		}
		in.log.mu.Lock()
		err := in.log.usable()
		for err == nil && i < len(records) {
			var at place
			if at, err = in.lookOne(o, &o.digests[i], &records[i]); err != nil || o.mustRead() {
				break
			}
			if at.segment != nil {
				at.record = i
				times = append(times, at)
			}
			i++
		}
		in.log.mu.Unlock()
		in.finder.readAll(o)
		if err != nil {
			in.release(times)
			return err
		}
	}
	err := in.committer.settle(ctx, o)
	for _, at := range times {
		if err == nil {
			records[at.record].FirstSeen, err = in.timeAt(at)
		}
	}
	in.release(times)
	return err
}

// place is the location of a compact entry, whose time is that of its record.
type place struct {
	segment *segment // pinned; nil if there is no entry
	off     int
	record  int
}

func (in *inspector) release(places []place) {
	for _, p := range places {
		in.log.unpin(p.segment)
	}
}

func (in *inspector) timeAt(p place) (time.Time, error) {
	r, err := in.finder.recordAround(p.segment, p.off)
	return time.Unix(0, r.time), err
}

// lookOne fills a record, unless it adds to o.reads.
func (in *inspector) lookOne(o *op, d *semel.Digest, record *semel.Record) (place, error) {
	now := in.log.clock.Nanos()
	*record = semel.Record{Digest: *d}
	if c := in.keys.claims.Get(d); c != nil {
		*record = in.claimed(d, c, now)
		in.keys.waitForClaim(o, c)
		return place{}, nil
	}
	f, ok, _, err := in.finder.find(o, d)
	if err != nil || !ok || now >= f.entry.expires || f.run == nil && in.uncommitted(f.pos) {
		return place{}, err
	}
	in.keys.waitForEntry(o, f)
	f.entry.fill(record)
	record.Result = f.entry.result()
	if f.entry.rich != nil || f.run != nil {
		return place{}, nil // a run does not have the times of records
	}
	g := in.log.segments.at(f.pos)
	g.pin()
	return place{segment: g, off: offset(f.pos)}, nil
}

// uncommitted reports whether a position belongs to the open transaction.
func (in *inspector) uncommitted(pos uint64) bool {
	if in.committer.tx == nil {
		return false
	}
	b := in.committer.tx.batch
	return in.log.segments.at(pos) == b.segment && offset(pos) >= b.start
}

// claimed returns the record of a claim. Its process has ended if it is from an
// earlier open.
func (in *inspector) claimed(d *semel.Digest, c *claim, now int64) semel.Record {
	return semel.Record{
		Orphaned: c.state(now) == semel.Claimed && uint64(c.token)>>tokenBits < in.log.dir.id.opens,
		Key:      c.shown().key, Origin: c.shown().origin, Digest: *d, State: c.state(now), Token: c.token, Attempt: int(c.attempt),
		Holder: c.name, Fingerprint: c.fingerprint, FirstSeen: timeOf(c.first), LeaseEnd: timeOf(c.leaseEnd),
	}
}

// list yields the claims, and then the done keys, segment by segment.
func (in *inspector) list(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		claims, err := in.listClaims(filter)
		if err != nil {
			yield(semel.Record{}, err)
			return
		}
		for _, r := range claims {
			if !yield(r, nil) {
				return
			}
		}
		if filter.State != semel.Absent && filter.State != semel.Done {
			return
		}
		l := in.beginListing()
		defer in.endListing(l)
		for more := true; more; {
			more, err = in.listNext(ctx, l, filter, yield)
			if err != nil {
				yield(semel.Record{}, err)
				return
			}
		}
	}
}

func (in *inspector) listClaims(filter semel.ListOptions) ([]semel.Record, error) {
	in.log.mu.Lock()
	defer in.log.mu.Unlock()
	if err := in.log.usable(); err != nil {
		return nil, err
	}
	var records []semel.Record
	now := in.log.clock.Nanos()
	for d, c := range in.keys.claims.All() {
		if r := in.claimed(d, c, now); filter.Selects(&r) {
			records = append(records, r)
		}
	}
	return records, nil
}

// listing is a listing that is under way. Keys leave memory during that time, even
// if the listing pauses: a run of segments that are not yet listed is listed in their place.
// log.mu guards the fields.
type listing struct {
	runs   []*sortedRun // pinned, oldest first
	listed int          // of them
	next   uint32       // number of the first segment that is not listed, if it exists
}

func (in *inspector) beginListing() *listing {
	in.log.mu.Lock()
	defer in.log.mu.Unlock()
	r := &in.finder.runs
	l := &listing{runs: slices.Clone(r.list), next: in.log.segments.first}
	for _, s := range l.runs {
		s.pins++
	}
	r.listings = append(r.listings, l)
	return l
}

func (in *inspector) endListing(l *listing) {
	in.log.mu.Lock()
	r := &in.finder.runs
	r.listings = slices.DeleteFunc(r.listings, func(other *listing) bool { return other == l })
	in.log.mu.Unlock()
	in.finder.unpinRuns(l.runs)
}

// listNext yields the done keys of the next run, or of the next segment after the last run. It
// returns false at the end.
func (in *inspector) listNext(ctx context.Context, l *listing, filter semel.ListOptions, yield func(semel.Record, error) bool) (more bool, err error) {
	if ctx.Err() != nil {
		return false, interrupted(ctx)
	}
	in.log.mu.Lock()
	if err := in.log.usable(); err != nil {
		in.log.mu.Unlock()
		return false, err
	}
	i := l.listed
	if i < len(l.runs) {
		l.listed++
		l.next = max(l.next, l.runs[i].to+1)
		in.log.mu.Unlock()
		return in.listRun(ctx, l, i, filter, yield)
	}
	last, active := in.committer.last, max(l.next, in.log.segments.first) == in.log.active.num
	in.log.mu.Unlock()
	if active && last != nil {
		// Entries that were moved to the end of the log during the listing are
		// there.
		if err := last.wait(ctx); err != nil {
			return false, err
		}
	}
	return in.listSegment(l, filter, yield)
}

// listRun yields the done keys of a run that no later entry hides.
func (in *inspector) listRun(ctx context.Context, l *listing, i int, filter semel.ListOptions, yield func(semel.Record, error) bool) (more bool, err error) {
	const checkEvery = 1 << 12
	in.log.mu.Lock()
	s := l.runs[i]
	in.log.mu.Unlock()
	scan := s.Scan()
	for n := 0; scan.Next(); n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return false, interrupted(ctx)
		}
		e, ok := decodeEntry(scan.Entry(), s.base)
		if !ok || e.kind != kindDone {
			continue
		}
		var r semel.Record
		e.fill(&r)
		if !filter.Selects(&r) {
			continue
		}
		current, err := in.finder.isCurrent(&e, l, i)
		if err != nil {
			return false, err
		}
		if current && !yield(r, nil) {
			return false, nil
		}
	}
	if err := scan.Err(); err != nil {
		return false, damaged(err)
	}
	return true, nil
}

// listSegment yields the done keys of the first segment that is not listed. It notes which
// they are before it yields one, because the caller may take any time with it.
func (in *inspector) listSegment(l *listing, filter semel.ListOptions, yield func(semel.Record, error) bool) (more bool, err error) {
	in.finder.runs.spills.Lock()
	in.log.mu.Lock()
	if l.listed < len(l.runs) { // it has become a run
		in.log.mu.Unlock()
		in.finder.runs.spills.Unlock()
		return true, nil
	}
	g := in.log.segments.byNum(max(l.next, in.log.segments.first))
	active := g == in.log.active
	g.pin()
	in.log.mu.Unlock()
	defer in.log.unpin(g)
	var current []uint32
	img, err := in.finder.visitDone(g, false, func(e *entry) bool {
		current = append(current, uint32(e.off))
		return true
	})
	in.log.mu.Lock()
	l.next = g.num + 1
	in.log.mu.Unlock()
	in.finder.runs.spills.Unlock()
	if err != nil {
		return false, err
	}
	for _, off := range current {
		e, ok := decodeEntry(img[off:], g.base)
		if !ok {
			return false, in.log.dir.corrupt(g, int(off), errUndecoded)
		}
		var r semel.Record
		e.fill(&r)
		if filter.Selects(&r) && !yield(r, nil) {
			return false, nil
		}
	}
	return !active, nil
}

func (in *inspector) count() (semel.Counts, error) {
	in.log.mu.Lock()
	defer in.log.mu.Unlock()
	if err := in.log.usable(); err != nil {
		return semel.Counts{}, err
	}
	now := in.log.clock.Nanos()
	counts := semel.Counts{
		Done:        in.finder.index.count + in.finder.runs.keys(),
		MemoryBytes: in.keys.memoryBytes() + int64(len(in.log.cache.resident)+len(in.log.cache.free))*chunkSize,
	}
	for _, c := range in.keys.claims.All() {
		if c.state(now) == semel.Unknown {
			counts.Unknown++
		} else {
			counts.Claimed++
		}
	}
	for _, s := range in.finder.runs.list {
		counts.DiskBytes += s.DiskBytes()
		if counts.Oldest == 0 && !s.expired(now) {
			counts.Oldest = time.Duration(now - s.summary.first)
		}
	}
	for num := in.log.segments.first; num <= in.log.active.num; num++ {
		g := in.log.segments.byNum(num)
		counts.DiskBytes += int64(g.limit)
		if counts.Oldest == 0 && g.summary.expired(now, g.base) < g.summary.entries {
			counts.Oldest = time.Duration(now - g.summary.first)
		}
	}
	if in.log.spare != nil {
		counts.DiskBytes += int64(in.log.spare.limit)
	}
	return counts, nil
}

// keysWithoutRule reports whether the store has keys and binds no scope.
func (in *inspector) keysWithoutRule() (bool, error) {
	in.log.mu.Lock()
	defer in.log.mu.Unlock()
	for name := range in.committer.named {
		if strings.HasPrefix(name, scopeRule) {
			return false, nil
		}
	}
	inRuns := slices.ContainsFunc(in.finder.runs.list, func(s *sortedRun) bool { return s.summary.entries > 0 })
	return inRuns || in.finder.index.count > 0 || in.keys.claims.Len() > 0, in.log.usable()
}
