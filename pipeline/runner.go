package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
)

// Runner moves messages from a source through a session. It is made by New and
// runs once.
type Runner struct {
	opts       Options
	session    Session
	pipelined  PipelinedSession // the session, or nil if it is none
	traits     SinkTraits
	sched      *scheduler
	feeds      []*feed
	letters    DeadLetterStore // nil if the parker is none
	known      parkedPlaces
	seed       maphash.Seed
	partitions atomic.Uint64
	delivered  atomic.Uint64
	ran        atomic.Bool

	hard  context.Context // of deliveries: ends when Shutdown is over
	kill  context.CancelFunc
	drain func()

	mu       sync.Mutex // guards the fields below
	failure  error
	sinkDown trouble
	stoDown  trouble
}

// feed is one source of a runner.
type feed struct {
	source Source
	traits SourceTraits
	parked bool // it redrives what was parked
}

// New returns a runner. All options that are out of bounds are named in one
// error, which wraps semel.ErrInvalidRequest. The runner closes source and
// session when it has run.
func New(source Source, session Session, opts *Options) (*Runner, error) {
	if err := missing("New", argument{"source", source == nil}, argument{"session", session == nil}); err != nil {
		return nil, err
	}
	r := &Runner{session: session, traits: session.Traits(), seed: maphash.MakeSeed()}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.defaults(r.traits)
	if err := r.opts.validate(); err != nil {
		return nil, err
	}
	if r.traits.Ordered { // else a batch has one item of a group, and no other may follow
		r.pipelined, _ = session.(PipelinedSession)
	}
	r.sched = newScheduler(r.opts.MaxItems, r.opts.MaxBytes, r.opts.BatchBytes)
	r.feed(source)
	if letters, ok := r.opts.DeadLetters.(DeadLetterStore); ok {
		r.letters = letters
		if _, already := source.(*Redriven); !already {
			r.feed(NewRedriven(letters, r.opts.Name, &RedrivenOptions{Actor: r.opts.Actor}))
		}
	}
	return r, nil
}

func (r *Runner) feed(source Source) {
	_, parked := source.(*Redriven)
	r.feeds = append(r.feeds, &feed{source, source.Traits(), parked})
}

// Run moves messages until the source has no more or ctx ends. When ctx ends it
// drains: it reads nothing more, lets what is being delivered end within
// Shutdown, and returns the rest to the source; its error is then nil. Nothing
// is acknowledged that was not settled. Any other error is what the pipeline
// cannot go on with; one that wraps ErrStopped names the message it stopped at.
//
// A second call, also during the first, does nothing and returns an error that
// wraps semel.ErrInvalidRequest.
func (r *Runner) Run(ctx context.Context) error {
	if r.ran.Swap(true) {
		return fmt.Errorf("pipeline %s: Run was called before and a runner runs once; make another one, with a source and a session that are not closed: %w", r.opts.Name, semel.ErrInvalidRequest)
	}
	r.hard, r.kill = context.WithCancel(context.WithoutCancel(ctx))
	defer r.kill()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	var shutdown *time.Timer
	r.drain = sync.OnceFunc(func() {
		stopReading()
		r.sched.drain()
		shutdown = time.AfterFunc(r.opts.Shutdown, r.kill)
	})
	defer context.AfterFunc(ctx, r.drain)()

	if err := r.known.load(reading, r.letters, r.opts.Name); err != nil && reading.Err() == nil {
		r.fail(fmt.Errorf("read what is parked: %w", err))
	}
	var readers, workers sync.WaitGroup
	for i, f := range r.feeds {
		readers.Go(func() {
			if i == 0 {
				defer stopReading() // the others end with the first
			}
			r.read(reading, f)
		})
	}
	for range r.opts.Workers {
		workers.Go((&worker{r: r}).run)
	}
	readers.Wait()
	r.sched.close()
	workers.Wait()
	r.drain()
	shutdown.Stop()
	return r.finish(ctx)
}

// fail ends the pipeline with an error.
func (r *Runner) fail(err error) {
	r.mu.Lock()
	if r.failure == nil {
		r.failure = fmt.Errorf("pipeline %s: %w", r.opts.Name, err)
	}
	r.mu.Unlock()
	r.drain()
}

// read brings the messages of one source.
func (r *Runner) read(ctx context.Context, f *feed) {
	p := newPreparer(r, f)
	for r.sched.wait(ctx) {
		items, err := f.source.Read(ctx)
		if at := withoutPartition(items); at >= 0 {
			r.fail(fmt.Errorf("source: item %d of the %d that %T.Read returned has no Partition: a source must set that of each, made by NewPartition: %w", at, len(items), f.source, semel.ErrInvalidRequest))
			return
		}
		if len(items) > 0 {
			r.sched.add(p.prepare(items))
		}
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, io.EOF):
			return
		default:
			r.fail(fmt.Errorf("source: %w", err))
			return
		}
	}
}

// withoutPartition returns the place of an item that belongs to no partition, or -1.
func withoutPartition(items []*Item) int {
	return slices.IndexFunc(items, func(it *Item) bool { return it == nil || it.Partition == nil })
}

// worker processes batches. If the session takes pipelined batches, a worker begins
// the next batch of a group while the one before is not yet durable; it settles them
// in their order.
type worker struct {
	r        *Runner
	pending  []*pendingBatch // begun and not settled, oldest first
	unused   []*pendingBatch // to be used again
	outcomes outcomes
}

// pendingBatch is a batch that was begun and is not settled.
type pendingBatch struct {
	entries []*entry
	items   []*Item // those of entries that the session has
	begun   Batch   // nil if the session has processed the batch
	start   time.Time
}

// run processes batches until there are no more.
func (w *worker) run() {
	for {
		b := w.newBatch()
		orphans := w.take(b)
		switch {
		case len(b.entries) > 0:
			w.begin(b)
			w.pending = append(w.pending, b)
			continue
		case len(orphans) > 0:
			w.r.session.Abandon(w.r.hard, orphans)
		case len(w.pending) > 0:
			w.settle()
		default:
			return
		}
		w.unused = append(w.unused, b)
	}
}

// newBatch returns an empty batch.
func (w *worker) newBatch() *pendingBatch {
	last := len(w.unused) - 1
	if last < 0 {
		return &pendingBatch{}
	}
	b := w.unused[last]
	w.unused = w.unused[:last]
	return b
}

// take fills a batch, or returns items that are to be abandoned. It blocks until
// there is something, unless the worker has pending batches: it then takes only what
// follows them, and nothing once the oldest can be settled.
func (w *worker) take(b *pendingBatch) (orphans []*Item) {
	switch n := len(w.pending); {
	case n == 0:
		b.entries, orphans = w.r.sched.take(b.entries, w.r.opts.Batch, w.r.traits.Ordered)
	case !w.pending[0].done():
		b.entries = w.r.sched.follow(b.entries, w.pending[n-1].entries, w.r.opts.Batch)
	}
	return orphans
}

// begin gives a batch to the session. It waits for the outcome unless the session
// takes pipelined batches.
func (w *worker) begin(b *pendingBatch) {
	r := w.r
	b.start = time.Now()
	for _, e := range b.entries {
		if e.unprocessed == "" {
			b.items = append(b.items, e.Item)
		}
	}
	switch {
	case len(b.items) == 0:
	case r.pipelined == nil:
		r.session.Process(r.hard, b.items)
	default:
		var after Batch
		for _, before := range w.pending {
			if before.begun != nil {
				after = before.begun
			}
		}
		b.begun = r.pipelined.Begin(r.hard, b.items, after)
	}
}

// done reports whether the batch can be settled without waiting.
func (b *pendingBatch) done() bool { return b.begun == nil || b.begun.Done() }

// settle waits for the oldest pending batch and settles it. If one of its items
// failed, it settles all pending batches together: the items behind the failed one
// come again too, and must be back in their group before it is ready.
func (w *worker) settle() {
	r, n := w.r, 1
	for i := 0; i < n; i++ {
		b := w.pending[i]
		if b.begun != nil {
			b.begun.Wait()
			b.begun = nil
		}
		if len(b.items) > 0 {
			r.observeBatch(b.items, time.Since(b.start))
		}
		if n < len(w.pending) && slices.ContainsFunc(b.entries, hasFailed) {
			n = len(w.pending)
		}
	}
	settled := w.pending[:n]
	entries := settled[0].entries
	for _, b := range settled[1:] {
		entries = append(entries, b.entries...)
	}
	r.settleBatch(entries, &w.outcomes)
	r.sched.settle(entries)
	settled[0].entries = entries
	for _, b := range settled {
		clear(b.entries) // an idle worker must hold nothing
		clear(b.items)
		b.entries, b.items = b.entries[:0], b.items[:0]
	}
	w.unused = append(w.unused, settled...)
	w.pending = append(w.pending[:0], w.pending[n:]...)
}

func hasFailed(e *entry) bool { return e.Err != nil }

// ErrStopped is wrapped by the error of a pipeline that stopped at a message.
var ErrStopped = errors.New("stopped at a message")

// StoppedError is the error of a pipeline that stopped at a message because its
// options say so. It wraps ErrStopped.
type StoppedError struct {
	// Where names the message: its place in the source, as far as that is known,
	// and its key.
	Where string
	// Reason is why the message could not be processed, and Err the last error.
	Reason Reason
	Err    error
}

// Error implements error.
func (e *StoppedError) Error() string {
	return fmt.Sprintf("stopped at %s, for %q: %v: fix the cause and start again", e.Where, e.Reason, e.Err)
}

// Unwrap returns ErrStopped and the last error.
func (e *StoppedError) Unwrap() []error { return []error{ErrStopped, e.Err} }

// finish returns what is left to the sources and closes everything.
func (r *Runner) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(r.opts.Shutdown/2, time.Second))
	defer cancel()
	left := r.sched.leftovers()
	held := r.sched.orphaned()
	for _, e := range left {
		held = append(held, e.Item)
	}
	r.session.Abandon(ctx, held)
	errs := []error{r.failure}
	for _, f := range r.feeds {
		var items []*Item
		for _, e := range left {
			if e.feed == f && !e.Partition.Closed() {
				items = append(items, e.Item)
			}
		}
		if len(items) > 0 {
			r.observe(Event{Kind: EventReturned, Count: len(items)})
			errs = append(errs, wrap("source: return what is left", f.source.Return(ctx, items, 0)))
		}
		errs = append(errs, wrap("close the source", f.source.Close(ctx)))
	}
	errs = append(errs, wrap("close the sink", r.session.Close(ctx)))
	return errors.Join(errs...)
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// UnderWay returns how many messages, and about how many bytes of them, were
// read and are not settled. It may be called at any time.
func (r *Runner) UnderWay() (count int, bytes int64) { return r.sched.size() }

// Ready returns nil, or what keeps the pipeline from its work. It asks source,
// sink and store where they can tell, and blocks at most until ctx ends. It may
// be called at any time. The text of its error has nothing of a message, not even
// its key, so that a probe may show it to anybody.
func (r *Runner) Ready(ctx context.Context) error {
	r.mu.Lock()
	err := errors.Join(newNotReady("it ends with an error", r.failure), r.sinkDown.notReady("the sink"), r.stoDown.notReady("the store"))
	r.mu.Unlock()
	if err != nil {
		return err
	}
	for _, of := range []any{r.feeds[0].source, r.session} {
		if ready, ok := of.(semel.Readier); ok {
			if err := ready.Ready(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

var _ Lagger = (*Runner)(nil)

// Lag implements Lagger for the source. It wraps errors.ErrUnsupported if that
// cannot tell.
func (r *Runner) Lag(ctx context.Context) ([]Lag, error) {
	if of, ok := r.feeds[0].source.(Lagger); ok {
		return of.Lag(ctx)
	}
	return nil, errors.ErrUnsupported
}

// Waiting returns how many messages of the pipeline are parked and wait for an
// operator to settle them. It wraps errors.ErrUnsupported if they are parked where
// they cannot be counted. It blocks at most until ctx ends and may be called at
// any time.
func (r *Runner) Waiting(ctx context.Context) (int64, error) {
	if r.letters == nil {
		return 0, errors.ErrUnsupported
	}
	return r.letters.Count(ctx, r.opts.Name)
}

// notReady stands for an error that a message met. Probes show its text to
// anybody, so the text is made of words that cannot come from the message.
type notReady struct {
	text string
	err  error
}

// Error implements error.
func (e *notReady) Error() string { return e.text }

// Unwrap returns the error that the message met.
func (e *notReady) Unwrap() error { return e.err }

// newNotReady says what keeps a pipeline from its work; nil if err is nil.
func newNotReady(what string, err error) error {
	if err == nil {
		return nil
	}
	if cause := knownCause(err); cause != nil {
		what += ": " + cause.Error()
	}
	return &notReady{what + ": the log has the error", err}
}

// notReady says for how long sink or store do not work; nil if they do.
func (t *trouble) notReady(what string) error {
	if t.err == nil {
		return nil
	}
	return newNotReady(fmt.Sprintf("%s has not worked since %s", what, t.since.UTC().Format(time.RFC3339)), t.err)
}

// knownCause returns the part of an error whose text is that of this module, of the
// network or of the system; nil if there is none.
func knownCause(err error) error {
	if of, ok := errors.AsType[*net.OpError](err); ok {
		return of
	}
	if number, ok := errors.AsType[syscall.Errno](err); ok {
		return number
	}
	for _, known := range []error{
		semel.ErrStoreFull, semel.ErrStoreFailed, semel.ErrCorrupt, semel.ErrClosed, semel.ErrStoreUnavailable, semel.ErrOutcomeUnknown, ErrStopped,
	} {
		if errors.Is(err, known) {
			return known
		}
	}
	return nil
}
