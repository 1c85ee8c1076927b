package pipeline

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/semel-dev/semel"
)

// alreadyParked is the reason of a message that came again although it was
// parked: it is settled.
const alreadyParked = "parked before"

// verdicts are what becomes of the items of a batch.
type verdicts struct {
	settled, park, back []*Item
	wait                time.Duration // of what goes back

	sinkErr, storeErr     error
	after                 time.Duration // how long the sink asks to be left alone
	sinkWorks, storeWorks bool
	delivered             uint64
	together              bool // one failure of the sink is that of all items
}

// reset forgets all but the room.
func (v *verdicts) reset() {
	clear(v.settled) // an idle worker must hold nothing
	*v = verdicts{settled: v.settled[:0]}
}

// judge decides what becomes of items after they were processed and does it: on
// return each is either done with, or has the time at which it comes again. The
// verdicts are empty before and after.
func (r *Runner) judge(batch []*Item, v *verdicts) {
	defer v.reset()
	now := time.Now()
	v.together = failedTogether(batch)
	for _, it := range batch {
		it.due = time.Time{}
		r.sentence(it, v, now)
	}
	r.delivered.Add(v.delivered)
	r.mood(v)
	if len(v.park) > 0 && r.park(v.park) {
		v.settled = append(v.settled, v.park...)
	}
	if len(v.back) > 0 {
		r.giveBack(v.back, v.wait)
	}
	if len(v.settled) > 0 {
		r.settled(v.settled)
	}
}

// failedTogether reports whether the sink failed several items in one, so that
// none of them is the cause.
func failedTogether(batch []*Item) bool {
	var last, away *UnavailableError
	for _, it := range batch {
		if it.Err == nil || !errors.As(it.Err, &away) {
			continue
		}
		if away == last {
			return true
		}
		last = away
	}
	return false
}

// mostPassed bounds how long a message waits that a sink refuses with a time at
// which to come again, while it takes others: it would have been taken so many times
// if the sink took of those that wait whichever comes first. By chance that happens
// to one in half a billion (e to the power of -20).
const mostPassed = 20

// sentence puts one item where it belongs.
func (r *Runner) sentence(it *Item, v *verdicts, now time.Time) {
	if it.reason != "" { // it was not processed
		r.unprocessed(it, v)
		return
	}
	if it.Decision != semel.Undecided {
		v.storeWorks = true
	}
	if it.Err != nil {
		r.failed(it, v, now)
		return
	}
	if it.delivered() {
		v.sinkWorks = true
		v.delivered++
	}
	v.settled = append(v.settled, it)
}

// failed puts an item with an error where it belongs.
func (r *Runner) failed(it *Item, v *verdicts, now time.Time) {
	var (
		flight    *semel.InFlightError
		permanent *semel.PermanentError
		store     *StoreError
		away      *UnavailableError
	)
	switch err := it.Err; {
	case errors.Is(err, ErrBehind):
	case r.hard.Err() != nil: // it goes back to the source
	case errors.As(err, &flight):
		r.waitFor(it, flight, v, now)
	case it.Decision == semel.Late:
		r.giveUp(it, "late", r.opts.OnLate, v)
	case it.Decision == semel.Mismatch:
		r.giveUp(it, "mismatch", r.opts.OnMismatch, v)
	case it.Decision == semel.InDoubt:
		r.giveUp(it, "unknown", unknownThen(r.opts.Failure.Then), v)
	case errors.As(err, &permanent):
		v.sinkWorks = true
		r.giveUp(it, "permanent", r.opts.Failure.Then, v)
	case errors.As(err, &store):
		v.storeErr = err
	case errors.As(err, &away):
		// While others are delivered it is this message that the sink cannot
		// take, and it must not hold them up for ever.
		delivered := r.delivered.Load() + v.delivered
		refused := it.away && delivered != it.seen
		if refused {
			waiting, _ := r.sched.size()
			it.passed += float32(delivered-it.seen) / float32(max(waiting, 1))
		}
		it.away, it.seen = true, delivered
		switch {
		case !refused || v.together:
			v.sinkErr, v.after = err, max(v.after, away.After)
		case away.After > 0 && it.passed < mostPassed: // the sink takes no more now, and says until when
			it.due = now.Add(max(r.opts.Failure.Pause(1), away.After))
			r.observe(Event{Kind: EventRetried, Count: 1, Err: err, Reason: "failed", Item: it})
		default:
			r.retry(it, v, now)
		}
	case errors.Is(err, semel.ErrLeaseLost):
		it.due = now.Add(r.opts.Failure.Pause(1))
		r.observe(Event{Kind: EventRetried, Count: 1, Err: err, Reason: "lease lost", Item: it})
	default:
		v.sinkWorks = true
		r.retry(it, v, now)
	}
}

// unknownThen is what becomes of a key that somebody must resolve: it is never
// dropped.
func unknownThen(then Then) Then {
	if then == Drop {
		return Park
	}
	return then
}

// unprocessed is for what has no key, or was parked before.
func (r *Runner) unprocessed(it *Item, v *verdicts) {
	if it.reason == alreadyParked {
		v.settled = append(v.settled, it)
		return
	}
	then := Park
	switch r.opts.OnMissing {
	case MissingDrop:
		then = Drop
	case MissingStop:
		then = Stop
	}
	r.giveUp(it, it.reason, then, v)
}

// retry has an item delivered again, if attempts are left.
func (r *Runner) retry(it *Item, v *verdicts, now time.Time) {
	it.tries++
	if it.tries >= r.opts.Failure.Attempts {
		r.giveUp(it, "attempts", r.opts.Failure.Then, v)
		return
	}
	pause := r.opts.Failure.Pause(it.tries)
	var (
		asked *RetryError
		away  *UnavailableError
	)
	if errors.As(it.Err, &asked) {
		pause = max(pause, asked.After)
	} else if errors.As(it.Err, &away) {
		pause = max(pause, away.After)
	}
	it.due = now.Add(pause)
	r.observe(Event{Kind: EventRetried, Count: 1, Err: it.Err, Reason: "failed", Item: it})
}

// waitFor lets an item wait for another holder of its key, or gives it back. One
// that its source cannot take back waits without end: to put it aside would be
// wrong while its effect may be happening, so that it is only told.
func (r *Runner) waitFor(it *Item, flight *semel.InFlightError, v *verdicts, now time.Time) {
	if it.since.IsZero() {
		it.since = now
	}
	waited := now.Sub(it.since)
	left := max(flight.LeaseEnd.Sub(now), 100*time.Millisecond)
	if it.source.canReturn && waited >= r.opts.Wait {
		v.back = append(v.back, it)
		v.wait = max(v.wait, min(left, 30*time.Second))
		return
	}
	if !it.told && waited >= r.opts.Wait {
		it.told = true
		r.observe(Event{Kind: EventRetried, Count: 1, Err: it.Err, Reason: HeldReason, Elapsed: waited, Item: it})
	}
	pause := min(max(waited/2, 2*time.Millisecond), 500*time.Millisecond, left)
	it.due = now.Add(pause/2 + rand.N(pause))
}

// giveUp puts an item aside, drops it, or ends the pipeline at it. One that was
// put aside before and fails again is put aside again.
func (r *Runner) giveUp(it *Item, reason string, then Then, v *verdicts) {
	if it.source.parked {
		then = Park
	}
	switch then {
	case Park:
		it.parking = reason
		v.park = append(v.park, it)
	case Drop:
		r.session.Abandon(r.hard, []*Item{it})
		r.observe(Event{Kind: EventDropped, Count: 1, Reason: reason, Err: it.Err, Item: it})
		v.settled = append(v.settled, it)
	default:
		r.fail(fmt.Errorf("%w%s, for %q: %w: mend the cause and start again, or write %s", ErrStopped, it.named(), reason, it.Err, instead(reason)))
	}
}

// named says which message of the source an item is, by what is known of it.
func (it *Item) named() string {
	text := ""
	if o := it.Message.Origin; o != (semel.Origin{Delivery: o.Delivery}) {
		text = " of " + it.source.at(o)
	} else if it.Message.ID != "" {
		text = fmt.Sprintf(" with the id %q", it.Message.ID)
	}
	return text + ", key " + it.Call.Key.String()
}

// at says where a message of the source stands.
func (f *feed) at(o semel.Origin) string {
	if p, ok := f.source.(Placer); ok {
		return p.Place(o)
	}
	return fmt.Sprintf("%s, partition %d, offset %d", o.Source, o.Partition, o.Offset)
}

// instead is the setting of a configuration that puts a message aside which would
// end the pipeline for a reason.
func instead(reason string) string {
	switch reason {
	case "key-missing", "key-invalid":
		return "on_missing: park"
	case "late", "mismatch":
		return "on_" + reason + ": park"
	}
	return "then: park"
}

// park puts items aside and reports whether that is durable. It tries until it
// is, or the pipeline must end. A permanent error ends the pipeline: what cannot
// be put aside stays with its source.
func (r *Runner) park(items []*Item) bool {
	list := make([]Parked, len(items))
	for i, it := range items {
		list[i] = Parked{
			ID:       parkedID(r.opts.Name, it),
			Pipeline: r.opts.Name,
			Key:      it.Call.Key,
			Reason:   it.parking,
			Error:    it.Err.Error(),
			Attempts: max(it.Attempt, it.tries),
			Redrives: it.Redrive,
			At:       time.Now(),
			Message:  it.Message,
		}
	}
	err := r.opts.Parker.Park(r.hard, list)
	for n := 1; err != nil; n++ {
		r.observe(Event{Kind: EventPaused, Reason: "parking", Err: err})
		if _, permanent := errors.AsType[*semel.PermanentError](err); permanent {
			r.fail(fmt.Errorf("%w that cannot be put aside: %w: mend the cause and start again", ErrStopped, err))
			return false
		}
		if sleep(r.hard, r.opts.Failure.Pause(n)) != nil {
			return false
		}
		err = r.opts.Parker.Park(r.hard, list)
	}
	r.known.add(list)
	r.session.Abandon(r.hard, items)
	for _, it := range items {
		r.observe(Event{Kind: EventParked, Count: 1, Reason: it.parking, Err: it.Err, Item: it})
	}
	return true
}

// giveBack returns items to their source.
func (r *Runner) giveBack(items []*Item, delay time.Duration) {
	r.session.Abandon(r.hard, items)
	for f, of := range byFeed(items) {
		err := f.source.Return(r.hard, of, delay)
		if err != nil {
			now := time.Now()
			for _, it := range of {
				it.due = now.Add(time.Second) // they are still ours
			}
			continue
		}
		r.observe(Event{Kind: EventReturned, Count: len(of)})
		for _, it := range of {
			it.done = true
		}
	}
}

// settled acknowledges items. An error of the source is tried again until the
// pipeline must end; the messages then come again, and are known.
func (r *Runner) settled(items []*Item) {
	for f, of := range byFeed(items) {
		err := f.source.Ack(r.hard, of)
		for n := 1; err != nil; n++ {
			r.observe(Event{Kind: EventPaused, Reason: "acknowledging", Err: err})
			if sleep(r.hard, r.opts.Failure.Pause(n)) != nil {
				break
			}
			err = f.source.Ack(r.hard, of)
		}
	}
	oldest := items[0].read
	for _, it := range items {
		it.done = true
		if it.read.Before(oldest) {
			oldest = it.read
		}
	}
	r.observe(Event{Kind: EventSettled, Count: len(items), Elapsed: time.Since(oldest)})
}

func byFeed(items []*Item) map[*feed][]*Item {
	same := true
	for _, it := range items {
		same = same && it.source == items[0].source
	}
	if same {
		return map[*feed][]*Item{items[0].source: items}
	}
	by := map[*feed][]*Item{}
	for _, it := range items {
		by[it.source] = append(by[it.source], it)
	}
	return by
}

// trouble is what keeps sink or store from working.
type trouble struct {
	err   error
	times int
	since time.Time
	until time.Time // the end of the pause
}

// mood pauses the pipeline when sink or store are down, and lets it go on when
// they work.
func (r *Runner) mood(v *verdicts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	until := now
	change := func(t *trouble, what string, err error, works bool, after time.Duration) {
		switch {
		case err != nil:
			if t.err == nil {
				t.since = now
				r.observe(Event{Kind: EventPaused, Reason: what, Err: err})
			}
			t.err = err
			pause := after
			if !now.Before(t.until) { // else it was under way when the pause began
				t.times++
				pause = max(r.opts.Failure.Pause(t.times), after)
			}
			if end := now.Add(pause); end.After(t.until) {
				t.until = end
			}
			if t.until.After(until) {
				until = t.until
			}
		case works && t.err != nil:
			r.observe(Event{Kind: EventResumed, Reason: what, Elapsed: now.Sub(t.since)})
			*t = trouble{}
		}
	}
	change(&r.stoDown, "store", v.storeErr, v.storeWorks, 0)
	change(&r.sinkDown, "sink", v.sinkErr, v.sinkWorks, v.after)
	switch {
	case v.storeErr != nil || v.sinkErr != nil:
		r.sched.pause(until)
	case r.stoDown.err == nil && r.sinkDown.err == nil:
		r.sched.resume()
	default:
		r.sched.unprobe()
	}
}

// observe tells the observer.
func (r *Runner) observe(e Event) {
	if r.opts.Observer != nil {
		e.Pipeline = r.opts.Name
		r.opts.Observer.ObservePipeline(e)
	}
}

// observeBatch tells how a batch was decided and delivered.
func (r *Runner) observeBatch(items []*Item, elapsed time.Duration) {
	if r.opts.Observer == nil {
		return
	}
	var decided [semel.Late + 1]int
	delivered, failed := 0, 0
	var err error
	for _, it := range items {
		if int(it.Decision) < len(decided) {
			decided[it.Decision]++
		}
		switch {
		case it.Decision != semel.Fresh:
		case it.Err == nil:
			delivered++
		case !errors.Is(it.Err, ErrBehind):
			failed++
			err = it.Err
		}
	}
	for d, n := range decided {
		if n > 0 {
			r.observe(Event{Kind: EventDecided, Count: n, Decision: semel.Decision(d)})
		}
	}
	if delivered > 0 {
		r.observe(Event{Kind: EventDelivered, Count: delivered, Elapsed: elapsed})
	}
	if failed > 0 {
		r.observe(Event{Kind: EventDelivered, Count: failed, Elapsed: elapsed, Err: err})
	}
}
