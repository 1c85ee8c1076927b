package pipeline

import (
	"context"
	"slices"
	"time"
)

// Ahead is the ability of a session to go on behind a batch whose outcome is not yet
// durable, so that the next is decided while the disk writes the one before.
type Ahead interface {
	// Prepare does what an item needs but once, and no order. It is called by those
	// who read, when the items have their keys. An item may be processed without.
	Prepare(items []*Item)

	// Begin does of Process what needs not wait until something is durable. after
	// is what was begun last for items that stand before these and was not waited
	// for, or nil. If one of them was not delivered, and comes again, none of these
	// is delivered: their Err is ErrBehind. Slice and items are the session's until
	// Wait has returned.
	Begin(ctx context.Context, items []*Item, after Begun) Begun
}

// Begun is a batch that a session has begun. Its methods are called by the
// goroutine that called Begin, Wait once.
type Begun interface {
	// Done reports whether Wait would return at once.
	Done() bool
	// Wait does the rest of Process.
	Wait()
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
