package memstore

import (
	"context"
	"fmt"
	"iter"
	"time"
	"unsafe"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

// Look implements [semel.Inspector]. It does not block. For a key in the compact
// form it shows no token and no time of first sight.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	if err := s.enter(ctx, "look", len(keys), len(records)); err != nil {
		return err
	}
	now := s.moment()
	for i, key := range keys {
		if err := key.Validate(); err != nil {
			return fmt.Errorf("memstore: look: %w", err)
		}
		var err error
		if records[i], err = s.look(s.digest(&key), now); err != nil {
			return err
		}
		if records[i].State != semel.Absent {
			records[i].Key = key
		}
	}
	return nil
}

// LookDigest implements [semel.DigestResolver]. It does not block.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	if err := s.enter(ctx, "look", 0, 0); err != nil {
		return semel.Record{}, err
	}
	return s.look(d, s.moment())
}

// look returns the record of a digest.
func (s *Store) look(d semel.Digest, now moment) (found semel.Record, err error) {
	sh := s.lock(d[0])
	if sh == nil {
		return found, fmt.Errorf("memstore: look: %w", semel.ErrClosed)
	}
	defer s.unlock(sh)
	if r, _ := sh.record(&d, now.nanos); r != nil {
		return r.show(now.nanos), nil
	}
	if _, expiry, ok := sh.done.Find(&d, now.tick); ok {
		return s.showCompact(d, expiry), nil
	}
	return found, nil
}

func (s *Store) showCompact(d semel.Digest, expiry table.Tick) semel.Record {
	r := semel.Record{Digest: d, State: semel.Done, Attempt: 1}
	if expiry != table.Forever {
		r.Expires = instant(s.scale.Time(expiry))
	}
	return r
}

// List implements [semel.Inspector]. It holds no lock while the caller works on a
// record. Records have a readable key only with [Options].KeepIDs, and a filter
// by scope selects among these.
func (s *Store) List(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		for i := range s.shards {
			if err := s.listShard(ctx, byte(i), filter, yield); err != nil {
				if err != errStopped {
					yield(semel.Record{}, err)
				}
				return
			}
		}
	}
}

// Purge implements [semel.Purger]. Other calls can run between two shards.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	var forgotten int64
	for i := range s.shards {
		if err := s.enter(ctx, "purge", 0, 0); err != nil {
			return forgotten, err
		}
		now := s.moment()
		sh := s.lock(byte(i))
		if sh == nil {
			continue // the next round returns the error
		}
		forgotten += int64(sh.sweep(now))
		sh.done.Shrink()
		sh.index.Shrink()
		sh.records.shrink()
		s.unlock(sh)
	}
	return forgotten, nil
}

// Count implements [semel.Inspector]. Oldest is the age of the oldest done key,
// because claims and unknown keys do not end with a window. If compact keys
// have different windows, Oldest is a lower bound from the shortest window.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	c := semel.Counts{MemoryBytes: int64(unsafe.Sizeof(*s))}
	for i := range s.shards {
		if err := s.enter(ctx, "count", 0, 0); err != nil {
			return semel.Counts{}, err
		}
		now := s.moment()
		sh := s.lock(byte(i))
		if sh == nil {
			return semel.Counts{}, fmt.Errorf("memstore: count: %w", semel.ErrClosed)
		}
		sh.count(&c, now, &s.scale)
		s.unlock(sh)
	}
	return c, nil
}

func (sh *shard) count(c *semel.Counts, now moment, scale *table.Scale) {
	c.Done += int64(sh.done.Len())
	sh.done.EachExpiry(func(expiry table.Tick) {
		if expiry > now.tick {
			remaining := time.Duration(scale.Time(expiry) - now.nanos)
			c.Oldest = max(c.Oldest, sh.shortest-remaining)
		}
	})
	for n := range sh.records.top {
		r := sh.records.at(n)
		if r.state == semel.Absent || r.goneAt(now.nanos) {
			continue
		}
		switch r.stateAt(now.nanos) {
		case semel.Claimed:
			c.Claimed++
		case semel.Done:
			c.Done++
			c.Oldest = max(c.Oldest, time.Duration(now.nanos-r.firstSeen))
		case semel.Unknown:
			c.Unknown++
		}
	}
	c.MemoryBytes += sh.done.Bytes() + sh.index.Bytes() + sh.records.bytes() + sh.recent.bytes() + sh.dataBytes
}

// Resolve implements [semel.Resolver]. It does not block.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	if err := s.enter(ctx, "resolve", 0, 0); err != nil {
		return err
	}
	return s.resolve(s.digest(&req.Key), &req)
}

// ResolveDigest implements [semel.DigestResolver]. It does not block.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	if err := s.enter(ctx, "resolve", 0, 0); err != nil {
		return err
	}
	req.Key = semel.Key{ID: "digest " + d.String()}
	return s.resolve(d, &req)
}

// resolve settles the unknown record of a digest. Errors name the key.
func (s *Store) resolve(d semel.Digest, req *semel.ResolveRequest) error {
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	now := s.moment()
	sh := s.lock(d[0])
	if sh == nil {
		return fmt.Errorf("memstore: resolve: %w", semel.ErrClosed)
	}
	defer s.unlock(sh)
	r, n := sh.record(&d, now.nanos)
	if r == nil || r.stateAt(now.nanos) != semel.Unknown {
		return fmt.Errorf("memstore: resolve %s: %w", req.Key, semel.ErrNotUnknown)
	}
	if req.As == semel.Absent {
		sh.drop(r, n)
		return nil
	}
	// The record gets no token, so a holder that completes after this decision
	// is too late.
	r.token = 0
	s.finish(sh, r, n, &d, req.Result, req.Window, now)
	return nil
}

// Remove implements [semel.Resolver]. It does not block.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := s.enter(ctx, "remove", 0, 0); err != nil {
		return false, err
	}
	if err := key.Validate(); err != nil {
		return false, err
	}
	return s.remove(s.digest(&key))
}

// RemoveDigest implements [semel.DigestResolver]. It does not block.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (bool, error) {
	if err := s.enter(ctx, "remove", 0, 0); err != nil {
		return false, err
	}
	return s.remove(d)
}

// remove deletes the record of a digest.
func (s *Store) remove(d semel.Digest) (bool, error) {
	now := s.moment()
	sh := s.lock(d[0])
	if sh == nil {
		return false, fmt.Errorf("memstore: remove: %w", semel.ErrClosed)
	}
	defer s.unlock(sh)
	_, _, was := sh.done.Find(&d, now.tick)
	sh.done.Delete(&d)
	sh.recent.forget(recentKey(&d))
	if r, n := sh.record(&d, now.nanos); r != nil {
		sh.drop(r, n)
		was = true
	}
	return was, nil
}

// bytes returns the memory of the records.
func (s *slab) bytes() int64 {
	return int64(len(s.chunks)) * int64(unsafe.Sizeof([slabChunk]record{}))
}

func (t *recentCompletions) bytes() int64 {
	return int64(cap(t.ring)) * int64(unsafe.Sizeof(completion{}))
}
