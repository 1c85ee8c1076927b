package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/auditlog"
)

// Resolve implements semel.Resolver. It blocks for one durable write.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	return s.resolve(ctx, s.digestOf(req.Key), req)
}

// ResolveDigest implements semel.DigestResolver. It blocks for one durable write.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	r, err := s.LookDigest(ctx, d)
	if err != nil {
		return err
	}
	if r.State != semel.Unknown {
		return fmt.Errorf("logstore: resolve %s: %w", shown(r.Key, d), semel.ErrNotUnknown)
	}
	req.Key = semel.Key{ID: d.String()}
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	req.Key = r.Key
	return s.resolve(ctx, d, req)
}

// digestOf returns the digest of a valid key.
func (s *Store) digestOf(key semel.Key) semel.Digest {
	memo := digestMemo(s)
	return memo.Key(key)
}

// resolve settles the unknown record of a digest. The request has its key if that is known.
func (s *Store) resolve(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	key, result := req.Key, req.Result
	room := semel.MaxOriginBytes + s.completeRoom(&semel.CompleteRequest{Key: key, Result: result})
	return s.settleByHand(ctx, d, func() int { return room }, func(o *op, d *semel.Digest) error {
		now := o.now
		c := s.claims.Get(d)
		if c == nil || c.state(now) != semel.Unknown {
			return fmt.Errorf("logstore: resolve %s: %w", shown(key, *d), semel.ErrNotUnknown)
		}
		if req.As == semel.Absent {
			s.forgetClaim(o, d, c)
			return nil
		}
		x := done{
			tick: expiryTick(now, int64(req.Window)),
			// No token is stored, so the holder's token is stale from now on.
			rich: rich{
				attempt: c.attempt, first: c.first, fingerprint: c.fingerprint,
				key: s.kept(key), origin: c.shown().origin, resultKind: result.Kind, data: result.Data,
			},
		}
		s.claims.Remove(d)
		s.addDone(o, d, &x, now)
		return nil
	})
}

// shown returns a key for a message, or its digest if the key is not known.
func shown(key semel.Key, d semel.Digest) string {
	if key.ID == "" {
		return "the digest " + d.String()
	}
	return key.String()
}

// Remove implements semel.Resolver. It blocks for one durable write if there
// was a durable record.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	return s.RemoveDigest(ctx, s.digestOf(key))
}

// RemoveDigest implements semel.DigestResolver. It blocks as Remove does.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (found bool, err error) {
	err = s.settleByHand(ctx, d, s.knownRoom, func(o *op, d *semel.Digest) error {
		if c := s.claims.Get(d); c != nil {
			found = true
			s.forgetClaim(o, d, c)
			return nil
		}
		f, ok, _, err := s.find(o, d)
		if !ok {
			return err
		}
		s.index.remove(f.shard, f.slot)
		if found = o.now < f.entry.expires; found {
			s.writeRemoval(o, d)
			s.forgetKnown(o)
		}
		return nil
	})
	return found, err
}

// settleByHand makes one change of one record, which takes at most the given room besides
// one entry. It calls change again after reads.
func (s *Store) settleByHand(ctx context.Context, d semel.Digest, room func() int, change func(o *op, d *semel.Digest) error) (err error) {
	o := s.newOp()
	defer o.free()
	o.digests = append(o.digests, d)
	failed := s.each(ctx, o, 1, func(int) int { return richLeast + room() }, func(int) {}, func(int) bool {
		err = change(o, &o.digests[0])
		return len(o.reads) == 0
	})
	if failed != nil {
		return failed
	}
	return errors.Join(err, s.settle(ctx, o))
}

// AuditName is the name of the audit log in the store's directory. It records
// who changed a key by hand, and why. The store only appends to it.
const AuditName = "audit.jsonl"

// Audit durably appends a line to the audit log. The line is a JSON object with
// members, without a line end. Write the line before the change that it describes, so
// that every change has its line.
func (s *Store) Audit(_ context.Context, line []byte) error {
	s.prepare.Lock()
	defer s.prepare.Unlock()
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.appendAudit(line); err != nil {
		return fmt.Errorf("logstore: write audit log: %w", err)
	}
	return nil
}

// AuditTail returns the last lines of the audit log, at most most of them, the newest last. It may be
// called concurrently.
func (s *Store) AuditTail(_ context.Context, most int) ([][]byte, error) {
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f, err := s.fs.Open(filepath.Join(s.dir, AuditName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("logstore: read audit log: %w", err)
	}
	lines, err := auditlog.Tail(f, most)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("logstore: read audit log: %w", err)
	}
	return lines, nil
}

func (s *Store) appendAudit(line []byte) error {
	name := filepath.Join(s.dir, AuditName)
	f, err := s.fs.Open(name)
	created := errors.Is(err, fs.ErrNotExist)
	if created {
		f, err = s.fs.Create(name)
	}
	if err != nil {
		return err
	}
	if err = errors.Join(auditlog.Append(f, line), f.Close()); err == nil && created {
		err = s.fs.SyncDir(s.dir)
	}
	return err
}
