package file

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/vfs"
)

// SessionOptions are the options of OpenSession. The zero value is valid.
type SessionOptions struct {
	// Source is where the messages come from, if that is files: its positions
	// are then remembered in the store, in the record that has the keys and the
	// length of the output. It must have no State of its own, and must not have
	// been read from. Defaults to none.
	Source *Source
	// Window is how long a key is remembered. Defaults to 24 h. Must be above
	// 0; it may be semel.Forever.
	Window time.Duration
	// OnLate says what follows a message that is older than the window, and of
	// which there is no record. With semel.LateRun it is delivered; otherwise it
	// gets semel.ErrLate. Defaults to semel.LateReject.
	OnLate semel.LatePolicy
	// Part is the most items of a batch that are decided at once: while the disk
	// writes them, those behind are decided. Defaults to 2048. Must not be
	// negative.
	Part int
	// FS is the file layer, for tests. Defaults to vfs.OS.
	FS vfs.FS
}

// Session is the session of a pipeline whose keys are in an embedded store and
// whose sink is a file. Keys, the length of the file and the positions of the
// source become durable as one record; when the session is opened after one that
// was not closed, the file is cut to the length that the store knows. So each line
// is there once, whatever ends the process, power included.
//
// What comes while a record is being written shares the next one. A batch is
// taken in parts, and the next batch is begun meanwhile, so that the disk writes one
// while the next is decided.
type Session struct {
	store  *logstore.Store
	source *Source
	window time.Duration
	late   bool // what is late is delivered
	most   int  // items of a part
	out    *output
	unlock io.Closer

	batches sync.Pool // of *batch

	mu      sync.Mutex // guards the fields below, and the writing of out
	open    *unit      // that items join; nil if there is none
	sealing *unit      // on its way to the disk; nil if there is none
	lines   []byte
	settled []*pipeline.Item // for the items of the next unit
	failed  error            // the store has stopped
	closed  bool
}

// unit is what becomes durable in one record.
type unit struct {
	tx    *logstore.Tx
	wrote *logstore.Pending // the record; set when sealed
	from  int64             // length of the output before
	keys  int
	bytes int              // that the keys take in the record, at most
	items []*pipeline.Item // whose positions the record passes
	lead  chan struct{}    // gets one value when it can be sealed, by one of those who wait
	done  chan struct{}
	err   error // of all items; valid after done
}

var (
	_ pipeline.Session          = (*Session)(nil)
	_ pipeline.PipelinedSession = (*Session)(nil)
)

// maxUnit is the most keys of a unit, and maxUnitBytes the most that its keys
// take, unless it has but one part. They keep a transaction below
// logstore.TxBytes.
const (
	maxUnit      = 1 << 17
	maxUnitBytes = logstore.TxBytes / 2
)

// partItems is the default of SessionOptions.Part: enough that a record is worth
// its sync, and few enough that they stay in the processor's cache.
const partItems = 2048

// OpenSession opens the output, or makes it. If the session before was not
// closed, what is behind the length that the store knows is cut away: its end did
// not become durable, and comes again. So open the output with this store before
// anything else writes to it then; a Sink that is to write beside needs
// SinkOptions.Beside. What an output holds that the store never wrote to is kept,
// and so is what others appended after the session was closed: lines are appended
// to it. An output in which something else has changed is refused with an error
// that wraps semel.ErrInvalidRequest: move it away. One that is open already is
// refused with a [*LockedError]. The store is not closed by the session.
func OpenSession(ctx context.Context, store *logstore.Store, path string, opts *SessionOptions) (*Session, error) {
	s := &Session{store: store, window: semel.DefaultWindow, most: partItems}
	var fsys vfs.FS = vfs.OS{}
	if opts != nil {
		s.source, s.late = opts.Source, opts.OnLate == semel.LateRun
		if opts.Window != 0 {
			s.window = opts.Window
		}
		if opts.Part != 0 {
			s.most = opts.Part
		}
		if opts.FS != nil {
			fsys = opts.FS
		}
	}
	var errs []error
	if s.window < 0 {
		errs = append(errs, fmt.Errorf("file: SessionOptions.Window: %v is negative: %w", s.window, semel.ErrInvalidRequest))
	}
	if s.most < 0 {
		errs = append(errs, fmt.Errorf("file: SessionOptions.Part: %d is negative: %w", s.most, semel.ErrInvalidRequest))
	}
	if s.source != nil && s.source.state != nil {
		errs = append(errs, fmt.Errorf("file: SessionOptions.Source: it has a State of its own: %w", semel.ErrInvalidRequest))
	}
	path, err := filepath.Abs(path)
	if err = errors.Join(append(errs, err)...); err != nil {
		return nil, err
	}
	if s.unlock, err = lockFile(fsys, path); err != nil {
		return nil, err
	}
	if s.out, err = openOutput(fsys, path); err == nil {
		err = s.resume(ctx)
	}
	if err != nil {
		if s.out != nil {
			err = errors.Join(err, s.out.file.Close())
		}
		return nil, errors.Join(err, s.unlock.Close())
	}
	return s, nil
}

// Traits implements pipeline.Session.
func (s *Session) Traits() pipeline.SinkTraits {
	return pipeline.SinkTraits{Parallel: 4, Ordered: true}
}

// join decides the items of a batch in a unit and writes those that are fresh.
func (s *Session) join(ctx context.Context, b *batch, items []*pipeline.Item) (*unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.open != nil && (s.open.keys+len(b.items) > maxUnit || s.open.bytes+b.bytes > maxUnitBytes) {
		before := s.sealing
		s.mu.Unlock()
		_ = s.await(before) // who has items in it sees its error
		s.mu.Lock()
	}
	if b.before != nil && b.before.err != nil {
		return nil, pipeline.ErrBehind // the part before was taken back
	}
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	u := s.open
	if err := s.decide(u, b); err != nil {
		return nil, s.abort(u, &pipeline.StoreError{Err: err})
	}
	if blocked(items) {
		// What is behind a key that another holds must wait, and the
		// transaction has taken it already.
		return nil, s.abort(u, pipeline.ErrBehind)
	}
	s.lines = s.lines[:0]
	for _, it := range b.items {
		if it.Decision == semel.Fresh {
			if isLine(it) {
				s.lines = append(append(s.lines, it.Message.Body...), '\n')
				continue
			}
			var err error
			if s.lines, err = appendLine(s.lines, it.Message.Body); err != nil {
				// It was seen to be a line before. A key must not be recorded without.
				return nil, s.abort(u, &pipeline.StoreError{Err: err})
			}
		}
	}
	if err := s.write(); err != nil {
		return nil, s.abort(u, pipeline.Unavailable(err, 0))
	}
	u.keys += len(b.items)
	u.bytes += b.bytes
	for _, it := range items {
		if it.Err == nil {
			u.items = append(u.items, it)
		}
	}
	if s.sealing == nil {
		s.seal(u)
	} else {
		s.collect()
	}
	return u, nil
}

// begin opens a unit if there is none. Call with mu.
func (s *Session) begin(ctx context.Context) error {
	switch {
	case s.failed != nil:
		return s.failed
	case s.closed:
		return &pipeline.StoreError{Err: errClosed}
	case s.open != nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	if err := s.out.cut(); err != nil {
		return pipeline.Unavailable(err, 0)
	}
	tx, err := s.store.Begin(ctx)
	if err != nil {
		return &pipeline.StoreError{Err: fmt.Errorf("file: %w", err)}
	}
	tx.Set(s.out.name(), room[:])
	s.open = &unit{tx: tx, from: s.out.length, items: s.settled[:0], lead: make(chan struct{}, 1), done: make(chan struct{})}
	s.settled = nil
	return nil
}

// decide claims the keys of a batch. Call with mu.
func (s *Session) decide(u *unit, b *batch) error {
	for from := 0; from < len(b.items); {
		window := s.windowOf(b.items[from])
		to := from + 1
		for to < len(b.items) && s.windowOf(b.items[to]) == window {
			to++
		}
		keys := logstore.TxKeys{Digests: b.digests[from:to], Prints: b.prints[from:to], Keys: b.keys[from:to]}
		if err := u.tx.Claim(keys, window, b.decisions[from:to]); err != nil {
			return fmt.Errorf("file: %w", err)
		}
		from = to
	}
	for i, it := range b.items {
		it.Decision = b.decisions[i]
		switch it.Decision {
		case semel.Fresh:
			it.Attempt = it.Tries + 1
		case semel.Mismatch:
			it.Err = fmt.Errorf("%s: %w", it.Call.Key, semel.ErrMismatch)
		case semel.InFlight:
			it.Err = &semel.InFlightError{Key: it.Call.Key}
		case semel.InDoubt:
			it.Err = fmt.Errorf("%s: the key is unknown: %w", it.Call.Key, semel.ErrOutcomeUnknown)
		}
	}
	return nil
}

func (s *Session) windowOf(it *pipeline.Item) time.Duration {
	if it.Call.Window > 0 {
		return it.Call.Window
	}
	return s.window
}

// blocked reports whether a fresh item stands behind one of its group that has
// to wait.
func blocked(items []*pipeline.Item) bool {
	for i, it := range items {
		if it.Decision != semel.InFlight {
			continue
		}
		for _, behind := range items[i+1:] {
			if behind.Group == it.Group && behind.Decision == semel.Fresh {
				return true
			}
		}
	}
	return false
}

// write appends the lines that were gathered. They last when the unit is sealed
// and durable. Call with mu.
func (s *Session) write() error {
	if len(s.lines) == 0 {
		return nil
	}
	if err := s.out.write(s.lines); err != nil {
		return err
	}
	s.out.length += int64(len(s.lines))
	s.out.written = s.out.length
	return nil
}

// abort ends a unit that was not sealed and takes its lines away. Its items have
// the error: they were not delivered. Call with mu.
func (s *Session) abort(u *unit, err error) error {
	u.tx.Abort()
	s.open = nil
	s.reuse(u)
	s.out.length = u.from // begin cuts what is behind
	u.err = err
	close(u.done)
	return err
}

// seal sends a unit on its way. From here on it becomes durable, or the store
// has failed and with it all that would come later: room for the values was
// taken before. Call with mu.
func (s *Session) seal(u *unit) {
	s.open, s.sealing = nil, u
	var changed []entry
	if s.source != nil {
		s.source.settle(u.items)
		changed = s.source.take(reserved / 2)
	}
	s.reuse(u)
	err := s.note(u.tx, changed)
	out := s.out
	u.wrote = u.tx.Seal(func() error {
		if err != nil {
			return err
		}
		return out.sync()
	})
	u.lead <- struct{}{}
}

// reuse keeps the room of a unit's items for another. Call with mu.
func (s *Session) reuse(u *unit) {
	clear(u.items)
	s.settled, u.items = u.items[:0], nil
}

// await waits until a unit is durable, which takes as long as the disk does, and
// seals the next one then if nobody else does.
func (s *Session) await(u *unit) error {
	s.mu.Lock()
	before := s.sealing
	if s.open != u {
		before = nil
	}
	s.mu.Unlock()
	if before != nil {
		_ = s.await(before) // who has items in it sees its error, and may be long in coming
	}
	select {
	case <-u.done:
		return u.err
	case <-u.lead:
	}
	err := u.wrote.Wait(context.Background())
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arrived(u, err)
	return u.err
}

// collect seals the open unit if the one before is durable and nobody waits for it
// who would. Call with mu.
func (s *Session) collect() {
	u := s.sealing
	if !u.wrote.Done() {
		return
	}
	select {
	case <-u.lead:
		s.arrived(u, u.wrote.Wait(context.Background()))
	default:
	}
}

// arrived ends a unit whose record was written, or was not, and seals the next.
// Call with mu, as the only one who leads the unit.
func (s *Session) arrived(u *unit, err error) {
	s.sealing = nil
	if err != nil {
		u.err = &pipeline.StoreError{Err: fmt.Errorf("file: %w: %w", semel.ErrOutcomeUnknown, err)}
		s.failed = &pipeline.StoreError{Err: fmt.Errorf("file: %w", err)}
	}
	close(u.done)
	switch {
	case s.open == nil:
	case s.failed != nil:
		_ = s.abort(s.open, s.failed)
	default:
		s.seal(s.open)
	}
}

// Abandon implements pipeline.Session. The session holds nothing.
func (s *Session) Abandon(context.Context, []*pipeline.Item) {}

// Ready implements semel.Readier.
func (s *Session) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Close implements pipeline.Session. It records what the source was told since
// the last record, and that nothing more is being written.
func (s *Session) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	var errs []error
	if s.failed == nil && s.source != nil {
		errs = append(errs, s.last(ctx))
	}
	if s.failed == nil && s.open == nil && s.sealing == nil {
		errs = append(errs, s.out.mark(ctx, s.store, true))
	} else {
		errs = append(errs, s.failed, s.out.cut())
	}
	return errors.Join(append(errs, s.out.file.Close(), s.unlock.Close())...)
}

// last records the positions that changed and that no unit has.
func (s *Session) last(ctx context.Context) error {
	for {
		changed := s.source.take(reserved / 2)
		if len(changed) == 0 {
			return nil
		}
		tx, err := s.store.Begin(ctx)
		if err == nil {
			err = s.note(tx, changed)
			if err == nil {
				err = tx.Commit(ctx)
			}
			tx.Abort()
		}
		if err != nil {
			return fmt.Errorf("file: record the positions: %w", err)
		}
	}
}
