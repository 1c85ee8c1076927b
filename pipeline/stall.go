package pipeline

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
)

// Waiter is a Session, a Sink, a semel.Store or a Source that knows what its running
// calls wait for.
type Waiter interface {
	// WaitsFor says what the running calls wait for, such as "delivery to the sink". It
	// returns "" if that is not known. A Source says what keeps it from reading, and ""
	// if it only has no more messages. Probes show the text, so it has no part of a
	// message and no key. WaitsFor may ask a server, and blocks at most until ctx ends.
	// It may be called at any time.
	//
	// A Source returns ends for a wait that ends by itself. While it lasts, a pipeline
	// that stalls says so, and stays ready. From others, ends has no meaning.
	WaitsFor(ctx context.Context) (what string, ends bool)
}

// sourceWait is what keeps a source from reading, and whether it ends by itself.
type sourceWait struct {
	what string
	ends bool
}

// waitsFor asks a session or sink what its calls wait for.
func waitsFor(ctx context.Context, of any, otherwise string) string {
	if waiter, ok := of.(Waiter); ok {
		if what, _ := waiter.WaitsFor(ctx); what != "" {
			return what
		}
	}
	return otherwise
}

// stages counts the workers in each stage of a batch. starting is 1 while the runner asks
// for the scope and the parked messages.
type stages struct{ starting, processing, parking, acknowledging, returning atomic.Int32 }

// in counts a worker that enters a stage, until the returned function is called.
func in(stage *atomic.Int32) (left func()) {
	stage.Add(1)
	return func() { stage.Add(-1) }
}

// askEvery is how often a source without messages in progress is asked what it waits
// for. One that waits is asked at each look. askFor limits the time for an answer.
const (
	askEvery = 4500 * time.Millisecond // every fifth look
	askFor   = 3 * time.Second
)

// watch reports when the pipeline stalls and when it moves again, until stop is called.
// While ctx lasts, it asks the source. Until the source has answered again that it waits
// for nothing, the stall may have begun, so the time counts.
func (r *Runner) watch(ctx context.Context) (stop func()) {
	source, _ := r.feeds[0].source.(Waiter)
	asked := time.Now()
	return r.stall.Start(ctx, diagnose.Work{
		Look: func() (uint64, bool) {
			count, _ := r.sched.size()
			busy := count > 0 || r.stages.starting.Load() > 0 || r.stages.parking.Load() > 0
			if busy || source == nil || ctx.Err() != nil {
				if before := r.sourceWaits.Swap(nil); before != nil {
					asked = time.Time{}
					busy = busy && !before.ends // the time of the work begins now
				}
				return r.settled.Load(), busy
			}
			if r.sourceWaits.Load() == nil && time.Since(asked) < askEvery {
				return r.settled.Load(), true
			}
			asked = time.Now()
			patient, cancel := context.WithTimeout(ctx, askFor)
			what, ends := source.WaitsFor(patient)
			cancel()
			if r.sourceWaits.Store(nil); what != "" && ctx.Err() == nil {
				r.sourceWaits.Store(&sourceWait{what, ends})
			}
			return r.settled.Load(), r.sourceWaits.Load() != nil
		},
		Stalled: func(ctx context.Context, still time.Duration) {
			count, _ := r.sched.size()
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			oldest, what, err := r.waitsFor(ctx)
			r.observe(Event{Kind: EventStalled, Count: count, Elapsed: still, Reason: what, Err: err, Item: oldest})
		},
		Moves: func(still time.Duration) { r.observe(Event{Kind: EventMoves, Elapsed: still}) },
	})
}

// waitsFor returns the oldest message in progress, of which only the origin is set, and
// what the pipeline waits for. err is the error that it waits to pass, or nil.
func (r *Runner) waitsFor(ctx context.Context) (oldest *Item, what string, err error) {
	seen := r.sched.survey()
	oldest = seen.oldest
	r.mu.Lock()
	store, sink := r.storeDown, r.sinkDown
	r.mu.Unlock()
	switch {
	case store.err != nil:
		return oldest, "the store, which has failed since " + store.since.UTC().Format(time.RFC3339), store.err
	case sink.err != nil:
		return oldest, "the sink, which has failed since " + sink.since.UTC().Format(time.RFC3339), sink.err
	}
	if source := r.sourceWaits.Load(); source != nil {
		return oldest, source.what, nil
	}
	var list []string
	add := func(stage *atomic.Int32, text func() string) {
		if stage.Load() > 0 {
			list = append(list, text())
		}
	}
	add(&r.stages.starting, func() string { return waitsFor(ctx, r.session, "the store, before it starts") })
	add(&r.stages.processing, func() string { return waitsFor(ctx, r.session, "decision, delivery and commit") })
	add(&r.stages.parking, func() string { return "the store of parked messages" })
	add(&r.stages.acknowledging, func() string { return "the source to take acknowledgements" })
	add(&r.stages.returning, func() string { return "the source to take messages back" })
	switch held, late := errors.AsType[*semel.InFlightError](seen.err); {
	case late:
		list, err = append(list, "a key that another process holds until "+held.LeaseEnd.UTC().Format(time.RFC3339)), seen.err
	case !seen.due.IsZero():
		pause := max(time.Until(seen.due), 0).Round(100 * time.Millisecond)
		list, err = append(list, fmt.Sprintf("the next attempt in %v", pause)), seen.err
	}
	if two, ok := r.session.(*TwoPhase); ok && err == nil {
		err = two.failing()
	}
	if len(list) == 0 {
		list = append(list, "a worker")
	}
	return oldest, strings.Join(list, ", "), err
}

// stalled returns an error that says why the pipeline stalls, or nil. It returns nil
// if that ends by itself.
func (r *Runner) stalled(ctx context.Context) error {
	still := r.stall.For()
	if source := r.sourceWaits.Load(); still == 0 || source != nil && source.ends {
		return nil
	}
	_, what, err := r.waitsFor(ctx)
	return newStalled(still, what, err)
}

// newStalled returns the error of a probe for a pipeline that stalls.
func newStalled(still time.Duration, what string, err error) error {
	text := fmt.Sprintf("stalled for %v, waiting for %s", still.Round(time.Second), what)
	if err != nil {
		return newNotReady(text, err)
	}
	return errors.New(text)
}

// survey is what a scheduler has in progress.
type survey struct {
	oldest *Item     // with its origin alone; nil if none exists
	due    time.Time // of the next try of a message that failed, or zero
	err    error     // of that message
}

// survey looks at all messages in progress.
func (s *scheduler) survey() survey {
	s.mu.Lock()
	defer s.mu.Unlock()
	var seen survey
	var read time.Time
	for c := range s.groups.all() {
		for e := c.head; e != nil; e = e.next {
			if !e.busy && e.done { // in this order: the worker that has it sets done
				continue
			}
			o := e.Message.Origin
			if seen.oldest == nil || e.read.Before(read) || e.read.Equal(read) && e.Partition == seen.oldest.Partition && o.Offset < seen.oldest.Message.Origin.Offset {
				seen.oldest, read = &Item{Message: semel.Message{Origin: o}, Partition: e.Partition}, e.read
			}
			if !e.busy && !e.due.IsZero() && (seen.due.IsZero() || e.due.Before(seen.due)) {
				seen.due, seen.err = e.due, e.Err
			}
		}
	}
	return seen
}
