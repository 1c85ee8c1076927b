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
)

// Runner moves messages from a source through a session. It is made by New and
// runs once.
type Runner struct {
	opts      Options
	session   Session
	ahead     Ahead // the session, or nil if it is none
	traits    SinkTraits
	sched     *scheduler
	feeds     []*feed
	lot       Lot // nil if the parker is none
	known     parkedPlaces
	seed      maphash.Seed
	lanes     atomic.Uint64
	delivered atomic.Uint64
	ran       atomic.Bool

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
	source    Source
	canReturn bool
	pause     func(lane *Lane, paused bool) // nil if it cannot
	parked    bool                          // it brings back what was parked
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
	if r.traits.Ordered { // else a batch has one item of a chain
		if ahead, ok := session.(Ahead); ok {
			r.ahead = ahead
		}
	}
	r.sched = newScheduler(r.opts.MaxItems, r.opts.MaxBytes, r.opts.BatchBytes)
	r.feed(source)
	if lot, ok := r.opts.Parker.(Lot); ok {
		r.lot = lot
		if _, already := source.(*Redriven); !already {
			r.feed(NewRedriven(lot, r.opts.Name, &RedrivenOptions{Actor: r.opts.Actor}))
		}
	}
	return r, nil
}

func (r *Runner) feed(source Source) {
	f := &feed{source: source}
	if c, ok := source.(Returner); ok {
		f.canReturn = c.CanReturn()
	}
	if p, ok := source.(Pauser); ok {
		f.pause = p.Pause
	}
	_, f.parked = source.(*Redriven)
	r.feeds = append(r.feeds, f)
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

	if err := r.known.load(reading, r.lot, r.opts.Name); err != nil && reading.Err() == nil {
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
		workers.Go(r.work)
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
		if at := withoutLane(items); at >= 0 {
			r.fail(fmt.Errorf("source: item %d of the %d that %T.Read returned has no Lane: a source must set that of each, made by NewLane: %w", at, len(items), f.source, semel.ErrInvalidRequest))
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

// withoutLane returns the place of an item that belongs to no lane, or -1.
func withoutLane(items []*Item) int {
	return slices.IndexFunc(items, func(it *Item) bool { return it == nil || it.Lane == nil })
}

// flight is a batch that a worker has begun.
type flight struct {
	batch, todo []*Item // todo are those that the session has
	begun       Begun   // nil if it needs no waiting
	start       time.Time
}

// work processes batches until there are no more.
func (r *Runner) work() {
	var (
		flights, idle []*flight // in their order; and those to be used again
		verdicts      verdicts
	)
	for {
		var f *flight
		if n := len(idle); n > 0 {
			f, idle = idle[n-1], idle[:n-1]
		} else {
			f = new(flight)
		}
		var orphans []*Item
		switch n := len(flights); {
		case n == 0:
			f.batch, orphans = r.sched.take(f.batch, r.opts.Batch, r.traits.Ordered)
		case !flights[0].done():
			f.batch = r.sched.follow(f.batch, flights[n-1].batch, r.opts.Batch)
		}
		switch {
		case len(orphans) > 0:
			r.session.Abandon(r.hard, orphans)
		case len(f.batch) > 0:
			r.begin(f, flights)
			flights = append(flights, f)
			continue
		case len(flights) == 0:
			return
		default:
			n := r.land(flights, &verdicts)
			idle = append(idle, flights[:n]...)
			flights = append(flights[:0], flights[n:]...)
		}
		idle = append(idle, f)
	}
}

// begin gives a batch to the session. It waits for the outcome unless the session
// can go ahead.
func (r *Runner) begin(f *flight, before []*flight) {
	f.todo, f.start = f.todo[:0], time.Now()
	for _, it := range f.batch {
		if it.reason == "" {
			f.todo = append(f.todo, it)
		}
	}
	switch {
	case len(f.todo) == 0:
	case r.ahead == nil:
		r.session.Process(r.hard, f.todo)
	default:
		var after Begun
		for _, b := range before {
			if b.begun != nil {
				after = b.begun
			}
		}
		f.begun = r.ahead.Begin(r.hard, f.todo, after)
	}
}

// done reports whether a flight need not be waited for.
func (f *flight) done() bool { return f.begun == nil || f.begun.Done() }

func hasFailed(it *Item) bool { return it.Err != nil }

// land waits for the first of the flights, judges and settles it. If one of its
// items failed it does so with all flights together: what failed comes again, and
// must not be before those behind it are back. It returns how many they were.
func (r *Runner) land(flights []*flight, v *verdicts) int {
	n := 1
	for i := 0; i < n; i++ {
		f := flights[i]
		if f.begun != nil {
			f.begun.Wait()
			f.begun = nil
		}
		if len(f.todo) > 0 {
			r.observeBatch(f.todo, time.Since(f.start))
		}
		if n < len(flights) && slices.ContainsFunc(f.batch, hasFailed) {
			n = len(flights)
		}
	}
	batch := flights[0].batch
	for _, f := range flights[1:n] {
		batch = append(batch, f.batch...)
	}
	r.judge(batch, v)
	r.sched.settle(batch)
	flights[0].batch = batch
	for _, f := range flights[:n] {
		clear(f.batch) // an idle worker must hold nothing
		clear(f.todo)
		f.batch, f.todo = f.batch[:0], f.todo[:0]
	}
	return n
}

// finish gives back what is left and closes everything.
func (r *Runner) finish(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(r.opts.Shutdown/2, time.Second))
	defer cancel()
	left := append(r.sched.leftovers(), r.sched.orphaned()...)
	r.session.Abandon(ctx, left)
	errs := []error{r.failure}
	for _, f := range r.feeds {
		var of []*Item
		for _, it := range left {
			if it.source == f && !it.Lane.Closed() {
				of = append(of, it)
			}
		}
		if len(of) > 0 {
			r.observe(Event{Kind: EventReturned, Count: len(of)})
			errs = append(errs, wrap("source: return what is left", f.source.Return(ctx, of, 0)))
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
		if ready, ok := of.(Readier); ok {
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

// Waiting returns how many messages of the pipeline are parked and wait for
// somebody to settle them. It wraps errors.ErrUnsupported if they are parked where
// they cannot be counted. It blocks at most until ctx ends and may be called at
// any time.
func (r *Runner) Waiting(ctx context.Context) (int64, error) {
	if r.lot == nil {
		return 0, errors.ErrUnsupported
	}
	return r.lot.Count(ctx, r.opts.Name)
}
