package redisstore

import (
	"context"
	"fmt"
	"iter"

	"github.com/semel-dev/semel"
)

// Look implements [semel.Inspector]. It blocks for one round trip. For a key in
// the compact form it shows no token, no attempt and no time of first sight.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if err := s.enter(ctx, "look", len(keys), len(records)); err != nil {
		return err
	}
	units := make([]unit, len(keys))
	memo := s.digests()
	for i, key := range keys {
		if err := key.Validate(); err != nil {
			return fmt.Errorf("redisstore: look: %w", err)
		}
		units[i] = unit{at: i, digest: memo.Key(key)}
	}
	return s.look(ctx, keys, units, records, func(at int) { records[at].Key = keys[at] })
}

// LookDigest implements [semel.DigestResolver]. It blocks for one round trip.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	if err := s.enter(ctx, "look", 0, 0); err != nil {
		return semel.Record{}, err
	}
	var record [1]semel.Record
	err := s.look(ctx, []semel.Key{named(d)}, []unit{{digest: d}}, record[:], func(int) {})
	return record[0], err
}

// look fills the records of units. keys are their names in errors. found is called
// for each existing record.
func (s *Store) look(ctx context.Context, keys []semel.Key, units []unit, records []semel.Record, found func(at int)) error {
	return s.run(ctx, s.scripts.look, &requests{units: units}, func(at int, answer string) error {
		records[at] = semel.Record{}
		if answer[0] == 'A' {
			return nil
		}
		if answer[0] == 'C' {
			return damaged("look", keys[at])
		}
		if len(answer) < 18 {
			return storeError("look", errBadAnswer)
		}
		r, ok := decode(answer[17:])
		if !ok {
			return damaged("look", keys[at])
		}
		if answer[0] == 'S' {
			// The set outlives the window, so its expiry does not give the time
			// of completion.
			r.window = 0
		}
		records[at] = r.show(int64(uint64At(answer, 9)), int64(uint64At(answer, 1)))
		records[at].Digest = units[at].digest
		found(at)
		return nil
	})
}

// List implements [semel.Inspector]. It scans all names of each master, including foreign names,
// one page for each round trip. The time grows with the number of names on the server. Records
// have a readable key only with [Options].KeepIDs, and a filter by scope selects among these. For
// a key in the compact form, List shows only that it is done and when it expires at the latest.
func (s *Store) List(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		err := s.walk(ctx, "list", func(p *page) error {
			for i := range p.records {
				r := &p.records[i]
				r.Result.Data = nil
				if filter.Selects(r) && !yield(*r, nil) {
					return errStopped
				}
			}
			if filter.Scope != nil || filter.State != semel.Absent && filter.State != semel.Done {
				return nil
			}
			for _, set := range p.sets {
				for range set.members {
					if !yield(semel.Record{State: semel.Done, Expires: set.expires}, nil) {
						return errStopped
					}
				}
			}
			return nil
		})
		if err != nil && err != errStopped {
			yield(semel.Record{}, err)
		}
	}
}

// Count implements [semel.Inspector]. It scans all names like List and reads each
// record, so do not call it every minute. MemoryBytes is an estimate from a
// sample. DiskBytes is the size of all names and values, written once. Oldest
// ignores keys in the compact form.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	var c semel.Counts
	var names, sampled, sampledBytes int64
	err := s.walk(ctx, "count", func(p *page) error {
		for i := range p.records {
			r := &p.records[i]
			switch r.State {
			case semel.Claimed:
				c.Claimed++
			case semel.Unknown:
				c.Unknown++
			case semel.Done:
				c.Done++
				if !r.FirstSeen.IsZero() {
					c.Oldest = max(c.Oldest, p.now.Sub(r.FirstSeen))
				}
			}
		}
		for _, set := range p.sets {
			// Keys that were done in the last moments also have a record, which
			// readRecords left out.
			c.Done += set.members
		}
		names += int64(len(p.records) + len(p.sets))
		c.DiskBytes += p.bytes
		sampled += p.sampled
		sampledBytes += p.sampledBytes
		return nil
	})
	if sampled > 0 {
		c.MemoryBytes = sampledBytes * names / sampled
	}
	return c, err
}
