package pipeline

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/eventreason"
	"github.com/semel-dev/semel/internal/retry"
)

// failures is the history of an item that has failed.
type failures struct {
	unavailable bool      // the sink was unavailable for it
	most        int       // that happened with others, more than once: the largest batch for it; 0 is no limit
	mostUntil   time.Time // when that limit ends
	delivered   uint64    // the number of messages delivered by then
	uncounted   int       // of Item.Tries: the server failed, and the effect may have happened
	passedOver  float32   // its expected deliveries since then, if the sink took messages at random
	waitsSince  time.Time // when it began to wait for another holder of its key
	reported    bool      // the observer knows that it waits for longer than Options.Wait
}

// history returns an entry's failures.
func (e *entry) history() *failures {
	if e.failures == nil {
		e.failures = &failures{}
	}
	return e.failures
}

// outcomes collects the outcomes of a batch.
type outcomes struct {
	settled, park, giveBack []*entry
	delay                   time.Duration // after which the source delivers the entries of giveBack again

	sinkErr, storeErr     error
	sinkAfter             time.Duration // how long the sink wants no requests
	sinkWorks, storeWorks bool
	delivered             uint64
	together              int     // the number of items that one error of the sink failed, if not one alone
	items                 []*Item // reused for the items of settled
}

// reset empties the outcomes and keeps their memory.
func (o *outcomes) reset() {
	clear(o.settled) // an idle worker must keep nothing alive
	clear(o.items)
	*o = outcomes{settled: o.settled[:0], items: o.items[:0]}
}

// settleBatch decides the outcomes of a processed batch and carries them out. Then each
// entry is done, or has the time of its next try. The outcomes are empty before and
// after.
func (r *Runner) settleBatch(batch []*entry, o *outcomes) {
	defer o.reset()
	now := time.Now()
	o.together = failedTogether(batch)
	for _, e := range batch {
		e.due = time.Time{}
		r.classify(e, o, now)
	}
	r.delivered.Add(o.delivered)
	r.pauseOrResume(o)
	r.carryOut(batch, o)
}

// carryOut parks, returns and acknowledges the entries of a batch.
func (r *Runner) carryOut(batch []*entry, o *outcomes) {
	if len(o.park) > 0 && r.park(o.park) {
		o.settled = append(o.settled, o.park...)
	}
	if r.tracer != nil {
		r.tracer.End(appendItems(nil, batch, nil))
	}
	if len(o.giveBack) > 0 {
		r.giveBack(o)
	}
	if len(o.settled) > 0 {
		r.acknowledge(o)
	}
}

// failedTogether returns how many items one error of the sink failed, or 0 if each error
// failed one. If there are several, none of them is known to be the cause.
func failedTogether(batch []*entry) (together int) {
	var last, unavailable *UnavailableError
	n := 0
	for _, e := range batch {
		if e.Err == nil || !errors.As(e.Err, &unavailable) {
			continue
		}
		if n++; unavailable != last {
			last, n = unavailable, 1
		}
		if n > 1 {
			together = max(together, n)
		}
	}
	return together
}

// maxPassedOver limits the wait of a message that a sink refuses with a time of its own
// while it accepts others. A sink that accepts messages at random passes over a message
// that often in one of half a billion cases (e to the power of -20).
const maxPassedOver = 20

// classify decides the outcome of one entry.
func (r *Runner) classify(e *entry, o *outcomes, now time.Time) {
	if e.unprocessed != "" {
		r.classifyUnprocessed(e, o)
		return
	}
	if e.Decision != semel.Undecided {
		o.storeWorks = true
	}
	if e.Err != nil {
		r.classifyFailed(e, o, now)
		return
	}
	if e.delivered() {
		o.sinkWorks = true
		o.delivered++
	}
	o.settled = append(o.settled, e)
}

// classifyFailed decides the outcome of an entry with an error.
func (r *Runner) classifyFailed(e *entry, o *outcomes, now time.Time) {
	var (
		inFlight    *semel.InFlightError
		permanent   *semel.PermanentError
		store       *StoreError
		unavailable *UnavailableError
	)
	switch err := e.Err; {
	case errors.Is(err, ErrBehind):
	case r.hard.Err() != nil: // finish returns it to the source
	case errors.As(err, &inFlight):
		r.waitForHolder(e, inFlight, o, now)
	case e.Decision == semel.Late:
		r.giveUp(e, ReasonLate, r.opts.OnLate, o)
	case e.Decision == semel.Mismatch:
		r.giveUp(e, ReasonMismatch, r.opts.OnMismatch, o)
	case e.Decision == semel.OutcomeUnknown && r.opts.Failure.Then == Drop:
		r.giveUp(e, ReasonUnknown, Park, o) // a person must resolve the key
	case e.Decision == semel.OutcomeUnknown:
		r.giveUp(e, ReasonUnknown, r.opts.Failure.Then, o)
	case errors.As(err, &permanent):
		o.sinkWorks = true
		r.giveUp(e, ReasonPermanent, r.opts.Failure.Then, o)
	case errors.As(err, &store):
		o.storeErr = err
	case errors.As(err, &unavailable):
		r.classifyUnavailable(e, unavailable, o, now)
	case errors.Is(err, semel.ErrLeaseLost):
		e.due = now.Add(r.opts.Failure.Pause(1))
		r.observe(Event{Kind: EventRetried, Count: 1, Err: err, Reason: "lease lost", Item: e.Item})
	default:
		o.sinkWorks = true
		r.retry(e, o, now)
	}
}

// classifyUnavailable decides the outcome of an entry for which the sink was
// unavailable. The pipeline pauses, unless the sink has delivered other messages since
// it was first unavailable for this one, and since it was last unavailable for others. Then
// this message is the cause, and must not hold up the others for ever. If the effect may
// have happened, the next delivery has another attempt number, which does not count towards
// Failure.Attempts.
func (r *Runner) classifyUnavailable(e *entry, err *UnavailableError, o *outcomes, now time.Time) {
	f := e.history()
	delivered := r.delivered.Load() + o.delivered
	between := f.unavailable && delivered != f.delivered // since then, the sink has worked
	refused := between && delivered != r.downAt.Load()
	if refused {
		waiting, _ := r.sched.size()
		f.passedOver += float32(delivered-f.delivered) / float32(max(waiting, 1))
	}
	f.unavailable, f.delivered = true, delivered
	f.suspect(refused, between, o.together, e.Err, now.Add(max(2*r.opts.Failure.To, leastSuspicion)+err.After))
	counts := refused && o.together == 0 && !(err.After > 0 && f.passedOver < maxPassedOver)
	if !counts && errors.Is(err, semel.ErrOutcomeUnknown) {
		e.Tries++
		f.uncounted++
	}
	switch {
	case !refused || o.together > 0:
		o.sinkErr, o.sinkAfter = e.Err, max(o.sinkAfter, err.After)
	case !counts: // the sink is busy and says for how long
		e.due = now.Add(max(r.opts.Failure.Pause(1), err.After))
		r.observe(Event{Kind: EventRetried, Count: 1, Err: e.Err, Reason: "failed", Item: e.Item})
	default:
		r.retry(e, o, now)
	}
}

// suspect limits the batches of an entry that failed with others although the sink works:
// one of them may be the cause. Each time, half of them are tried together, so that the cause
// is soon alone, and the others are few batches even after an outage that came and went. The
// limit lasts until a time, by which the cause is tried again. An entry that is alone and
// fails when the sink, which had worked in between, fails for all is not the cause, and joins
// batches again immediately.
func (f *failures) suspect(refused, between bool, together int, err error, until time.Time) {
	switch {
	case refused && together > 0 && !isFull(err): // a full disk may take small batches
		f.most, f.mostUntil = max(together/2, 1), until
	case refused:
		f.mostUntil = until
	case f.most == 1 && between:
		f.most = 0
	}
}

// leastSuspicion is how long the limit lasts at least: the entries that were tried before the
// cause may take long.
const leastSuspicion = time.Minute

// classifyUnprocessed decides the outcome of an entry that has no key, that is parked
// already, or that the server may not deliver again.
func (r *Runner) classifyUnprocessed(e *entry, o *outcomes) {
	if e.unprocessed == ReasonParkedBefore {
		e.Parked = ReasonParkedBefore
		r.observe(Event{Kind: EventParked, Count: 1, Reason: string(e.Parked), Item: e.Item})
		o.settled = append(o.settled, e)
		return
	}
	then := Park
	switch {
	case e.unprocessed == ReasonDeliveries: // the message did not fail
	case r.opts.OnMissing == MissingDrop:
		then = Drop
	case r.opts.OnMissing == MissingStop:
		then = Stop
	}
	r.giveUp(e, e.unprocessed, then, o)
}

// retry sets the time of the next try. After the last try it gives up the item.
func (r *Runner) retry(e *entry, o *outcomes, now time.Time) {
	e.Tries++
	counted := e.Tries
	if e.failures != nil {
		counted -= e.failures.uncounted
	}
	if counted >= r.opts.Failure.Attempts {
		r.giveUp(e, ReasonAttempts, r.opts.Failure.Then, o)
		return
	}
	pause := r.opts.Failure.Pause(counted)
	var (
		asked       *RetryError
		unavailable *UnavailableError
	)
	if errors.As(e.Err, &asked) {
		pause = max(pause, asked.After)
	} else if errors.As(e.Err, &unavailable) {
		pause = max(pause, unavailable.After)
	}
	e.due = now.Add(pause)
	r.observe(Event{Kind: EventRetried, Count: 1, Err: e.Err, Reason: "failed", Item: e.Item})
}

// waitForHolder lets an item wait for another holder of its key. After Options.Wait the
// item goes back to its source. If the source cannot take it back, it waits without
// limit, and the observer gets one event. It is not parked, because its effect may be
// in progress elsewhere.
func (r *Runner) waitForHolder(e *entry, inFlight *semel.InFlightError, o *outcomes, now time.Time) {
	f := e.history()
	if f.waitsSince.IsZero() {
		f.waitsSince = now
	}
	waited := now.Sub(f.waitsSince)
	left := max(inFlight.LeaseEnd.Sub(now), 100*time.Millisecond)
	if e.feed.traits.CanReturn && waited >= r.opts.Wait {
		o.giveBack = append(o.giveBack, e)
		o.delay = max(o.delay, min(left, 30*time.Second))
		return
	}
	if !f.reported && waited >= r.opts.Wait {
		f.reported = true
		r.observe(Event{Kind: EventRetried, Count: 1, Err: e.Err, Reason: eventreason.Held, Elapsed: waited, Item: e.Item})
	}
	pause := min(max(waited/2, 2*time.Millisecond), 500*time.Millisecond, left)
	e.due = now.Add(retry.Around(pause, 0.5))
}

// giveUp parks an item, drops it, or stops the pipeline. A redriven message that fails
// is always parked again.
func (r *Runner) giveUp(e *entry, reason Reason, then Then, o *outcomes) {
	if e.feed.parked {
		then = Park
	}
	if (reason == ReasonKeyMissing || reason == ReasonKeyInvalid) && then != Drop {
		e.Err = diagnose.NoKey(e.Message.Body, e.Err)
	}
	switch then {
	case Park:
		e.Parked = reason
		o.park = append(o.park, e)
	case Drop:
		r.session.Abandon(r.hard, []*Item{e.Item})
		r.observe(Event{Kind: EventDropped, Count: 1, Reason: string(reason), Err: e.Err, Item: e.Item})
		o.settled = append(o.settled, e)
	default:
		r.fail(&StoppedError{Where: e.named(), Reason: reason, Err: e.Err})
	}
}

// named describes an entry by its key and, if that is known, its place in the source.
func (e *entry) named() string {
	name := "a message"
	if o := e.Message.Origin; o != (semel.Origin{Delivery: o.Delivery}) {
		name += " of " + e.feed.at(o)
	} else if e.Message.ID != "" {
		name += fmt.Sprintf(" with the id %q", e.Message.ID)
	}
	return name + ", key " + e.Call.Key.String()
}

// at describes the place of a message in the source.
func (f *feed) at(o semel.Origin) string {
	if f.traits.Place != nil {
		return f.traits.Place(o)
	}
	return fmt.Sprintf("%s, partition %d, offset %d", o.Source, o.Partition, o.Offset)
}

// park parks items and reports whether they are durable. It repeats the call until they
// are, or until the drain ends. A permanent error stops the pipeline: a message that
// cannot be parked stays with its source.
func (r *Runner) park(entries []*entry) (parked bool) {
	list := make([]Parked, len(entries))
	for i, e := range entries {
		list[i] = Parked{
			ID:       parkedID(r.opts.Name, e),
			Pipeline: r.opts.Name,
			Key:      e.Call.Key,
			Reason:   e.Parked,
			Error:    e.Err.Error(),
			Attempts: max(e.Attempt, e.Tries),
			Redrives: e.Redrive,
			At:       time.Now(),
			Message:  *e.original(),
		}
		e.Parked = "" // until it is durable
	}
	defer in(&r.stages.parking)()
	ctx, end := r.tracePark(entries)
	permanent := false
	err := r.repeat("parking", func() error {
		err := r.opts.DeadLetters.Park(ctx, list)
		_, permanent = errors.AsType[*semel.PermanentError](err)
		return err
	}, &permanent)
	end(semel.Undecided, err)
	if permanent {
		r.fail(fmt.Errorf("%w that cannot be parked: %w: fix the cause and start again", ErrStopped, err))
	}
	if err != nil {
		return false
	}
	r.known.add(list)
	for i, e := range entries {
		e.Parked = list[i].Reason
		r.observe(Event{Kind: EventParked, Count: 1, Reason: string(e.Parked), Err: e.Err, Item: e.Item})
	}
	r.session.Abandon(r.hard, appendItems(nil, entries, nil))
	return true
}

// repeat repeats a call with pauses until it succeeds, until final is set, or until the drain
// ends. It reports the pauses and their end.
func (r *Runner) repeat(what string, call func() error, final *bool) error {
	err := call()
	if err == nil {
		return nil
	}
	began, caller := time.Now(), new(int)
	for n := 1; err != nil; n++ {
		pause := r.opts.Failure.Pause(n)
		r.observeBy(caller, Event{Kind: EventPaused, Reason: what, Err: err, Attempt: n, Next: pause})
		if final != nil && *final || retry.Sleep(r.hard, pause) != nil {
			return err
		}
		err = call()
	}
	r.observeBy(caller, Event{Kind: EventResumed, Reason: what, Elapsed: time.Since(began)})
	return nil
}

// observeBy reports an event of one of several callers, each of which may wait for the same
// part. Work resumes when no caller waits for it.
func (r *Runner) observeBy(caller any, e Event) {
	if e.Kind == EventPaused || e.Kind == EventResumed {
		r.mu.Lock()
		defer r.mu.Unlock()
		waiting := r.waiting[e.Reason]
		if e.Kind == EventPaused {
			waiting[caller] = true
		} else if delete(waiting, caller); len(waiting) > 0 {
			return
		}
	}
	r.observe(e)
}

// tracePark begins the step of parking entries, if there is a Tracer.
func (r *Runner) tracePark(entries []*entry) (context.Context, func(semel.Decision, error)) {
	if r.tracer == nil {
		return r.hard, func(semel.Decision, error) {}
	}
	return r.tracer.BeginStep(r.tracer.In(r.hard, appendItems(nil, entries, nil)), semel.StepPark, len(entries))
}

// giveBack returns items to their sources.
func (r *Runner) giveBack(o *outcomes) {
	defer in(&r.stages.returning)()
	r.session.Abandon(r.hard, appendItems(nil, o.giveBack, nil))
	for _, f := range r.feeds {
		items := appendItems(nil, o.giveBack, f)
		if len(items) == 0 {
			continue
		}
		for _, it := range items {
			it.wrap()
		}
		err := f.source.Return(r.hard, items, o.delay)
		if err == nil {
			r.observe(Event{Kind: EventReturned, Count: len(items)})
		}
		now := time.Now()
		for _, e := range o.giveBack {
			switch {
			case e.feed != f:
			case err != nil:
				e.due = now.Add(time.Second) // the source did not take it back
				e.Err = r.unwrap(e.Item)
			default:
				e.done = true
			}
		}
	}
}

// appendItems appends the items of the entries that a feed has read. A nil feed stands
// for all feeds.
func appendItems(into []*Item, of []*entry, f *feed) []*Item {
	for _, e := range of {
		if f == nil || e.feed == f {
			into = append(into, e.Item)
		}
	}
	return into
}

// acknowledge acknowledges the settled items. It repeats a failed call until the drain
// ends. Items that were not acknowledged come again and are duplicates.
func (r *Runner) acknowledge(o *outcomes) {
	defer in(&r.stages.acknowledging)()
	for _, f := range r.feeds {
		o.items = appendItems(o.items[:0], o.settled, f)
		if len(o.items) == 0 {
			continue
		}
		_ = r.repeat("acknowledging", func() error { return f.source.Ack(r.hard, o.items) }, nil) // it ends early only with r.hard
	}
	r.settled.Add(uint64(len(o.settled)))
	oldest := o.settled[0].read
	for _, e := range o.settled {
		e.done = true
		if e.read.Before(oldest) {
			oldest = e.read
		}
	}
	r.observe(Event{Kind: EventSettled, Count: len(o.settled), Elapsed: time.Since(oldest)})
}

// trouble is an outage of sink or store.
type trouble struct {
	err   error // nil if it is over
	since time.Time
	until time.Time // when the pause ends

	// A full disk takes one message, and then no whole batch. If it is full again sooner
	// than the last pause lasted, its pauses keep growing.
	times int // the number of pauses
	pause time.Duration
	over  time.Time
}

// pauseOrResume pauses the pipeline when sink or store is down. It resumes the pipeline
// when both work.
func (r *Runner) pauseOrResume(o *outcomes) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	until := now
	change := func(t *trouble, what string, err error, works bool, after time.Duration) {
		switch {
		case err != nil:
			if t.err == nil {
				t.since = now
				if !isFull(err) || now.Sub(t.over) > t.pause {
					t.times = 0
				}
			}
			began := t.err == nil
			t.err = err
			pause := after
			if !now.Before(t.until) { // otherwise the batch started before the pause
				t.times++
				pause = max(r.opts.Failure.Pause(t.times), after)
				t.pause = pause
			}
			if end := now.Add(pause); end.After(t.until) {
				t.until = end
			}
			if began {
				r.observe(Event{Kind: EventPaused, Reason: what, Err: err, Attempt: t.times, Next: t.until.Sub(now)})
			}
			if t.until.After(until) {
				until = t.until
			}
		case works && t.err != nil:
			r.observe(Event{Kind: EventResumed, Reason: what, Elapsed: now.Sub(t.since)})
			*t = trouble{times: t.times, pause: t.pause, over: now}
		}
	}
	change(&r.storeDown, "store", o.storeErr, o.storeWorks, 0)
	change(&r.sinkDown, "sink", o.sinkErr, o.sinkWorks, o.sinkAfter)
	switch {
	case o.storeErr != nil || o.sinkErr != nil:
		if o.sinkErr != nil && !o.sinkWorks {
			r.downAt.Store(r.delivered.Load())
		}
		r.sched.pause(until)
	case r.storeDown.err == nil && r.sinkDown.err == nil:
		r.sched.resume()
	default:
		r.sched.unprobe()
	}
}

// probe asks sink and store whether they work, when a pause is over and no message waits to be
// tried. Without it, only the next message would end the pause, and a pipeline that is not
// ready may get none. Parts that cannot tell count as working: the next message shows it.
func (r *Runner) probe(ctx context.Context) {
	asking, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	err := ready(asking, r.session)
	store, ofStore := errors.AsType[*StoreError](err)
	sink, ofSink := errors.AsType[*UnavailableError](err)
	switch {
	case ctx.Err() != nil: // the drain begins
		r.sched.unprobe()
	case err == nil:
		works := outcomes{sinkWorks: true, storeWorks: true}
		if r.stages.starting.Load() > 0 { // the store has still to take the scope, which is more than an answer
			r.mu.Lock()
			works.storeErr = r.storeDown.err
			r.mu.Unlock()
			works.storeWorks = works.storeErr == nil
		}
		r.pauseOrResume(&works)
	case ofStore:
		r.pauseOrResume(&outcomes{storeErr: store})
	case ofSink:
		r.pauseOrResume(&outcomes{sinkErr: err, sinkAfter: sink.After})
	default:
		r.pauseOrResume(&outcomes{sinkErr: Unavailable(err, 0)})
	}
}

// isFull reports whether a disk or a store has no space, which a person must free.
func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, semel.ErrStoreFull)
}

// observe gives an event to the observer, if there is one.
func (r *Runner) observe(e Event) {
	if r.opts.Observer != nil {
		e.Pipeline = r.opts.Name
		r.opts.Observer.ObservePipeline(e)
	}
}

// decidedAs returns the n items with a decision, unless they are fresh.
func decidedAs(items []*Item, d semel.Decision, n int) []*Item {
	switch {
	case d == semel.Fresh, d == semel.Undecided:
		return nil
	case n == len(items):
		return items
	}
	list := make([]*Item, 0, n)
	for _, it := range items {
		if it.Decision == d {
			list = append(list, it)
		}
	}
	return list
}

// observeBatch reports how a batch was decided and delivered.
func (r *Runner) observeBatch(items []*Item, elapsed time.Duration) {
	if r.opts.Observer == nil {
		return
	}
	var decided [semel.Superseded + 1]int
	delivered, failed := 0, 0
	var filtered []*Item
	var err error
	for _, it := range items {
		if int(it.Decision) < len(decided) {
			decided[it.Decision]++
		}
		switch {
		case it.Decision != semel.Fresh:
		case it.Err == nil && it.Filtered:
			filtered = append(filtered, it)
		case it.Err == nil:
			delivered++
		case !errors.Is(it.Err, ErrBehind):
			failed++
			err = it.Err
		}
	}
	for d, n := range decided {
		if n > 0 {
			r.observe(Event{Kind: EventDecided, Count: n, Decision: semel.Decision(d), Items: decidedAs(items, semel.Decision(d), n)})
		}
	}
	if delivered > 0 {
		r.observe(Event{Kind: EventDelivered, Count: delivered, Elapsed: elapsed})
	}
	if len(filtered) > 0 {
		r.observe(Event{Kind: EventFiltered, Count: len(filtered), Items: filtered})
	}
	if failed > 0 {
		r.observe(Event{Kind: EventDelivered, Count: failed, Elapsed: elapsed, Err: err})
	}
	if r.contents != nil {
		r.observeContents(items)
	}
}

// observeContents reports duplicates that differ in content from the message of their key.
func (r *Runner) observeContents(items []*Item) {
	differing := Event{Kind: EventDiffering}
	for _, it := range items {
		switch {
		case it.Decision == semel.Fresh && it.Err == nil:
			r.contents.Fresh(r.contents.Hash(it.Call.Key), it.Message.Body)
		case it.Decision == semel.Duplicate && r.contents.Differs(r.contents.Hash(it.Call.Key), it.Message.Body):
			differing.Count++
			differing.Item, differing.Items = it, append(differing.Items, it)
		}
	}
	if differing.Count > 0 {
		r.observe(differing)
	}
}
