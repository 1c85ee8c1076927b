package pipeline

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/coarse"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/retry"
)

// Runner moves messages from a source through a session. New returns one. It runs once.
type Runner struct {
	opts       Options
	session    Session
	pipelined  PipelinedSession // the session, if it implements that; else nil
	traits     SinkTraits
	sched      *scheduler
	feeds      []*feed         // the source, and perhaps that of redriven messages
	letters    DeadLetterStore // Options.DeadLetters, if it implements that; else nil
	tracer     Tracer          // Options.Observer, if it is one; else nil
	known      parkedPlaces
	contents   *coarse.Watch // nil with Options.Fingerprint
	seed       maphash.Seed
	partitions atomic.Uint64 // the number of partitions seen
	delivered  atomic.Uint64 // the number of messages delivered
	downAt     atomic.Uint64 // the value of delivered when the sink was last unavailable
	settled    atomic.Uint64 // the number of messages acknowledged
	ran        atomic.Bool
	stages     stages
	// sourceWaits is what keeps the source from reading, or nil.
	sourceWaits atomic.Pointer[sourceWait]
	stall       diagnose.Stall

	hard  context.Context // for deliveries: ends when the time for the drain is over
	kill  context.CancelFunc
	drain func()

	mu        sync.Mutex // guards the fields below
	failure   error
	sinkDown  trouble
	storeDown trouble
	waiting   map[string]map[any]bool // the callers of observeBy, by the part that they wait for
}

// feed is one source of a runner.
type feed struct {
	source Source
	traits SourceTraits
	parked bool // its messages are redriven

	interrupt func() // ends a Read; guarded by scheduler.mu
}

// NewRunner returns a runner. If options are invalid, the error names all of them and wraps
// semel.ErrInvalidRequest. The runner closes source and session at the end of Run.
func NewRunner(source Source, session Session, opts *Options) (*Runner, error) {
	if err := missing("New", argument{"source", source == nil}, argument{"session", session == nil}); err != nil {
		return nil, err
	}
	r := &Runner{session: session, traits: session.Traits(), seed: maphash.MakeSeed(), waiting: map[string]map[any]bool{"parking": {}, "acknowledging": {}}}
	if opts != nil {
		r.opts = *opts
	}
	r.opts.defaults(r.traits)
	traits := source.Traits()
	if err := r.opts.validate(&traits); err != nil {
		return nil, err
	}
	if !r.opts.Fingerprint && !r.opts.Varies {
		r.contents = coarse.New()
	}
	if r.traits.Ordered { // otherwise a batch has one item of a group, and none may follow
		r.pipelined, _ = session.(PipelinedSession)
	}
	r.sched = newScheduler(r.opts.MaxItems, r.opts.MaxBytes, r.opts.batchBytes())
	_, redrives := source.(*redriven)
	r.feeds = []*feed{{source: source, traits: traits, parked: redrives}}
	if r.opts.Order == OrderPartition { // its groups have several record keys
		r.feeds[0].traits.Hold = nil
	}
	r.tracer, _ = r.opts.Observer.(Tracer)
	r.letters, _ = r.opts.DeadLetters.(DeadLetterStore)
	if r.letters != nil && !redrives {
		redriven := newRedriven(r.letters, r.opts.Name, false)
		if r.opts.ParkedMaxAge > 0 {
			x := &expiry{age: r.opts.ParkedMaxAge}
			x.observe = func(e Event) { r.observeBy(x, e) }
			redriven.expiry = x
		}
		r.feeds = append(r.feeds, &feed{source: redriven, traits: SourceTraits{Place: r.feeds[0].traits.Place}, parked: true})
	}
	return r, nil
}

// Run moves messages until the source has no more, or until ctx ends. When ctx ends,
// Run drains the pipeline: it reads no more messages, waits for deliveries for as long
// as Options.Shutdown, returns all other messages to the source, and returns nil. It
// acknowledges only settled messages. Run returns an error if the pipeline cannot
// continue. An error that wraps ErrStopped names the message at which it stopped.
//
// A second call does nothing, even while the first runs, and returns an error that wraps
// semel.ErrInvalidRequest.
func (r *Runner) Run(ctx context.Context) error {
	if r.ran.Swap(true) {
		return fmt.Errorf("pipeline %s: Run was called before, and a runner runs once; create another one with a new source and a new session: %w", r.opts.Name, semel.ErrInvalidRequest)
	}
	r.hard, r.kill = context.WithCancel(context.WithoutCancel(ctx))
	defer r.kill()
	reading, stopReading := context.WithCancel(ctx)
	defer stopReading()
	probing, stopProbing := context.WithCancel(ctx)
	defer stopProbing()
	var shutdown *time.Timer
	r.drain = sync.OnceFunc(func() {
		stopReading()
		stopProbing()
		r.sched.drain()
		shutdown = time.AfterFunc(r.opts.Shutdown, r.kill)
	})
	defer context.AfterFunc(ctx, r.drain)()

	defer r.watch(reading)()
	left := in(&r.stages.starting)
	if err := r.known.load(reading, r.letters, r.opts.Name, r.feeds[0].traits.Repeats); err != nil && reading.Err() == nil {
		r.fail(fmt.Errorf("%w: %w", ErrParkedUnread, err))
	}
	left()
	var readers, workers sync.WaitGroup
	for i, f := range r.feeds {
		readers.Go(func() {
			r.read(reading, f)
			if i == 0 && len(r.feeds) > 1 {
				r.feeds[1].source.(*redriven).end() // redriving ends with the source
			}
		})
	}
	for range r.opts.Workers {
		workers.Go(func() { (&worker{r: r}).run(probing) })
	}
	var parking sync.WaitGroup
	if r.feeds[0].traits.Exhausted != nil {
		parking.Go(func() { r.parkExhausted(reading, r.feeds[0]) })
	}
	readers.Wait()
	stopReading()
	parking.Wait()
	r.sched.close()
	workers.Wait()
	r.drain()
	shutdown.Stop()
	return r.finish(ctx)
}

// bindScope binds the scope to the key rule and the pipeline. A
// pipeline that shares its scope does not claim it for itself. It waits while the store
// does not answer. An error means that nothing may be claimed.
func (r *Runner) bindScope(ctx context.Context) error {
	defer in(&r.stages.starting)()
	owner := semel.ScopeOwner{Rule: RuleText(r.opts.Key.String(), r.opts.Unwrap)}
	if !r.opts.SameScope {
		owner.Pipeline = r.opts.Name
	}
	for {
		err := r.session.BindScope(ctx, r.opts.Scope, owner)
		if _, bound := errors.AsType[*semel.ScopeError](err); bound && r.opts.SameScope {
			err = nil
		}
		switch c := semel.Classify(err); {
		case err == nil:
			r.pauseOrResume(&outcomes{storeWorks: true})
			return nil
		case c == semel.ClassPermanent || errors.Is(err, semel.ErrStoreFailed):
			return err
		}
		r.pauseOrResume(&outcomes{storeErr: &StoreError{err}})
		r.mu.Lock()
		until := r.storeDown.until
		r.mu.Unlock()
		if err := retry.Sleep(ctx, time.Until(until)); err != nil {
			return err
		}
	}
}

// fail drains the pipeline. Run returns the first error.
func (r *Runner) fail(err error) {
	r.mu.Lock()
	if r.failure == nil {
		r.failure = fmt.Errorf("pipeline %s: %w", r.opts.Name, err)
	}
	r.mu.Unlock()
	r.drain()
}

// read reads one source. It binds the scope before the first message with a key. A
// rule that finds no key, such as one with a typing error, binds nothing and keeps the
// right rule out of no scope.
func (r *Runner) read(ctx context.Context, f *feed) {
	bound := false
	p := r.preparer(f)
	for {
		reading, interrupt := ctx, context.CancelFunc(nil)
		if f.traits.Hold != nil {
			reading, interrupt = context.WithCancel(ctx)
		}
		more, back := r.sched.wait(ctx, f, interrupt)
		if back > 0 {
			r.observe(Event{Kind: EventReturned, Count: back})
		}
		if !more {
			if interrupt != nil {
				interrupt()
			}
			return
		}
		items, err := f.source.Read(reading)
		if err != nil && reading.Err() != nil && ctx.Err() == nil {
			err = nil // it was interrupted
		}
		if interrupt != nil {
			interrupt()
		}
		if at := slices.IndexFunc(items, func(it *Item) bool { return it == nil || it.Partition == nil }); at >= 0 {
			r.fail(fmt.Errorf("source: item %d of the %d that %T.Read returned has no Partition: a source must set one from NewPartition: %w", at, len(items), f.source, semel.ErrInvalidRequest))
			return
		}
		var entries []*entry
		if len(items) > 0 {
			entries = p.prepare(items)
		}
		r.add(ctx, entries, &bound)
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

// add hands entries to the scheduler. It first binds the scope, unless the reader has
// bound it before.
func (r *Runner) add(ctx context.Context, entries []*entry, bound *bool) {
	if !*bound && slices.ContainsFunc(entries, func(e *entry) bool { return e.unprocessed == "" }) {
		*bound = true
		if err := r.bindScope(ctx); err != nil {
			if ctx.Err() == nil {
				r.fail(err)
			}
			r.drain() // before add: the entries are returned, and not processed
		}
	}
	if len(entries) > 0 {
		r.sched.add(entries)
	}
}

// parkExhausted parks the messages that the server may not deliver again. They do not
// wait for room or for the sink, because the process may end before. Without a Parker
// they are processed like all others, and wait for room like them.
func (r *Runner) parkExhausted(ctx context.Context, f *feed) {
	bound := false
	p := r.preparer(f)
	for {
		if r.opts.DeadLetters == nil {
			if more, _ := r.sched.wait(ctx, f, nil); !more {
				return
			}
		}
		items, err := f.traits.Exhausted(ctx)
		if err != nil {
			return // ctx has ended
		}
		causes := make([]error, len(items))
		for i, it := range items {
			causes[i], it.Err = it.Err, nil
		}
		entries := p.prepare(items)
		if r.opts.DeadLetters == nil {
			r.add(ctx, entries, &bound)
			continue
		}
		if r.tracer != nil {
			r.tracer.Begin(r.hard, r.opts.Name, items)
		}
		var o outcomes
		for i, e := range entries {
			e.Err, e.Attempt = causes[i], e.Message.Origin.Delivery
			if e.unprocessed != ReasonParkedBefore {
				e.unprocessed = ReasonDeliveries
			}
			r.classifyUnprocessed(e, &o)
		}
		r.carryOut(entries, &o)
	}
}

// worker processes batches. With a PipelinedSession, a worker begins the next batch of a
// group before the previous one is durable. It settles batches in order.
type worker struct {
	r        *Runner
	pending  []*pendingBatch // oldest first
	unused   []*pendingBatch // to be reused
	outcomes outcomes
}

// pendingBatch is a batch that the session has and that is not settled.
type pendingBatch struct {
	entries []*entry
	items   []*Item // the items of entries that the session has
	begun   Batch   // nil if the session has processed the batch
	start   time.Time
}

// run processes batches until there are no more. Probes end with ctx.
func (w *worker) run(ctx context.Context) {
	for {
		b := w.newBatch()
		orphans, probe := w.take(b)
		switch {
		case probe:
			w.r.probe(ctx)
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

// take fills a batch, or returns items that the session must abandon, or that the worker
// must probe sink and store. Without pending batches it blocks until there is one of them.
// With pending batches it does not block: it takes the entries behind them, unless the oldest
// batch can be settled.
func (w *worker) take(b *pendingBatch) (orphans []*Item, probe bool) {
	switch n := len(w.pending); {
	case n == 0:
		b.entries, orphans, probe = w.r.sched.take(b.entries, w.r.opts.Batch, w.r.traits.Ordered)
	case !w.pending[0].done():
		b.entries = w.r.sched.follow(b.entries, w.pending[n-1].entries, w.r.opts.Batch)
	}
	return orphans, probe
}

// begin gives a batch to the session. It waits for the outcome, unless the session is a
// PipelinedSession.
func (w *worker) begin(b *pendingBatch) {
	r := w.r
	b.start = time.Now()
	for _, e := range b.entries {
		if e.unprocessed == "" {
			b.items = append(b.items, e.Item)
		}
	}
	ctx := r.trace(b)
	switch {
	case len(b.items) == 0:
	case r.pipelined == nil:
		defer in(&r.stages.processing)()
		r.session.Process(ctx, b.items)
	default:
		var after Batch
		for _, before := range w.pending {
			if before.begun != nil {
				after = before.begun
			}
		}
		b.begun = r.pipelined.Begin(ctx, b.items, after)
	}
}

// trace begins the traces of a batch, if there is a Tracer. It returns the context for
// the session.
func (r *Runner) trace(b *pendingBatch) context.Context {
	if r.tracer == nil {
		return r.hard
	}
	r.tracer.Begin(r.hard, r.opts.Name, appendItems(nil, b.entries, nil))
	return r.tracer.In(r.hard, b.items)
}

// done reports whether the batch can be settled without waiting.
func (b *pendingBatch) done() bool { return b.begun == nil || b.begun.Done() }

// settle waits for the oldest pending batch and settles it. If one of its items failed,
// settle settles all pending batches together. The items behind the failed one are
// retried too, and must be back in their group before the failed one is ready.
func (w *worker) settle() {
	r, n := w.r, 1
	for i := 0; i < n; i++ {
		b := w.pending[i]
		if b.begun != nil {
			left := in(&r.stages.processing)
			b.begun.Wait()
			left()
			b.begun = nil
		}
		if len(b.items) > 0 {
			r.observeBatch(b.items, time.Since(b.start))
		}
		if n < len(w.pending) && slices.ContainsFunc(b.entries, func(e *entry) bool { return e.Err != nil }) {
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
		clear(b.entries) // an idle worker must keep nothing alive
		clear(b.items)
		b.entries, b.items = b.entries[:0], b.items[:0]
	}
	w.unused = append(w.unused, settled...)
	w.pending = append(w.pending[:0], w.pending[n:]...)
}

// ErrParkedUnread is wrapped by the error of a pipeline that could not read its parked
// messages at the start.
var ErrParkedUnread = errors.New("read the parked messages")

// ErrStopped is wrapped by the error of a pipeline that stopped at a message.
var ErrStopped = errors.New("stopped at a message")

// StoppedError is the error of a pipeline whose options stopped it at a message. It
// wraps ErrStopped.
type StoppedError struct {
	// Where names the message by its key and, if that is known, its place in the
	// source.
	Where string
	// Reason says why the message was not processed. Err is its last error.
	Reason Reason
	Err    error
}

// Error implements error.
func (e *StoppedError) Error() string {
	return fmt.Sprintf("stopped at %s, for %q: %v: fix the cause and start again", e.Where, e.Reason, e.Err)
}

// Unwrap returns ErrStopped and the last error.
func (e *StoppedError) Unwrap() []error { return []error{ErrStopped, e.Err} }

// finish returns the unsettled messages to their sources. It closes sources and session.
func (r *Runner) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(r.opts.Shutdown/2, time.Second))
	defer cancel()
	left, held := r.sched.leftovers()
	for _, e := range left {
		held = append(held, e.Item)
	}
	r.session.Abandon(ctx, held)
	errs := []error{r.failure}
	for _, f := range r.feeds {
		var items []*Item
		for _, e := range left {
			if e.feed == f && !e.Partition.Closed() {
				e.wrap()
				items = append(items, e.Item)
			}
		}
		if len(items) > 0 {
			r.observe(Event{Kind: EventReturned, Count: len(items)})
			errs = append(errs, wrap("source: return the unsettled messages", f.source.Return(ctx, items, 0)))
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

// UnderWay returns the number of messages in progress, and their approximate size.
// These messages were read and are not settled. UnderWay may be called at any time.
func (r *Runner) UnderWay() (count int, bytes int64) { return r.sched.size() }

// Progress returns where the messages of UnderWay are. It may be called at any time.
func (r *Runner) Progress() Progress { return r.sched.progress() }

// KeyProgress returns where the messages of some keys are, if they were read and are not
// settled. It looks at all such messages. It may be called at any time.
func (r *Runner) KeyProgress(keys ...semel.Key) []KeyProgress { return r.sched.find(keys) }

// Workers returns how many batches are processed at a time. It may be called at any time.
func (r *Runner) Workers() int { return r.opts.Workers }

// Ready returns nil if the pipeline works, or an error that says why not. A pipeline that
// stalls does not work, unless it waits for something that ends by itself: see
// EventStalled and Waiter. Ready asks the
// source and the session if they implement doctor.Readier. It blocks at most until ctx
// ends, and may be called at any time. The text of the error contains no part of a
// message and no key, so a probe may show it to any client.
func (r *Runner) Ready(ctx context.Context) error {
	r.mu.Lock()
	err := errors.Join(newNotReady("it ends with an error", r.failure), r.sinkDown.notReady("the sink"), r.storeDown.notReady("the store"))
	sinkFails, storeFails := r.sinkDown.err != nil, r.storeDown.err != nil
	r.mu.Unlock()
	if sinkFails && !storeFails { // nothing has asked the store since
		err = errors.Join(err, ready(ctx, r.session))
	}
	if err == nil && r.sourceWaits.Load() != nil {
		err = ready(ctx, r.feeds[0].source) // says more than that the source waits
	}
	if err == nil {
		err = r.stalled(ctx)
	}
	if err == nil {
		err = ready(ctx, r.feeds[0].source)
	}
	if err == nil {
		err = ready(ctx, r.session)
	}
	return err
}

// NextAttempt returns when a Runner that is paused, because its sink or its store fails, tries
// again. It returns the zero time while the Runner is not paused.
func (r *Runner) NextAttempt() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	var next time.Time
	for _, t := range []*trouble{&r.sinkDown, &r.storeDown} {
		if t.err != nil && t.until.After(next) {
			next = t.until
		}
	}
	return next
}

// ready asks a source or a session whether it is ready, if it can tell.
func ready(ctx context.Context, of any) error {
	if r, ok := of.(doctor.Readier); ok {
		return r.Ready(ctx)
	}
	return nil
}

// Lag returns the backlog of the source; see SourceTraits. Its error wraps
// errors.ErrUnsupported if the source cannot count it.
func (r *Runner) Lag(ctx context.Context) ([]Lag, error) {
	if lag := r.feeds[0].traits.Lag; lag != nil {
		return lag(ctx)
	}
	return nil, errors.ErrUnsupported
}

// Gauges returns the gauges of the source; see SourceTraits. Its error wraps
// errors.ErrUnsupported if the source has none.
func (r *Runner) Gauges(ctx context.Context) ([]Gauge, error) {
	if gauges := r.feeds[0].traits.Gauges; gauges != nil {
		return gauges(ctx)
	}
	return nil, errors.ErrUnsupported
}

// Waiting returns how many parked messages of the pipeline wait for an operator. Its
// error wraps errors.ErrUnsupported if the Parker cannot count them. It blocks at most
// until ctx ends, and may be called at any time.
func (r *Runner) Waiting(ctx context.Context) (int64, error) {
	if r.letters == nil {
		return 0, errors.ErrUnsupported
	}
	return r.letters.Count(ctx, r.opts.Name)
}

// notReady is the error of a probe. Any client may see its text, so the text has no
// words that could come from a message.
type notReady struct {
	text string
	err  error
}

// Error implements error.
func (e *notReady) Error() string { return e.text }

// Unwrap returns the cause, whose text may have parts of a message.
func (e *notReady) Unwrap() error { return e.err }

// newNotReady returns an error that says why a pipeline does not work. It returns nil
// if err is nil.
func newNotReady(what string, err error) error {
	if err == nil {
		return nil
	}
	if cause := knownCause(err); cause != nil {
		what += ": " + cause.Error()
	}
	return &notReady{what + ": the log has the error", err}
}

// notReady returns an error that says since when sink or store have not worked. It
// returns nil if they work.
func (t *trouble) notReady(what string) error {
	if t.err == nil {
		return nil
	}
	return newNotReady(fmt.Sprintf("%s has not worked since %s", what, t.since.UTC().Format(time.RFC3339)), t.err)
}

// knownCause returns the part of an error that any client may see, or nil.
func knownCause(err error) error {
	if cause := diagnose.PublicCause(err); cause != nil {
		return cause
	}
	if errors.Is(err, ErrStopped) {
		return ErrStopped
	}
	return nil
}
