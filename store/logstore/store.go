package logstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"sync"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/clock"
	"github.com/semel-dev/semel/internal/digest"
	"github.com/semel-dev/semel/store/logstore/internal/digestmap"
	"github.com/semel-dev/semel/vfs"
)

// Store is an embedded, durable store for one process. Its methods are safe for
// concurrent use.
type Store struct {
	dir    string
	opts   Options
	fs     vfs.FS
	lock   io.Closer
	id     identity
	hasher digest.Hasher
	clock  *clock.Clock

	// mu guards all fields below. Nothing blocks while it is held: files are
	// read and written without it. After a file read, the key is looked up
	// again under mu.
	mu      sync.Mutex
	index   index
	claims  digestmap.Map[claim] // keys that are claimed or unknown
	log     segmentTable
	origins bool // a claim had an origin
	values  map[string]value
	token   semel.Token // the last token issued
	failed  error       // why the store stopped
	closed  bool

	active     *segment // where entries are appended
	spare      *segment // the next segment, created ahead
	writing    *segment // last segment of the writer; there is one writer at a time
	dirty      bool     // written data is not yet synced
	tx         *Tx      // the open transaction
	open       *batch   // collects entries
	last       *batch   // the latest batch, until it is written
	lastCalls  int      // number of calls that waited for the latest written batch
	seq        uint32   // of the latest batch
	emptySeq   uint32   // of the empty record that ended the log at open
	resident   []residentChunk
	freeChunks [][]byte

	gate gate

	// prepare is held while a segment is created or lengthened. Lock it before
	// mu.
	prepare sync.Mutex
	// binding is held while a scope is bound. Lock it before mu.
	binding sync.Mutex
	// maintaining is held while segments are deleted. Lock it before prepare
	// and mu.
	maintaining sync.Mutex

	ops        sync.Pool // of *op
	background sync.WaitGroup
	cancel     context.CancelFunc // stops the background goroutines
	wake       chan struct{}      // tells the maintenance that a segment was started
}

var (
	_ semel.Store          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.Purger         = (*Store)(nil)
	_ semel.ScopeBinder    = (*Store)(nil)
)

// Open opens the store in a directory. If the directory is empty or missing,
// Open creates a store there. It reads and verifies the whole log before it
// returns, which takes about a second per few million keys. It returns
//   - a [*vfs.LockedError] that names the holder if the store is already open; it
//     wraps semel.ErrStoreUnavailable too;
//   - a [*CorruptError] if the log is damaged, or ends before the position that
//     it had reached (a last write that a crash cut short is not damage);
//   - semel.ErrStoreFull if the index does not fit into Options.MaxIndexBytes.
func Open(dir string, opts *Options) (*Store, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	s := &Store{
		dir: dir, opts: o, fs: o.FS,
		values: make(map[string]value),
		wake:   make(chan struct{}, 1),
	}
	s.ops.New = func() any { return &op{store: s} }
	if err := s.checkDir(); err != nil {
		return nil, err
	}
	if err := s.makeDir(); err != nil {
		return nil, fmt.Errorf("logstore: make directory: %w", err)
	}
	if s.lock, err = s.takeLock(); err != nil {
		return nil, err
	}
	if err := s.start(); err != nil {
		return nil, errors.Join(err, s.closeFiles(), s.lock.Close())
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.cancel = cancel
	s.background.Go(func() { s.maintain(ctx) })
	if o.Fsync == Interval {
		s.background.Go(func() { s.syncPeriodically(ctx) })
	}
	return s, nil
}

// makeDir creates the directory and makes its name durable. It does so at every
// open, because an existing directory may still disappear after a power loss.
func (s *Store) makeDir() error {
	dir, err := filepath.Abs(s.dir)
	if err != nil {
		return err
	}
	parents := []string{filepath.Dir(dir)}
	for at := dir; ; at = filepath.Dir(at) {
		if _, err := s.fs.List(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		parents = append(parents, filepath.Dir(at))
	}
	if err := s.fs.MkdirAll(s.dir); err != nil {
		return err
	}
	for _, parent := range parents {
		// A process that may not open the parent directory cannot sync it, and
		// did not create the store's directory.
		if err := s.fs.SyncDir(parent); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// start loads the store from its files.
func (s *Store) start() error {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return fmt.Errorf("logstore: list %s: %w", s.dir, err)
	}
	if err := s.loadIdentity(names); err != nil {
		return err
	}
	s.hasher = digest.New(s.id.secret)
	if err := s.recover(names); err != nil {
		return err
	}
	if err := s.countOpen(); err != nil {
		return err
	}
	s.token = semel.Token(s.id.opens << tokenBits)
	return nil
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
func (s *Store) Dir() string { return s.dir }

// Close waits for running calls, makes their changes durable and unlocks the
// directory. Later calls return semel.ErrClosed. It returns the error that
// stopped the store, if any. If the disk is too full to record the end of the
// log, the error wraps semel.ErrStoreFull and nothing is lost. A second Close
// does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		s.background.Wait()
		return nil
	}
	s.closed = true
	if s.tx != nil {
		s.tx.abort(errClosed)
	}
	last := s.last
	s.mu.Unlock()

	s.cancel()
	if last != nil {
		<-last.done
	}
	s.background.Wait()
	err := s.shutDown()
	return errors.Join(err, s.closeFiles(), s.lock.Close())
}

// shutDown ends the log with an empty record, which states that everything
// before it is durable. Then it cuts the file to its length and records the end
// of the log.
func (s *Store) shutDown() error {
	s.maintaining.Lock()
	defer s.maintaining.Unlock()
	s.mu.Lock()
	failed, spare, g := s.failed, s.spare, s.active
	s.spare = nil
	s.mu.Unlock()
	if failed != nil {
		return failed
	}
	if err := s.syncAll(false); err != nil {
		return err
	}
	if spare != nil {
		err := errors.Join(spare.file.Close(), s.fs.Remove(filepath.Join(s.dir, segmentName(spare.num))))
		if err != nil {
			return fmt.Errorf("logstore: remove spare segment: %w", err)
		}
	}
	if err := s.writeEmpty(g); err != nil {
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
	if end == s.id.reached {
		return nil
	}
	s.id.reached = end
	if err := s.saveIdentity(); err != nil {
		return fmt.Errorf("logstore: close: all answers are durable, but the end of the log was not recorded, so its loss would go unnoticed: %w", err)
	}
	copied := &valuesFile{fs: s.fs, dir: s.dir, store: s.id.store, end: end}
	_ = copied.save(s.values) // without it the next reader of the values reads the log
	return nil
}

// writeEmpty writes the last record, unless the log ends with an empty record.
func (s *Store) writeEmpty(g *segment) error {
	s.mu.Lock()
	if s.writing == g && s.seq == s.emptySeq || g.next+emptyRecord+sealRecord > g.limit {
		s.mu.Unlock()
		return nil
	}
	b := s.newBatch()
	s.closeBatch(b)
	s.mu.Unlock()
	s.commit(b)
	return b.err
}

// closeFiles closes every segment. The store is not usable afterwards.
func (s *Store) closeFiles() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for i, g := range s.log.ring {
		if g != nil && g.file != nil && g.pins == 0 {
			errs = append(errs, g.file.Close())
			g.file = nil
		}
		if g != nil {
			g.dead = true // the last reader closes it
		}
		s.log.ring[i] = nil
	}
	return errors.Join(errs...)
}

// usable returns an error if the store cannot be used.
func (s *Store) usable() error {
	if s.failed != nil {
		return s.failed
	}
	if s.closed {
		return errClosed
	}
	return nil
}

// fail stops the store. Writes since the last sync may be lost, and no later
// sync can prove that they are not.
func (s *Store) fail(cause error) {
	if s.failed == nil {
		s.failed = fmt.Errorf("logstore: %w: reopen the store: %w", semel.ErrStoreFailed, cause)
	}
}

// Digester returns the digester of the IDs in one scope, for [Tx.Claim].
func (s *Store) Digester(scope string) Digester { return Digester{s.hasher.Scope(scope)} }

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
	d := s.hasher.Scope("\x00seed").String("\x00seed")
	return half(semel.Fingerprint(d))
}

// enter begins a change. It waits until no transaction is open and takes the
// lock.
func (s *Store) enter(ctx context.Context) error {
	s.mu.Lock()
	if err := s.gate.pass(ctx, s); err != nil {
		s.mu.Unlock()
		return err
	}
	return nil
}
