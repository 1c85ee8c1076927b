package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/invalid"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
	"github.com/semel-dev/semel/vfs"
)

// SessionOptions are the options of OpenSession. The zero value is valid.
type SessionOptions struct {
	// Source is the source of the messages, if it reads files. The store then
	// keeps its positions, in the same record as the keys and the length of the
	// output. It must have no State of its own, and must not have been read.
	// Defaults to none.
	Source *Source
	// Window is how long a key is remembered. Defaults to 24 h. Must be above
	// 0; it may be semel.Forever.
	Window time.Duration
	// OnLate is what happens to a message that is older than the window and has
	// no record. With semel.LateRun it is delivered. Otherwise it gets
	// semel.ErrLate. Defaults to semel.LateReject.
	OnLate semel.LatePolicy
	// FilterMap filters and changes the messages that are written. Defaults to none.
	FilterMap pipeline.FilterMap
	// Append keeps the content of an output that the store does not know, and
	// appends to it. Otherwise such an output is refused unless it is empty.
	// Defaults to false.
	Append bool
	// FS is the file layer, for tests. Defaults to vfs.OS.
	FS vfs.FS

	part int // partItems unless a test sets it
}

// Session is the session of a pipeline whose keys are in an embedded store and
// whose sink is a file. Keys, the length of the file and the positions of the
// source become durable in one record. If the previous session was not closed,
// the file is cut to the length that the store knows. So each line is in the
// file once, even after a crash or a power loss.
//
// Items that come while a record is being written share the next record. A batch
// is decided in parts, and the next batch starts before the previous one is
// durable.
type Session struct {
	store  *logstore.Store
	source *Source
	change pipeline.FilterMap // may be nil
	window time.Duration
	late   bool // late messages are delivered
	most   int  // items of a part
	out    *output
	unlock io.Closer

	batches sync.Pool // of *batch

	mu      sync.Mutex // guards the fields below, and the writing of out
	open    *unit      // the unit that items join; or nil
	sealing *unit      // the unit that is being written; or nil
	lines   []byte
	settled []*pipeline.Item // for the items of the next unit
	failed  error            // the store has stopped
	closed  bool
}

// unit is the content of one record.
type unit struct {
	tx    *logstore.Tx
	wrote *logstore.Pending // the record; set when sealed
	from  int64             // length of the output before
	keys  int
	bytes int              // upper bound of the keys' size in the record
	items []*pipeline.Item // whose positions the record passes
	lead  chan struct{}    // gets one value when a waiting caller can seal it
	done  chan struct{}
	err   error // of all items; valid after done
}

var (
	_ pipeline.Session          = (*Session)(nil)
	_ pipeline.PipelinedSession = (*Session)(nil)
)

// maxUnit is the maximum number of keys in a unit, and maxUnitBytes the maximum
// size of its keys, unless it has only one part. They keep a transaction below
// logstore.TxBytes.
const (
	maxUnit      = 1 << 17
	maxUnitBytes = logstore.TxBytes / 2
)

// partItems is the maximum number of items of a batch that are decided together.
// While the disk writes one part, the next is decided. It is large enough to be
// worth a sync, and small enough for the processor's cache.
const partItems = 2048

// OpenSession opens the output, or creates it. If the previous session was not
// closed, the data after the length that the store knows is cut off: it did not
// become durable, and its messages come again. So open the output with this
// store before anything else writes to it. A Sink that writes to the same file
// needs SinkOptions.Beside. An output with content that the store does not know is
// refused unless SessionOptions.Append is set: its lines may come from a store
// that is lost, and would be written again. Data that others appended after the
// session was closed is kept. An output that was changed in another way is
// refused: move it away. Both errors wrap semel.ErrInvalidRequest. The first one is
// an [*UnknownOutputError]. An open output is refused with a
// [*vfs.LockedError]. The session does not close the store.
func OpenSession(ctx context.Context, store *logstore.Store, path string, opts *SessionOptions) (*Session, error) {
	var o SessionOptions
	if opts != nil {
		o = *opts
	}
	if o.FS == nil {
		o.FS = vfs.OS{}
	}
	s := &Session{
		store: store, source: o.Source, change: o.FilterMap, late: o.OnLate == semel.LateRun,
		window: cmp.Or(o.Window, semel.DefaultWindow), most: cmp.Or(o.part, partItems),
	}
	wrong := invalid.In("file: SessionOptions.")
	if s.window < 0 {
		wrong.Add("Window: %v is negative", s.window)
	}
	if s.source != nil && s.source.state != nil {
		wrong.Add("Source: it has a State of its own")
	}
	path, err := filepath.Abs(path)
	wrong.Join(err)
	if err := wrong.Err(); err != nil {
		return nil, err
	}
	if s.unlock, err = lockFile(o.FS, path); err != nil {
		return nil, err
	}
	if s.out, err = openOutput(o.FS, path); err == nil {
		err = s.resume(ctx, o.Append)
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

// join decides the items of a batch in a unit and writes the fresh ones.
func (s *Session) join(ctx context.Context, b *batch, items []*pipeline.Item) (*unit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.open != nil && (s.open.keys+len(b.items) > maxUnit || s.open.bytes+b.bytes > maxUnitBytes) {
		before := s.sealing
		s.mu.Unlock()
		_ = s.await(before) // callers with items in it get its error
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
		// Items after a key that another holder has must wait, and the
		// transaction has already taken them.
		return nil, s.abort(u, pipeline.ErrBehind)
	}
	s.lines = s.lines[:0]
	for i, it := range b.items {
		if it.Decision == semel.Fresh && !it.Filtered {
			if s.isLine(it) {
				s.lines = append(append(s.lines, it.Message.Body...), '\n')
				continue
			}
			body := it.Message.Body
			if s.change != nil {
				body = b.bodies[i]
			}
			var err error
			if s.lines, err = appendLine(s.lines, body); err != nil {
				// It was checked to be a line before. No key may be recorded
				// without its line.
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

// begin opens a unit if none is open. Call with mu.
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
	if err := s.out.truncate(); err != nil {
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
		if b.traced {
			keys.Origins = b.origins[from:to]
		}
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
		case semel.OutcomeUnknown:
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

// blocked reports whether a fresh item is after one of its group that has to
// wait.
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

// write appends the gathered lines. They stay if the unit is sealed and durable.
// Call with mu.
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

// abort ends a unit that was not sealed and removes its lines. Its items get the
// error, because they were not delivered. Call with mu.
func (s *Session) abort(u *unit, err error) error {
	u.tx.Abort()
	s.open = nil
	s.reuse(u)
	s.out.length = u.from // begin cuts off the rest
	u.err = err
	close(u.done)
	return err
}

// seal starts to write a unit. From here on it becomes durable, or the store has
// failed for all later units too: space for the values was reserved before. Call
// with mu.
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

// reuse keeps the memory of a unit's items for another. Call with mu.
func (s *Session) reuse(u *unit) {
	clear(u.items)
	s.settled, u.items = u.items[:0], nil
}

// await waits until a unit is durable. It then seals the next unit if no other
// caller does.
func (s *Session) await(u *unit) error {
	s.mu.Lock()
	before := s.sealing
	if s.open != u {
		before = nil
	}
	s.mu.Unlock()
	if before != nil {
		_ = s.await(before) // callers with items in it get its error, perhaps much later
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

// collect seals the open unit if the previous one is durable and no waiting
// caller would do so. Call with mu.
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

// arrived ends a unit whose record was written or failed, and seals the next.
// Only the leader of the unit calls it, with mu.
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

// BindScope implements pipeline.Session.
func (s *Session) BindScope(ctx context.Context, scope string, owner semel.ScopeOwner) error {
	return semel.BindScope(ctx, s.store, scope, owner)
}

// Ready implements doctor.Readier.
func (s *Session) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

// Close implements pipeline.Session. It records the positions since the last
// record, and that the session has ended.
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
		errs = append(errs, s.failed, s.out.truncate())
	}
	return errors.Join(append(errs, s.out.file.Close(), s.unlock.Close())...)
}

// last records the changed positions that no unit has.
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
