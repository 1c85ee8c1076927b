package logstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/digest"
)

// Store is an embedded, durable store for one process. Its methods are safe for
// concurrent use.
//
// Each part has one task, and one that is used by another stands before it. log.mu
// guards the fields of all parts, unless a field says otherwise.
type Store struct {
	opts        Options
	dir         *directory         // the names in the directory, identity and lock
	log         *log               // the segments, and what of them is in memory
	committer   *committer         // the end of the log: what is written and synced together
	values      *values            // named values
	finder      *finder            // the entry of a key in the log
	keys        *keys              // decides claims and completions
	inspector   *inspector         // looks at records
	merger      *merger            // merges runs
	maintenance *maintenance       // deletes segments, or lets their keys leave memory
	cancel      context.CancelFunc // stops the background goroutines
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.Purger         = (*Store)(nil)
	_ semel.ScopeBinder    = (*Store)(nil)
	_ doctor.Readier       = (*Store)(nil)
)

// Open opens the store in a directory. If the directory is empty or missing,
// Open creates a store there. It reads and verifies the log of all keys in memory before
// it returns, which takes about a second per few million keys. It verifies keys that have
// left memory when it reads them. It returns
//   - a [*vfs.LockedError] that names the holder if the store is already open; it
//     wraps semel.ErrStoreUnavailable too;
//   - a [*CorruptError] if the log is damaged, or ends before the position that
//     it had reached (a last write that a crash cut short is not damage);
//   - semel.ErrStoreFull if the disk has no space for what an open writes.
func Open(dir string, opts *Options) (*Store, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	s := newStore(dir, o)
	if err := s.dir.checkDir(); err != nil {
		return nil, err
	}
	if err := s.dir.make(); err != nil {
		return nil, fmt.Errorf("logstore: make directory: %w", err)
	}
	if s.dir.lock, err = s.dir.takeLock(); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.closeFiles(), s.dir.lock.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.log.background.Go(func() { s.maintenance.maintain(ctx) })
	s.log.background.Go(func() { s.merger.run(ctx) })
	if o.Fsync == Interval {
		s.log.background.Go(func() { s.committer.syncPeriodically(ctx) })
	}
	return s, nil
}

// newStore returns a store that is not loaded yet.
func newStore(path string, opts Options) *Store {
	s := &Store{opts: opts}
	s.dir = &directory{path: path, fs: opts.FS}
	s.log = &log{dir: s.dir, opts: &s.opts, cache: cache{opts: &s.opts}, wake: make(chan struct{}, 1)}
	s.committer = &committer{log: s.log, named: make(map[string]value)}
	s.values = &values{committer: s.committer, log: s.log}
	s.finder = &finder{log: s.log}
	s.keys = &keys{opts: &s.opts, log: s.log, committer: s.committer, values: s.values, finder: s.finder}
	s.keys.ops.New = func() any { return &op{pool: &s.keys.ops, hasher: s.keys.hasher} }
	s.inspector = &inspector{log: s.log, committer: s.committer, finder: s.finder, keys: s.keys}
	s.merger = &merger{log: s.log, finder: s.finder, fanIn: 8, wake: make(chan struct{}, 1)}
	s.maintenance = &maintenance{log: s.log, committer: s.committer, values: s.values, finder: s.finder, keys: s.keys, merger: s.merger}
	s.keys.relieve = s.maintenance.relieve
	return s
}

// start loads the store from its files.
func (s *Store) start() error {
	names, err := s.dir.fs.List(s.dir.path)
	if err != nil {
		return fmt.Errorf("logstore: list %s: %w", s.dir.path, err)
	}
	if err := s.dir.loadIdentity(names, s.opts.Clock); err != nil {
		return err
	}
	s.keys.hasher = digest.New(s.dir.id.secret)
	if err := newLoader(s).recover(names); err != nil {
		return err
	}
	if err := s.dir.countOpen(s.log.end()); err != nil {
		return err
	}
	s.keys.token = semel.Token(s.dir.id.opens << tokenBits)
	return nil
}

// Claim implements semel.Store. It blocks for one durable write if Hold or Done is
// set, or if the store has Options.DurableClaims. Otherwise it waits for the disk
// only if an answer depends on a record that is not yet durable.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	return s.keys.claim(ctx, reqs, answers)
}

// Complete implements semel.Store. It blocks for one durable write.
func (s *Store) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return s.keys.complete(ctx, reqs, answers)
}

// Release implements semel.Store. It blocks for one durable write if the claim
// is durable or becomes unknown.
func (s *Store) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return s.keys.release(ctx, reqs, answers)
}

// Extend implements semel.Store. It blocks for one durable write if a claim was
// granted with Options.DurableClaims. Other leases are not stored. It does not
// extend an unknown key. The holder of such a key can still complete or release it.
func (s *Store) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return s.keys.extend(ctx, reqs, answers)
}

// Begin opens a transaction. It waits until the previous transaction was
// committed, sealed or aborted. Changes that waited for that transaction run
// first. Begin waits for the disk only if a segment must be created.
func (s *Store) Begin(ctx context.Context) (*Tx, error) { return newTx(ctx, s.keys) }

// Sync makes all answered changes durable. Under Always, each answer already
// is. It blocks until the data is on disk.
func (s *Store) Sync() error { return s.committer.sync() }

// Resolve implements semel.Resolver. It blocks for one durable write.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	return s.keys.resolve(ctx, s.keys.digestOf(req.Key), req)
}

// ResolveDigest implements semel.DigestResolver. It blocks for one durable write.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	r, err := s.LookDigest(ctx, d)
	if err != nil {
		return err
	}
	if r.State != semel.Unknown {
		return notUnknown(r.Key, d)
	}
	req.Key = semel.Key{ID: d.String()}
	if err := req.Validate(s.opts.MaxResult); err != nil {
		return err
	}
	req.Key = r.Key
	return s.keys.resolve(ctx, d, req)
}

// Remove implements semel.Resolver. It blocks for one durable write if there
// was a durable record.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	if err := key.Validate(); err != nil {
		return false, err
	}
	return s.keys.remove(ctx, s.keys.digestOf(key))
}

// RemoveDigest implements semel.DigestResolver. It blocks as Remove does.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (found bool, err error) {
	return s.keys.remove(ctx, d)
}

// Look implements semel.Inspector. It waits for the disk only if a record is being
// written.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return s.inspector.lookKeys(ctx, keys, records)
}

// LookDigest implements semel.DigestResolver. It waits as Look does.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	return s.inspector.lookDigest(ctx, d)
}

// List implements semel.Inspector. Scope and ID are set for keys that were
// recorded with Options.KeepIDs. Other keys do not match a Filter with a scope.
// It holds one segment in memory at a time.
func (s *Store) List(ctx context.Context, filter semel.ListOptions) iter.Seq2[semel.Record, error] {
	return s.inspector.list(ctx, filter)
}

// Count implements semel.Inspector. Done includes expired keys that the store has
// not yet removed.
func (s *Store) Count(context.Context) (semel.Counts, error) { return s.inspector.count() }

// Purge implements semel.Purger. It deletes the segments whose keys have all
// expired, and removes the expired keys of the other segments from the index.
func (s *Store) Purge(ctx context.Context) (int64, error) { return s.maintenance.purge(ctx) }

// Value returns the named value of the last durable transaction. The caller
// must not change the bytes.
func (s *Store) Value(name string) ([]byte, bool) { return s.values.get(name) }

// Values returns the named values whose names start with prefix. The caller
// must not change the bytes.
func (s *Store) Values(prefix string) map[string][]byte { return s.values.all(prefix) }

// BindScope implements [semel.ScopeBinder]. The first call for a scope waits for
// the disk as a completion does.
func (s *Store) BindScope(ctx context.Context, scope, rule string) (string, error) {
	return bindScope(ctx, s.keys, scope, rule)
}

// BoundScopes returns the scopes that are bound to a rule, sorted. It does not block.
func (s *Store) BoundScopes(context.Context) ([]string, error) { return s.values.boundScopes(), nil }

// KeysWithoutRule reports whether the store has keys and binds no scope to a rule, as
// versions left it that kept no rules. The store does not know the scopes of such keys.
// KeysWithoutRule does not block, and may be called concurrently. It returns the error
// with which the store failed.
func (s *Store) KeysWithoutRule(context.Context) (bool, error) { return s.inspector.keysWithoutRule() }

// Audit durably appends a line to the audit log. The line is a JSON object with
// members, without a line end. Write the line before the change that it describes, so
// that every change has its line.
func (s *Store) Audit(_ context.Context, line []byte) error { return s.log.audit(line) }

// AuditTail returns the last lines of the audit log, at most most of them, the newest last. It may be
// called concurrently.
func (s *Store) AuditTail(_ context.Context, most int) ([][]byte, error) {
	return s.log.auditTail(most)
}

// Traits implements semel.Store.
func (s *Store) Traits() semel.Traits {
	return semel.Traits{
		Durable:       true,
		PowerSafe:     s.opts.Fsync == Always,
		DurableClaims: s.opts.DurableClaims,
		Transactional: true,
		Exact:         true,
		Origins:       true,
		Results:       true,
		MaxResult:     s.opts.MaxResult,
		Tick:          tickNanos,
	}
}

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.dir.path }

// Close waits for running calls, makes their changes durable and unlocks the
// directory. Later calls return semel.ErrClosed. It returns the error that
// stopped the store, if any. If the disk is too full to record the end of the
// log, the error wraps semel.ErrStoreFull and nothing is lost. A second Close
// does nothing.
func (s *Store) Close() error {
	s.log.mu.Lock()
	if s.log.closed {
		s.log.mu.Unlock()
		s.log.background.Wait()
		return nil
	}
	s.log.closed = true
	if s.committer.tx != nil {
		s.committer.tx.abort(errClosed)
	}
	last := s.committer.last
	s.log.mu.Unlock()

	s.cancel()
	if last != nil {
		<-last.done
	}
	s.log.background.Wait()
	err := s.shutDown()
	return errors.Join(err, s.closeFiles(), s.dir.lock.Close())
}

// closeFiles closes segments and runs. The store is not usable afterwards.
func (s *Store) closeFiles() error {
	s.finder.closeRuns()
	return s.log.closeFiles()
}

// shutDown ends the log with an empty record, which states that everything
// before it is durable. Then it cuts the file to its length and records the end
// of the log.
func (s *Store) shutDown() error {
	s.maintenance.maintaining.Lock()
	defer s.maintenance.maintaining.Unlock()
	s.log.mu.Lock()
	failed, spare, g := s.log.failed, s.log.spare, s.log.active
	s.log.spare = nil
	s.log.mu.Unlock()
	if failed != nil {
		return failed
	}
	if err := s.committer.syncAll(false); err != nil {
		return err
	}
	if spare != nil {
		err := errors.Join(spare.file.Close(), s.dir.fs.Remove(filepath.Join(s.dir.path, segmentName(spare.num))))
		if err != nil {
			return fmt.Errorf("logstore: remove spare segment: %w", err)
		}
	}
	if err := s.committer.writeEmpty(g); err != nil {
		return err
	}
	err := g.file.Truncate(int64(g.next))
	if err == nil {
		err = g.file.Sync()
	}
	if err != nil {
		return fmt.Errorf("logstore: close segment %d: %w", g.num, err)
	}
	end := logEnd{g.num, g.next}
	if end == s.dir.id.reached {
		return nil
	}
	s.dir.id.reached = end
	if err := s.dir.saveIdentity(); err != nil {
		return fmt.Errorf("logstore: close: all answers are durable, but the end of the log was not recorded, so its loss would go unnoticed: %w", err)
	}
	copied := &valuesFile{fs: s.dir.fs, dir: s.dir.path, store: s.dir.id.store, end: end}
	_ = copied.save(s.committer.named) // without it the next reader of the values reads the log
	return nil
}

// Ready implements doctor.Readier. It returns the error of a store that has failed or is
// closed. It does not block.
func (s *Store) Ready(context.Context) error {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	return s.log.usable()
}

// Digester returns the digester of the IDs in one scope, for [Tx.Claim].
func (s *Store) Digester(scope string) Digester { return Digester{s.keys.hasher.Scope(scope)} }

// Digester computes digests of the IDs in one scope, with the secret of a
// store. It is a value and is safe for concurrent use.
type Digester struct{ scoped digest.Scoped }

// String returns the digest of an ID.
func (d Digester) String(id string) semel.Digest { return d.scoped.String(id) }

// Bytes returns the digest of an ID. It does not retain id.
func (d Digester) Bytes(id []byte) semel.Digest { return d.scoped.Bytes(id) }

// Seed returns a secret number of the store, for fingerprints of content that
// is kept in it.
func (s *Store) Seed() uint64 {
	d := s.keys.hasher.Scope("\x00seed").String("\x00seed")
	return half(semel.Fingerprint(d))
}

// TxKeyBytes returns the maximum size of a key in a transaction, with its origin.
// It uses the key only if the store has Options.KeepIDs.
func (s *Store) TxKeyBytes(k semel.Key, origin string) int {
	if !s.opts.KeepIDs {
		k = semel.Key{}
	}
	return detail{k, origin}.txBytes()
}
