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
	"github.com/semel-dev/semel/vfs"
)

// Store is an embedded, durable store for one process. Its methods may be
// called at once from many goroutines.
type Store struct {
	dir    string
	opts   Options
	fs     vfs.FS
	lock   io.Closer
	id     identity
	hasher digest.Hasher
	clock  *clock.Clock

	// mu guards everything below. Nothing blocks under it: files are read and
	// written outside, and what was read is looked up again under it.
	mu     sync.Mutex
	index  index
	claims claims
	log    segmentTable
	values map[string]value
	token  semel.Token // the last one given out
	failed error       // why the store stopped
	closed bool

	active     *segment // where entries are appended
	spare      *segment // the next one, made ahead
	writing    *segment // where the writer, of which there is one at a time, wrote last
	dirty      bool     // something is written and not synced
	tx         *Tx      // the open transaction
	open       *batch   // gathers entries
	last       *batch   // the latest batch, while it is not written
	lastCalls  int      // how many calls waited for the latest written batch
	seq        uint32   // of the latest batch
	emptySeq   uint32   // of the empty record that the log ended with at open
	resident   []residentChunk
	freeChunks [][]byte

	gate gate

	// prepare is held while a segment is made or lengthened. It is taken
	// before mu.
	prepare sync.Mutex
	// maintaining is held while segments are deleted. It is taken before
	// prepare and mu.
	maintaining sync.Mutex

	ops        sync.Pool // of *op
	background sync.WaitGroup
	cancel     context.CancelFunc // ends the background
	wake       chan struct{}      // tells the maintenance that a segment was begun
}

var (
	_ semel.Store    = (*Store)(nil)
	_ semel.Looker   = (*Store)(nil)
	_ semel.Lister   = (*Store)(nil)
	_ semel.Resolver = (*Store)(nil)
	_ semel.Purger   = (*Store)(nil)
	_ semel.Counter  = (*Store)(nil)
)

// Open opens the store in a directory, or makes one there if the directory is
// empty or missing. It reads the whole log, and verifies it, before it returns:
// about a second for each few million keys. It returns
//   - a [*LockedError] that names the holder if the store is open already;
//   - a [*CorruptError] if the log is damaged, except in a last write that a
//     crash cut short, or if it ends before the place that it had reached;
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

// makeDir makes the directory, and its name durable. It does so at every open:
// that the directory is there does not mean that it will be after loss of power.
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
		// Who may not open a directory cannot sync it, and did not make it.
		if err := s.fs.SyncDir(parent); err != nil && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	return nil
}

// start brings the store to life from its files.
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
		Transactional: true,
		Fenced:        true,
		Exact:         true,
		Results:       true,
		MaxResult:     s.opts.MaxResult,
		Tick:          tickNanos,
	}
}

// Dir returns the directory of the store.
func (s *Store) Dir() string { return s.dir }

// Close finishes what was begun, makes it durable and gives the directory up.
// Calls that run are finished first; later ones get semel.ErrClosed. It returns
// the error that stopped the store, if one did. If the disk is too full to note
// where the log ends, the error wraps semel.ErrStoreFull and nothing is lost. A
// second Close does nothing.
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

// shutDown ends the log with an empty record, which says that everything before
// it is durable, cuts the file to its length, and notes that the log reaches
// that far.
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
		return fmt.Errorf("logstore: close: all answers are durable, but a loss of the log's end would not be noticed: %w", err)
	}
	return nil
}

// writeEmpty writes the last record, unless the log ends with one.
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

// closeFiles closes every segment. It is the last use of the store.
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
			g.dead = true // a reader that is left closes it
		}
		s.log.ring[i] = nil
	}
	return errors.Join(errs...)
}

// usable returns why the store cannot be used, if so.
func (s *Store) usable() error {
	if s.failed != nil {
		return s.failed
	}
	if s.closed {
		return errClosed
	}
	return nil
}

// fail stops the store: what was written since the last sync may be gone, and
// no later sync could prove otherwise.
func (s *Store) fail(cause error) {
	if s.failed == nil {
		s.failed = fmt.Errorf("logstore: %w: open it again: %w", semel.ErrStoreFailed, cause)
	}
}

// Digester returns the digester of ids in one scope, for [Tx.Claim].
func (s *Store) Digester(scope string) Digester { return Digester{s.hasher.Scope(scope)} }

// Digester digests the ids of one scope with the secret of a store. It is a
// value, and safe for concurrent use.
type Digester struct{ scoped digest.Scoped }

// String returns the digest of an id.
func (d Digester) String(id string) semel.Digest { return d.scoped.String(id) }

// Bytes returns the digest of an id, which it does not keep.
func (d Digester) Bytes(id []byte) semel.Digest { return d.scoped.Bytes(id) }

// Seed returns a secret number that belongs to the store, for fingerprints of
// content that are kept in it.
func (s *Store) Seed() uint64 {
	d := s.hasher.Scope("\x00seed").String("\x00seed")
	return half(semel.Fingerprint(d))
}

// enter begins a change: it takes the lock once no transaction is open.
func (s *Store) enter(ctx context.Context) error {
	s.mu.Lock()
	if err := s.gate.pass(ctx, s); err != nil {
		s.mu.Unlock()
		return err
	}
	return nil
}
