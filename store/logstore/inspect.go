package logstore

import (
	"context"
	"iter"
	"time"

	"github.com/semel-dev/semel"
)

// Look implements semel.Inspector. It waits for the disk only if a record is being
// written.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if len(keys) != len(records) {
		return errLengths
	}
	o := s.newOp()
	defer o.free()
	for _, k := range keys {
		if err := k.Validate(); err != nil {
			return err
		}
	}
	s.digestAll(o, len(keys), func(i int) (semel.Key, error) { return keys[i], nil })
	err := s.look(ctx, o, records)
	for i := range records {
		if records[i].Key == (semel.Key{}) {
			records[i].Key = keys[i]
		}
	}
	return err
}

// LookDigest implements semel.DigestResolver. It waits as Look does.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	o := s.newOp()
	defer o.free()
	o.digests = append(o.digests, d)
	var record [1]semel.Record
	err := s.look(ctx, o, record[:])
	return record[0], err
}

// look fills the records of o.digests.
func (s *Store) look(ctx context.Context, o *op, records []semel.Record) error {
	var times []place
	for i := 0; i < len(records); {
		if err := ctx.Err(); err != nil {
			return interrupted(ctx)
		}
		s.mu.Lock()
		err := s.usable()
		for err == nil && i < len(records) {
			var at place
			if at, err = s.lookOne(o, &o.digests[i], &records[i]); err != nil || len(o.reads) > 0 {
				break
			}
			if at.segment != nil {
				at.record = i
				times = append(times, at)
			}
			i++
		}
		s.mu.Unlock()
		s.readAll(o)
		if err != nil {
			s.release(times)
			return err
		}
	}
	err := s.settle(ctx, o)
	for _, at := range times {
		if err == nil {
			records[at.record].FirstSeen, err = s.timeAt(at)
		}
	}
	s.release(times)
	return err
}

// place is the location of a compact entry, whose time is that of its record.
type place struct {
	segment *segment // pinned; nil if there is no entry
	off     int
	record  int
}

func (s *Store) release(places []place) {
	for _, p := range places {
		s.unpin(p.segment)
	}
}

func (s *Store) timeAt(p place) (time.Time, error) {
	r, err := s.recordAround(p.segment, p.off)
	return time.Unix(0, r.time), err
}

// lookOne fills a record, unless it adds to o.reads.
func (s *Store) lookOne(o *op, d *semel.Digest, record *semel.Record) (place, error) {
	now := s.clock.Nanos()
	*record = semel.Record{Digest: *d}
	if c := s.claims.Get(d); c != nil {
		*record = s.claimed(d, c, now)
		s.waitForClaim(o, c)
		return place{}, nil
	}
	f, ok, _, err := s.find(o, d)
	if err != nil || !ok || now >= f.entry.expires || s.uncommitted(f.pos) {
		return place{}, err
	}
	o.waitFor(s.pendingAt(f.pos))
	f.entry.fill(record)
	record.Result = f.entry.result()
	if f.entry.rich != nil {
		return place{}, nil
	}
	g := s.log.at(f.pos)
	g.pin()
	return place{segment: g, off: offset(f.pos)}, nil
}

// uncommitted reports whether a position belongs to the open transaction.
func (s *Store) uncommitted(pos uint64) bool {
	if s.tx == nil {
		return false
	}
	b := s.tx.batch
	return s.log.at(pos) == b.segment && offset(pos) >= b.start
}

// claimed returns the record of a claim. Its process has ended if it is from an
// earlier open.
func (s *Store) claimed(d *semel.Digest, c *claim, now int64) semel.Record {
	return semel.Record{
		Orphaned: c.state(now) == semel.Claimed && uint64(c.token)>>tokenBits < s.id.opens,
		Key:      c.shown().key, Origin: c.shown().origin, Digest: *d, State: c.state(now), Token: c.token, Attempt: int(c.attempt),
		Holder: c.name, Fingerprint: c.fingerprint, FirstSeen: timeOf(c.first), LeaseEnd: timeOf(c.leaseEnd),
	}
}

// fill sets the fields of a done key's record, except for the result.
func (e *entry) fill(r *semel.Record) {
	r.Digest, r.State, r.Expires = e.digest, semel.Done, timeOf(e.expires)
	if e.rich == nil {
		r.Fingerprint = wholeOf(e.print)
		return
	}
	r.Key, r.Origin, r.Token, r.Attempt = e.rich.key, e.rich.origin, e.rich.token, int(e.rich.attempt)
	r.Fingerprint, r.FirstSeen = e.rich.fingerprint, timeOf(e.rich.first)
	r.Result.Kind, r.ResultSize = e.rich.resultKind, len(e.rich.data)
}

// List implements semel.Inspector. Scope and ID are set for keys that were
// recorded with Options.KeepIDs. Other keys do not match a Filter with a scope.
// It holds one segment in memory at a time.
func (s *Store) List(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		claims, err := s.listClaims(filter)
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
		for num, more := uint32(0), true; more; num++ {
			num, more, err = s.listSegment(ctx, num, filter, yield)
			if err != nil {
				yield(semel.Record{}, err)
				return
			}
		}
	}
}

func (s *Store) listClaims(filter semel.ListOptions) ([]semel.Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	var records []semel.Record
	now := s.clock.Nanos()
	for d, c := range s.claims.All() {
		if r := s.claimed(d, c, now); filter.Selects(&r) {
			records = append(records, r)
		}
	}
	return records, nil
}

// Count implements semel.Inspector. Done includes expired keys that the store has
// not yet removed.
func (s *Store) Count(context.Context) (semel.Counts, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return semel.Counts{}, err
	}
	now := s.clock.Nanos()
	counts := semel.Counts{
		Done:        s.index.count,
		MemoryBytes: s.memoryBytes() + int64(len(s.resident)+len(s.freeChunks))*chunkSize,
	}
	for _, c := range s.claims.All() {
		if c.state(now) == semel.Unknown {
			counts.Unknown++
		} else {
			counts.Claimed++
		}
	}
	for num := s.log.first; num <= s.active.num; num++ {
		g := s.log.byNum(num)
		counts.DiskBytes += int64(g.limit)
		if counts.Oldest == 0 && g.summary.expired(now, g.base) < g.summary.entries {
			counts.Oldest = time.Duration(now - g.summary.first)
		}
	}
	if s.spare != nil {
		counts.DiskBytes += int64(s.spare.limit)
	}
	return counts, nil
}
