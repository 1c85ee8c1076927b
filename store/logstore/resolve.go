package logstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// Resolve implements semel.Resolver. It blocks for one durable write.
func (s *Store) Resolve(ctx context.Context, key semel.Key, as semel.State, result semel.Result, window time.Duration) error {
	if err := semel.ValidateResolve(key, as, result, window, s.opts.MaxResult); err != nil {
		return err
	}
	room := holderMost + s.completeRoom(&semel.CompleteRequest{Key: key, Result: result})
	return s.settleByHand(ctx, key, room, func(o *op, d *semel.Digest) error {
		now := o.now
		c := s.claims.get(d)
		if c == nil || c.state(now) != semel.Unknown {
			return fmt.Errorf("logstore: resolve %s: %w", key, semel.ErrNotUnknown)
		}
		if as == semel.Absent {
			s.forgetClaim(o, d, c)
			return nil
		}
		x := done{
			tick: expiryTick(now, int64(window)),
			// No token is stored, so the holder's token is stale from now on.
			rich: rich{
				attempt: c.attempt, first: c.first, fingerprint: c.fingerprint,
				key: s.kept(key), resultKind: result.Kind, data: result.Data,
			},
		}
		s.claims.remove(d)
		s.addDone(o, d, &x, now)
		return nil
	})
}

// Remove implements semel.Resolver. It blocks for one durable write if there
// was a durable record.
func (s *Store) Remove(ctx context.Context, key semel.Key) (found bool, err error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	err = s.settleByHand(ctx, key, 0, func(o *op, d *semel.Digest) error {
		if c := s.claims.get(d); c != nil {
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
		}
		return nil
	})
	return found, err
}

// settleByHand makes one change of one key. It calls change again after reads.
func (s *Store) settleByHand(ctx context.Context, key semel.Key, room int, change func(o *op, d *semel.Digest) error) (err error) {
	o := s.newOp()
	defer o.free()
	s.digestAll(o, 1, func(int) (semel.Key, error) { return key, nil })
	failed := s.each(ctx, o, 1, func(int) int { return richLeast + room }, func(int) {}, func(int) bool {
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

// Audit durably appends a line to the audit log. The line must not contain a
// line end. Write it before the change that it describes, so that every change
// has its line.
func (s *Store) Audit(_ context.Context, line []byte) error {
	s.prepare.Lock()
	defer s.prepare.Unlock()
	s.mu.Lock()
	err := s.usable()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.appendAudit(append(slices.Clip(line), '\n')); err != nil {
		return fmt.Errorf("logstore: write audit log: %w", err)
	}
	return nil
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
	if err = errors.Join(appendTo(f, line), f.Close()); err == nil && created {
		err = s.fs.SyncDir(s.dir)
	}
	return err
}

func appendTo(f vfs.File, line []byte) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	if size > 0 {
		// A line that a crash cut short must not corrupt this one.
		var end [1]byte
		if _, err := f.ReadAt(end[:], size-1); err != nil {
			return err
		}
		if end[0] != '\n' {
			line = append([]byte{'\n'}, line...)
		}
	}
	if _, err := f.WriteAt(line, size); err != nil {
		return err
	}
	return f.Sync()
}
