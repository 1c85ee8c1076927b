package app

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/pipeline"
)

// trouble is what an error is about. It decides when the error is over.
type trouble uint8

const (
	// ofMessages: a message failed. Messages may fail again until one has its effect, or until
	// none is in progress.
	ofMessages trouble = iota
	// ofPause: a pause or a stall, until the event that ends it. A pipeline is ready while it
	// cannot park or acknowledge some messages.
	ofPause
	// ofStore: the store failed, until it answers.
	ofStore
	// ofSource: the source lost its connection, until a message is read.
	ofSource
	// ofParked: a message was parked, until no parked message waits.
	ofParked
	// ofDropped: a message was dropped. A loss is never over.
	ofDropped
)

// over returns an error that is over without its remedy, which is no longer needed.
func over(e *admin.LastError) *admin.LastError {
	return &admin.LastError{At: e.At, Event: e.Event, Cause: e.Plain, Over: true}
}

// counters count the events of one pipeline for people. The zero value is ready to use.
type counters struct {
	mu      sync.Mutex // guards the fields below
	counted admin.PipelineStatus
	expired int64 // of Dropped: they were parked before
	stalled bool
	paused  map[string]*admin.LastError // by reason, until work resumes
	next    time.Time                   // when the last call that failed is repeated
	last    trouble                     // of counted.LastError
	reason  string                      // of the pause that is counted.LastError
	lags    []pipeline.Lag
	noMore  bool  // the lag changes no more: the pipeline has ended
	bytes   int64 // of Read
	done    sample
	samples []sample
	rates   []float64 // of each rateOver seconds of the last hour
	ticks   int       // samples since the last rate
}

var _ pipeline.Observer = (*counters)(nil)

// Observe implements semel.Observer.
func (c *counters) Observe(e semel.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done.guarded(e)
	switch {
	case e.Kind == semel.EventStoreError:
		c.failed(ofStore, e.Kind.String(), e.Err)
	case e.Kind == semel.EventCompleted || e.Kind == semel.EventDecided && e.Decision != semel.Undecided:
		c.ends(ofStore)
	}
}

// ObservePipeline implements pipeline.Observer.
func (c *counters) ObservePipeline(e pipeline.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := int64(e.Count)
	switch e.Kind {
	case pipeline.EventRead:
		c.counted.Read += n
		c.bytes += e.Bytes
		c.ends(ofSource)
	case pipeline.EventDecided:
		if e.Decision == semel.Duplicate {
			c.counted.Duplicate += n
		}
		if e.Decision == semel.Superseded {
			c.counted.Superseded += n
		}
	case pipeline.EventDiffering:
		c.counted.Differ += n
	case pipeline.EventDelivered:
		if c.done.delivered(e); e.Err == nil {
			c.counted.Fresh += n
			if n > 0 { // a transaction may have delivered none
				c.ends(ofMessages)
			}
		}
	case pipeline.EventFiltered:
		c.counted.Filtered += n
		c.ends(ofMessages)
	case pipeline.EventSettled:
		c.counted.Settled += n
		c.counted.LastSettled = time.Now()
	case pipeline.EventParked:
		c.counted.Parked += n
		c.done.parked += n
	case pipeline.EventDropped:
		c.counted.Dropped += n
		if e.Reason == string(pipeline.ReasonExpired) {
			c.expired += n
		}
	case pipeline.EventPaused, pipeline.EventResumed:
		if c.next = (time.Time{}); e.Next > 0 {
			c.next = time.Now().Add(e.Next)
		}
		if e.Kind == pipeline.EventResumed {
			if delete(c.paused, e.Reason); c.reason == e.Reason {
				c.ends(ofPause)
			}
		}
	case pipeline.EventStalled, pipeline.EventMoves:
		c.stalled = e.Kind == pipeline.EventStalled
		c.counted.WaitingFor = e.Reason // "" when it moves
		if !c.stalled && c.reason == "" {
			c.ends(ofPause)
		}
	}
	if e.Err != nil || e.Kind == pipeline.EventPaused {
		what := e.Kind.String()
		switch {
		case e.Kind == pipeline.EventDelivered:
			what = "delivery"
		case e.Kind != pipeline.EventSourceChanged && e.Reason != "":
			what += ": " + e.Reason
		}
		c.failed(troubleOf(e.Kind), what, e.Err)
	}
	if e.Kind == pipeline.EventPaused {
		if c.paused == nil {
			c.paused = map[string]*admin.LastError{}
		}
		c.reason, c.paused[e.Reason] = e.Reason, c.counted.LastError
	}
}

// troubleOf returns which trouble the error of an event is about.
func troubleOf(k pipeline.EventKind) trouble {
	switch k {
	case pipeline.EventPaused, pipeline.EventStalled:
		return ofPause
	case pipeline.EventSourceChanged:
		return ofSource
	case pipeline.EventFailedOpen:
		return ofStore
	case pipeline.EventParked:
		return ofParked
	case pipeline.EventDropped:
		return ofDropped
	}
	return ofMessages
}

// ends notes that a trouble is over. It stays over when another one begins. The caller holds mu.
func (c *counters) ends(of trouble) {
	if e := c.counted.LastError; e != nil && c.last == of && !e.Over {
		c.counted.LastError = over(e)
	}
}

// failed notes an error. The caller holds mu.
func (c *counters) failed(of trouble, what string, err error) {
	c.last, c.reason = of, ""
	last := &admin.LastError{At: time.Now(), Event: what}
	said, ok := errors.AsType[*diagnose.Error](err)
	if ok {
		said = said.ForAll()
	}
	if said != nil {
		last.Cause, last.Plain = said.Error(), said.Cause
	} else if cause := diagnose.PublicCause(err); cause != nil {
		last.Cause, last.Plain = cause.Error(), cause.Error()
	}
	c.counted.LastError = last
}

// endsIfReady ends the trouble with the last error, if that is over because the pipeline was found
// ready after the error. A message that is parked or dropped is settled by that, and shows nothing.
func (c *counters) endsIfReady(last *admin.LastError, idle bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last == nil || last != c.counted.LastError {
		return
	}
	ended := false
	switch c.last {
	case ofPause:
		ended = c.paused[c.reason] == nil // the pipeline was closed, and is open again
	case ofStore, ofSource:
		ended = true
	case ofMessages:
		ended = idle
	case ofParked:
		of := &c.counted
		ended = of.Waiting != nil && *of.Waiting == 0 && of.WaitingMeasured.After(last.At)
	}
	if ended {
		c.ends(c.last)
	}
}

// lastError returns the last error.
func (c *counters) lastError() *admin.LastError {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted.LastError
}

// stops forgets what keeps the pipeline from working. It does not end the last trouble.
func (c *counters) stops() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.paused)
	c.stalled, c.next, c.counted.WaitingFor = false, time.Time{}, ""
}

// setWaiting notes how many parked messages there were when they were asked for.
func (c *counters) setWaiting(n int64, asked time.Time) {
	c.set(func(c *counters) { c.counted.Waiting, c.counted.WaitingMeasured = &n, asked })
}

// nextAttempt returns when the last call that failed is repeated.
func (c *counters) nextAttempt() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.next
}

// set changes the values that are asked for from time to time.
func (c *counters) set(change func(c *counters)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// over notes that the pipeline has ended. Its lag is 0 if the source has no more
// messages. Otherwise it is known if it was measured after the last message.
func (c *counters) over(noMore bool) {
	c.set(func(c *counters) {
		c.noMore = true
		switch {
		case noMore:
			c.lags, c.counted.LagMeasured = []pipeline.Lag{{Bytes: pipeline.UnknownLag}}, time.Time{}
		case c.counted.LastSettled.After(c.counted.LagMeasured):
			c.lags, c.counted.LagMeasured = nil, time.Time{}
		}
	})
}

// setLags sets the lag of each partition.
func (c *counters) setLags(lags []pipeline.Lag) {
	c.set(func(c *counters) {
		if !c.noMore {
			c.lags, c.counted.LagMeasured = slices.Clone(lags), time.Now()
		}
	})
}

// sample notes a sample for the rate.
func (c *counters) sample() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.samples) > rateOver {
		c.samples = append(c.samples[:0], c.samples[1:]...)
	}
	now := c.done
	now.at, now.settled = time.Now(), c.counted.Settled
	c.samples = append(c.samples, now)
	if c.ticks++; c.ticks > rateOver {
		c.ticks = 1
		if len(c.rates) == ratesKept {
			c.rates = append(c.rates[:0], c.rates[1:]...)
		}
		first := &c.samples[0]
		c.rates = append(c.rates, float64(now.settled-first.settled)/now.at.Sub(first.at).Seconds())
	}
}

// hour returns the rates of the last hour.
func (c *counters) hour() []float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.rates)
}

// status returns the counts and the state of a pipeline that runs with a number of workers. ahead:
// messages are read ahead.
func (c *counters) status(workers int, ahead bool) admin.PipelineStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.counted
	s.Held = s.Settled - (s.Fresh + s.Duplicate + s.Filtered + s.Superseded + s.Parked + s.Dropped - c.expired)
	s.State = admin.StateReady
	for reason, e := range c.paused {
		switch reason {
		case "sink", "source", "store": // the others hold up a part of the messages
			s.State = admin.StatePaused
		}
		if last := s.LastError; last == nil || last.Over || last.At.Before(e.At) { // it has hidden one that is not over
			s.LastError = e
		}
	}
	if c.stalled {
		s.State = admin.StateStalled
	}
	sum := func(of *int64, n int64) (total, value *int64) {
		if n < 0 {
			return of, nil
		}
		sum := n
		if of != nil {
			sum += *of
		}
		return &sum, &n
	}
	for _, lag := range c.lags {
		at := admin.PartitionLag{Source: lag.Source, Partition: lag.Partition, More: lag.More}
		s.LagMore = s.LagMore || lag.More
		s.Lag, at.Messages = sum(s.Lag, lag.Messages)
		s.LagBytes, at.Bytes = sum(s.LagBytes, lag.Bytes)
		s.Lags = append(s.Lags, at)
	}
	if n := len(c.samples); n > 1 {
		first, last := &c.samples[0], &c.samples[n-1]
		in, done := last.at.Sub(first.at), last.since(first)
		s.Rate, s.Work = float64(done.settled)/in.Seconds(), work(&done, in, workers, ahead)
		if s.State == admin.StateReady {
			s.Pace = pace(&s, c.bytes, &done, in, workers, ahead)
		}
	}
	return s
}

// attrs returns the counts for a line of the log.
func attrs(s *admin.PipelineStatus) []any {
	attrs := []any{
		slog.Int64("read", s.Read), slog.Int64("fresh", s.Fresh), slog.Int64("duplicate", s.Duplicate), slog.Int64("parked", s.Parked),
	}
	for _, of := range []slog.Attr{slog.Int64("retrying", int64(s.Retrying)), slog.Int64("read_ahead", int64(s.ReadAhead)), slog.Int64("differ", s.Differ), slog.Int64("filtered", s.Filtered), slog.Int64("superseded", s.Superseded), slog.Int64("held", s.Held), slog.Int64("dropped", s.Dropped)} {
		if of.Value.Int64() > 0 {
			attrs = append(attrs, of)
		}
	}
	switch {
	case s.Lag != nil:
		attrs = append(attrs, slog.Int64("lag", *s.Lag))
	case s.LagBytes != nil:
		attrs = append(attrs, slog.Int64("lag_bytes", *s.LagBytes))
	}
	return attrs
}

// status returns the present state of the pipeline, without asking a server.
func (s *state) status() admin.PipelineStatus {
	s.mu.Lock()
	p, waiting, ended, failure := s.pipeline, s.waiting, s.ended, s.failure
	s.mu.Unlock()
	workers, at := 0, pipeline.Progress{}
	of, opened := p.(*Pipeline)
	if opened {
		workers, at = of.Workers(), of.Progress()
	}
	now := s.counters.status(workers, at.Ahead > workers) // fewer may have come just now
	now.Name = s.name
	if now.Pace != nil && opened {
		now.Pace.MoreProcesses = of.file.Shareable(of.spec)
	}
	switch {
	case failure != nil:
		now.State = admin.StateFailed
	case ended:
		now.State = admin.StateEnded
	case p == nil && waiting != nil:
		now.State = admin.StateWaiting
	case p == nil:
		now.State = admin.StateOpening
	}
	if now.State != admin.StateReady && failure == nil && !ended {
		now.NextAttempt = s.nextAttempt()
	}
	if opened && !ended {
		now.InFlight, now.Retrying, now.NextRetry, now.ReadAhead = at.Working, at.Retrying, at.Next, at.Ahead
	}
	return now
}

// idle reports whether a pipeline is known to have no message in progress.
func (s *state) idle() bool {
	s.mu.Lock()
	p := s.pipeline
	s.mu.Unlock()
	of, ok := p.(*Pipeline)
	return ok && of.isIdle()
}

// nextAttempt returns when a pipeline or a service that cannot work tries again, or the zero
// time if that is not known.
func (s *state) nextAttempt() time.Time {
	s.mu.Lock()
	p, next := s.pipeline, s.next
	s.mu.Unlock()
	if p != nil {
		next = s.counters.nextAttempt()
		if of, ok := p.(*Pipeline); ok && of.NextAttempt().After(next) {
			next = of.NextAttempt()
		}
	}
	if next.Before(time.Now()) {
		return time.Time{}
	}
	return next
}

// pipelines returns what all pipelines do now.
func (d *daemon) pipelines() []admin.PipelineStatus {
	list := make([]admin.PipelineStatus, len(d.states))
	for i := range d.states {
		list[i] = d.states[i].status()
	}
	return list
}

// status asks pipelines and stores whether they are ready, as a probe does, and returns
// what they do now. It asks all concurrently, so that a part that does not answer takes no
// time from the others.
func (d *daemon) status(ctx context.Context) *admin.Status {
	now := &admin.Status{Started: d.started, Pipelines: make([]admin.PipelineStatus, len(d.states)), Stores: []admin.StoreStatus{}}
	var asking sync.WaitGroup
	for i := range now.Pipelines {
		asking.Go(func() { now.Pipelines[i] = d.pipelineStatus(ctx, &d.states[i]) })
	}
	if s := d.opts.Service; s != nil {
		now.Service = &admin.ServiceStatus{Name: s.Name, State: admin.StateReady}
		asking.Go(func() {
			answer := d.serving.Ask(ctx, &d.asking, d.readyService)
			if now.Service.Answered = answer.At; answer.Err != nil {
				now.Service.State, now.Service.Reason, now.Service.NextAttempt = admin.StateNotReady, d.why(answer.Err), d.service.nextAttempt()
			}
		})
	}
	stores := make([]*admin.StoreStatus, len(d.file.Stores))
	for i, s := range d.file.Stores {
		asking.Go(func() { stores[i] = d.storeStatus(ctx, s.Name) })
	}
	asking.Wait()
	for _, s := range stores {
		if s != nil {
			now.Stores = append(now.Stores, *s)
		}
	}
	now.Time = time.Now()
	return now
}

// pipelineStatus asks a pipeline whether it is ready, and returns its present status.
func (d *daemon) pipelineStatus(ctx context.Context, s *state) admin.PipelineStatus {
	opened, err := s.opened()
	answer := admin.Answer{Err: err}
	if opened != nil {
		answer = s.readiness.asked.Ask(ctx, &d.asking, s.look)
	} else {
		s.measure(ctx)
	}
	now := s.status()
	if now.State == admin.StateEnded {
		return now
	}
	if now.Answered = answer.At; answer.Err != nil {
		now.Reason = d.why(answer.Err)
		if now.State == admin.StateReady {
			now.State = admin.StateNotReady
		}
	}
	return now
}

// look measures a pipeline and returns why it is not ready. If it is, that may end its last trouble.
func (s *state) look(ctx context.Context) error {
	last := s.counters.lastError()
	var measuring sync.WaitGroup
	measuring.Go(func() { s.measure(ctx) })
	err := s.ready(ctx)
	measuring.Wait()
	if err == nil && s.status().State == admin.StateReady {
		s.counters.endsIfReady(last, s.idle())
	}
	return err
}

const (
	// statusFor limits how long a question for the status waits for measurements.
	// What was measured before is then shown, with its age.
	statusFor = time.Second
	// CountPause is how many times as long as a count took no request for the status
	// repeats it. One that took longer than statusFor is not repeated by requests.
	CountPause = 20
)

// measure counts the parked messages and measures the lag of a pipeline that runs.
func (s *state) measure(ctx context.Context) {
	s.mu.Lock()
	p, ended := s.pipeline, s.ended
	s.mu.Unlock()
	of, ok := p.(interface {
		Lag(ctx context.Context) ([]pipeline.Lag, error)
		Waiting(ctx context.Context) (int64, error)
	})
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusFor)
	defer cancel()
	var asking sync.WaitGroup
	asking.Go(func() {
		asked := time.Now()
		if n, err := of.Waiting(ctx); err == nil {
			s.counters.setWaiting(n, asked)
		}
	})
	if !ended {
		if lags, err := of.Lag(ctx); err == nil {
			s.counters.setLags(lags)
		}
	}
	asking.Wait()
}

// recount counts the keys of a store, unless that takes much of the time.
func (d *daemon) recount(ctx context.Context, name string, of tended) {
	counter, ok := semel.As[semel.Inspector](of.store)
	if !ok || of.took > statusFor || time.Since(of.measured) < CountPause*of.took {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, statusFor)
	defer cancel()
	d.counted(ctx, name, counter)
}

// counted counts the keys of a store and keeps the counts.
func (d *daemon) counted(ctx context.Context, name string, counter semel.Inspector) (took time.Duration, err error) {
	began := time.Now()
	counts, err := counter.Count(ctx)
	took = time.Since(began)
	d.tendingMu.Lock()
	defer d.tendingMu.Unlock()
	now := d.tended[name]
	if now.took = took; err == nil {
		d.metrics.Counted(name, counts)
		now.counts, now.measured = &counts, time.Now()
	}
	d.tended[name] = now
	return took, err
}

// storeStatus asks a store whether it is ready, and counts its keys during that time. It
// returns nil if the store is not open.
func (d *daemon) storeStatus(ctx context.Context, name string) *admin.StoreStatus {
	d.tendingMu.Lock()
	of, open := d.tended[name]
	d.tendingMu.Unlock()
	if !open || of.store == nil {
		return nil
	}
	answer := of.asked.Ask(ctx, &d.asking, func(ctx context.Context) (err error) {
		var counting sync.WaitGroup
		counting.Go(func() { d.recount(ctx, name, of) })
		if ready, ok := semel.As[doctor.Readier](of.store); ok {
			err = ready.Ready(ctx)
		}
		counting.Wait()
		return err
	})
	s := &admin.StoreStatus{Name: name, State: admin.StateReady, Answered: answer.At}
	if answer.Err != nil {
		s.State, s.Reason = admin.StateNotReady, d.why(d.ofStore(name, answer.Err))
	}
	d.tendingMu.Lock()
	of = d.tended[name]
	d.tendingMu.Unlock()
	if counts := of.counts; counts != nil {
		s.Counted(counts, of.measured)
	}
	s.CleanUp = of.cleanUp
	return s
}

// ofStore returns an error of a store for clients of probes, with cause and remedy where they
// are known.
func (d *daemon) ofStore(name string, err error) error {
	said, ok := errors.AsType[*diagnose.Error](d.file.AdviseStores(d.file.Stack(name), err))
	if !ok {
		return err
	}
	if all := said.ForAll(); all != nil {
		return all
	}
	return err
}

// progressEvery is how often the log says what a pipeline does.
const progressEvery = time.Minute

// count takes samples for the rate until ctx ends. Unless a person is shown the status,
// it also logs the progress.
func (d *daemon) count(ctx context.Context, s *state, log *slog.Logger) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	s.counters.sample()
	for logged := time.Now(); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		s.counters.sample()
		if d.opts.Show == nil && time.Since(logged) >= progressEvery {
			logged = time.Now()
			now := s.status()
			log.Info("progress", append([]any{"state", string(now.State), "rate", float64(int64(10*now.Rate)) / 10, "in_flight", now.InFlight}, attrs(&now)...)...)
		}
	}
}

// why returns the reason of a pipeline that is not ready, as probes show it.
func (d *daemon) why(err error) string {
	line, _, _ := strings.Cut(d.file.Redact(err.Error()), "\n")
	return line
}
