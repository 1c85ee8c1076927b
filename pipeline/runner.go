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
