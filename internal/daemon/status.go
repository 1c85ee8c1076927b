package daemon

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/pipeline"
)

// Status is what a running program does now: the answer at StatusPath.
type Status struct {
	Time      time.Time        `json:"time"`
	Started   time.Time        `json:"started"`
	Pipelines []PipelineStatus `json:"pipelines"`
	Stores    []StoreStatus    `json:"stores"`
	// Service is what a process without pipelines serves, or nil.
	Service *ServiceStatus `json:"service,omitempty"`
}

// ServiceStatus is what is known of a service, such as a proxy.
type ServiceStatus struct {
	Name  string `json:"service"`
	State State  `json:"state"` // StateReady or StateNotReady
	// Reason says why the service is not ready.
	Reason string `json:"reason,omitempty"`
}

// StatusPath is the path of the status on the admin server.
const StatusPath = "/status"

// PipelineStatus is what a pipeline does now. A count that is not known is nil.
type PipelineStatus struct {
	Name  string `json:"pipeline"`
	State State  `json:"state"`
	// Reason says why the pipeline is not ready, without a part of a message.
	Reason string `json:"reason,omitempty"`
	// WaitingFor is what a stalled pipeline waited for when the log said so last.
	WaitingFor string `json:"waiting_for,omitempty"`
	// Rate is the number of messages that were settled per second in the last ten
	// seconds.
	Rate float64 `json:"rate"`
	// The counts below are of messages since the program started.
	Read      int64 `json:"read"`
	Settled   int64 `json:"settled"`
	Fresh     int64 `json:"fresh"`
	Duplicate int64 `json:"duplicate"`
	// Differ is the number of duplicates that are known to differ in content from the
	// message of their key that took effect.
	Differ   int64 `json:"differ,omitempty"`
	Filtered int64 `json:"filtered"`
	// Superseded messages did not take effect, because of another one of their key.
	Superseded int64 `json:"superseded"`
	Parked     int64 `json:"parked"`
	Dropped    int64 `json:"dropped"`
	// Held is the number of settled messages without any of these outcomes: key.keep holds
	// them. It is negative for outcomes of messages that were settled earlier, or are in
	// flight.
	Held int64 `json:"held,omitempty"`
	// InFlight messages were read and are not settled.
	InFlight int `json:"in_flight"`
	// Waiting is the number of parked messages that wait for an operator.
	Waiting *int64 `json:"parked_waiting,omitempty"`
	// Lag and LagBytes are the sums of Lags.
	Lag      *int64         `json:"lag,omitempty"`
	LagBytes *int64         `json:"lag_bytes,omitempty"`
	Lags     []PartitionLag `json:"partitions,omitempty"`
	// LagMeasured is when the lag was measured: at the request, unless the source
	// did not answer in time. It is zero if the lag is known without a measurement.
	LagMeasured time.Time `json:"lag_measured,omitzero"`
	// LastSettled is zero if nothing was settled yet, and LastError nil without an
	// error.
	LastSettled time.Time  `json:"last_settled,omitzero"`
	LastError   *LastError `json:"last_error,omitempty"`
}

// State is the state of a pipeline in one word.
type State string

// These are the states of a pipeline.
const (
	StateOpening  State = "opening"
	StateWaiting  State = "waiting" // for a server, before it can start
	StateReady    State = "ready"
	StatePaused   State = "paused"
	StateStalled  State = "stalled"
	StateNotReady State = "not ready"
	StateEnded    State = "ended"
	StateFailed   State = "failed" // it ended with an error, and does not start again
)

// PartitionLag is the lag of one partition. A count that is not known is nil.
type PartitionLag struct {
	Source    string `json:"source,omitempty"`
	Partition int32  `json:"partition"`
	Messages  *int64 `json:"messages,omitempty"`
	Bytes     *int64 `json:"bytes,omitempty"`
}

// LastError says what failed last. Its text has no part of a message.
type LastError struct {
	At    time.Time `json:"at"`
	Event string    `json:"event"`
	// Cause has the remedy too, unless the error is over.
	Cause string `json:"cause,omitempty"`
	Over  bool   `json:"over,omitempty"`

	plain string // the cause without the remedy
}

// over returns an error that is over without its remedy: nobody needs that any more.
func (e *LastError) over() *LastError {
	return &LastError{At: e.At, Event: e.Event, Cause: e.plain, Over: true}
}

// isOver reports whether the last error of a pipeline that is ready is history. A pause
// or a stall ended, or the pipeline would not be ready. A message that failed may fail
// again until a message is settled.
func (s *PipelineStatus) isOver() bool {
	e := s.LastError
	if e == nil || s.State != StateReady || s.Reason != "" {
		return false
	}
	what, _, _ := strings.Cut(e.Event, ":")
	switch what {
	case pipeline.EventPaused.String(), pipeline.EventStalled.String(), pipeline.EventSourceChanged.String(), semel.EventStoreError.String():
		return true
	}
	return s.LastSettled.After(e.At)
}

// StoreStatus is what is known of a store that a pipeline uses. The counts are nil until
// it was measured.
type StoreStatus struct {
	Name  string `json:"store"`
	State State  `json:"state"` // StateReady or StateNotReady
	// Reason says why the store is not ready.
	Reason   string    `json:"reason,omitempty"`
	Done     *int64    `json:"done,omitempty"`
	Claimed  *int64    `json:"claimed,omitempty"`
	Unknown  *int64    `json:"unknown,omitempty"`
	Measured time.Time `json:"measured,omitzero"`
}

// counters count the events of one pipeline for people. The zero value is ready to use.
type counters struct {
	mu      sync.Mutex // guards the fields below
	counted PipelineStatus
	expired int64 // of Dropped: they were parked before
	stalled bool
	paused  map[string]bool // by reason
	lags    []pipeline.Lag
	noMore  bool // the lag changes no more: the pipeline has ended
	samples []sample
}

// sample is how many messages were settled at a time.
type sample struct {
	at      time.Time
	settled int64
}

// rateOver is the number of samples, one a second, over which a rate is computed.
const rateOver = 10

var _ pipeline.Observer = (*counters)(nil)

// Observe implements semel.Observer.
func (c *counters) Observe(e semel.Event) {
	if e.Kind == semel.EventStoreError {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.failed(e.Kind.String(), e.Err)
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
		if e.Err == nil {
			c.counted.Fresh += n
		}
	case pipeline.EventFiltered:
		c.counted.Filtered += n
	case pipeline.EventSettled:
		c.counted.Settled += n
		c.counted.LastSettled = time.Now()
	case pipeline.EventParked:
		c.counted.Parked += n
	case pipeline.EventDropped:
		c.counted.Dropped += n
		if e.Reason == string(pipeline.ReasonExpired) {
			c.expired += n
		}
	case pipeline.EventPaused, pipeline.EventResumed:
		if c.paused == nil {
			c.paused = map[string]bool{}
		}
		switch e.Reason {
		case "sink", "source", "store": // the others have no end
			c.paused[e.Reason] = e.Kind == pipeline.EventPaused
		}
	case pipeline.EventStalled, pipeline.EventMoves:
		c.stalled = e.Kind == pipeline.EventStalled
		c.counted.WaitingFor = e.Reason // "" when it moves
	}
	if e.Err != nil {
		what := e.Kind.String()
		switch {
		case e.Kind == pipeline.EventDelivered:
			what = "delivery"
		case e.Kind != pipeline.EventSourceChanged && e.Reason != "":
			what += ": " + e.Reason
		}
		c.failed(what, e.Err)
	}
}

// failed notes an error. The caller holds mu.
func (c *counters) failed(what string, err error) {
	last := &LastError{At: time.Now(), Event: what}
	said, ok := errors.AsType[*diagnose.Error](err)
	if ok {
		said = said.ForAll()
	}
	if said != nil {
		last.Cause, last.plain = said.Error(), said.Cause
	} else if cause := diagnose.PublicCause(err); cause != nil {
		last.Cause, last.plain = cause.Error(), cause.Error()
	}
	c.counted.LastError = last
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
	c.samples = append(c.samples, sample{time.Now(), c.counted.Settled})
}

// status returns the counts and the state of a pipeline that runs.
func (c *counters) status() PipelineStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.counted
	s.Held = s.Settled - (s.Fresh + s.Duplicate + s.Filtered + s.Superseded + s.Parked + s.Dropped - c.expired)
	s.State = StateReady
	for _, is := range c.paused {
		if is {
			s.State = StatePaused
		}
	}
	if c.stalled {
		s.State = StateStalled
	}
	if n := len(c.samples); n > 1 {
		first, last := c.samples[0], c.samples[n-1]
		s.Rate = float64(last.settled-first.settled) / last.at.Sub(first.at).Seconds()
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
		at := PartitionLag{Source: lag.Source, Partition: lag.Partition}
		s.Lag, at.Messages = sum(s.Lag, lag.Messages)
		s.LagBytes, at.Bytes = sum(s.LagBytes, lag.Bytes)
		s.Lags = append(s.Lags, at)
	}
	return s
}

// attrs returns the counts for a line of the log.
func (s *PipelineStatus) attrs() []any {
	attrs := []any{
		slog.Int64("read", s.Read), slog.Int64("fresh", s.Fresh), slog.Int64("duplicate", s.Duplicate), slog.Int64("parked", s.Parked),
	}
	for _, of := range []slog.Attr{slog.Int64("differ", s.Differ), slog.Int64("filtered", s.Filtered), slog.Int64("superseded", s.Superseded), slog.Int64("held", s.Held), slog.Int64("dropped", s.Dropped)} {
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
func (s *state) status() PipelineStatus {
	s.mu.Lock()
	p, waiting, ended, failure := s.pipeline, s.waiting, s.ended, s.failure
	s.mu.Unlock()
	now := s.counters.status()
	now.Name = s.name
	switch {
	case failure != nil:
		now.State = StateFailed
	case ended:
		now.State = StateEnded
	case p == nil && waiting != nil:
		now.State = StateWaiting
	case p == nil:
		now.State = StateOpening
	}
	if p, ok := p.(interface{ UnderWay() (int, int64) }); ok && !ended {
		now.InFlight, _ = p.UnderWay() // the bytes are not shown
	}
	return now
}

// pipelines returns what all pipelines do now.
func (d *daemon) pipelines() []PipelineStatus {
	list := make([]PipelineStatus, len(d.states))
	for i := range d.states {
		list[i] = d.states[i].status()
	}
	return list
}

// status asks pipelines and stores whether they are ready, as a probe does, and returns
// what they do now.
func (d *daemon) status(ctx context.Context) *Status {
	now := &Status{Started: d.started, Pipelines: make([]PipelineStatus, len(d.states)), Stores: []StoreStatus{}}
	var asking sync.WaitGroup
	for i := range now.Pipelines {
		asking.Go(func() {
			s := &d.states[i]
			s.measure(ctx)
			now.Pipelines[i] = s.status()
			p := &now.Pipelines[i]
			if err := s.ready(ctx); err != nil && p.State != StateEnded {
				p.Reason = d.why(err)
				if p.State == StateReady {
					p.State = StateNotReady
				}
			}
			if p.isOver() {
				p.LastError = p.LastError.over()
			}
		})
	}
	asking.Wait()
	if s := d.opts.Service; s != nil {
		now.Service = &ServiceStatus{Name: s.Name, State: StateReady}
		if err := d.readyService(ctx); err != nil {
			now.Service.State, now.Service.Reason = StateNotReady, d.why(err)
		}
	}
	for _, s := range d.file.Stores {
		d.tendingMu.Lock()
		of, open := d.tended[s.Name]
		d.tendingMu.Unlock()
		if open && of.store != nil {
			d.recount(ctx, s.Name, of)
			d.tendingMu.Lock()
			of = d.tended[s.Name]
			d.tendingMu.Unlock()
			now.Stores = append(now.Stores, of.status(ctx, d, s.Name))
		}
	}
	now.Time = time.Now()
	return now
}

const (
	// statusFor limits how long a request for the status waits for measurements.
	// What was measured before is then shown, with its age.
	statusFor = time.Second
	// quickCount is the longest count that a request for the status repeats: a store
	// that needs longer is measured less often.
	quickCount = 200 * time.Millisecond
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
		if n, err := of.Waiting(ctx); err == nil {
			s.counters.set(func(c *counters) { c.counted.Waiting = &n })
		}
	})
	if !ended {
		if lags, err := of.Lag(ctx); err == nil {
			s.counters.setLags(lags)
		}
	}
	asking.Wait()
}

// recount counts the keys of a store if that is quick.
func (d *daemon) recount(ctx context.Context, name string, of tended) {
	counter, ok := semel.As[semel.Inspector](of.store)
	if !ok || of.took > quickCount {
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

// status asks a store whether it is ready.
func (t *tended) status(ctx context.Context, d *daemon, name string) StoreStatus {
	s := StoreStatus{Name: name, State: StateReady}
	if ready, ok := semel.As[semel.Readier](t.store); ok {
		if err := ready.Ready(ctx); err != nil {
			s.State, s.Reason = StateNotReady, d.why(err)
		}
	}
	if counts := t.counts; counts != nil {
		s.Done, s.Claimed, s.Unknown, s.Measured = &counts.Done, &counts.Claimed, &counts.Unknown, t.measured
	}
	return s
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
			log.Info("progress", append([]any{"state", string(now.State), "rate", float64(int64(10*now.Rate)) / 10, "in_flight", now.InFlight}, now.attrs()...)...)
		}
	}
}

// why returns the reason of a pipeline that is not ready, as probes show it.
func (d *daemon) why(err error) string {
	line, _, _ := strings.Cut(d.file.Redact(err.Error()), "\n")
	return line
}
