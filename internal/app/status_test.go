package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/pipeline"
)

// runFor runs a pipeline from file to file for a while, and returns its log. The store
// has no directory: time in a bubble stands still while a socket waits for connections.
func runFor(t *testing.T, d time.Duration, opts RunOptions) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"in.jsonl": "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n{}\n",
		"c.yaml": fmt.Sprintf(`
stores: { keys: { memory: {} } }
pipelines:
  copy: { source: { file: { paths: [%[1]s/in.jsonl], follow: true } }, key: { id: .id }, store: keys, sink: { file: { path: %[1]s/out.jsonl } }, parked: { path: %[1]s/parked } }
`, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file, err := kind.All().Read(filepath.Join(dir, "c.yaml"), func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	lines := &shown{}
	opts.Log, opts.Admin = slog.New(slog.NewTextHandler(lines, nil)), admin.Off
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if err := Run(ctx, file, &opts); err != nil {
		t.Error(err)
	}
	return lines.String()
}

func TestTheLogHasALineOfProgressEachMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := runFor(t, 150*time.Second, RunOptions{})
		const line = "level=INFO msg=progress pipeline=copy state=ready rate=0 in_flight=0 read=4 fresh=2 duplicate=1 parked=1 lag_bytes=0\n"
		if n := strings.Count(log, line); n != 2 {
			t.Errorf("%d lines of progress in 150 s, want 2: %s", n, log)
		}
		if !strings.Contains(log, "level=INFO msg=ended pipeline=copy read=4 fresh=2 duplicate=1 parked=1 lag_bytes=0\n") {
			t.Errorf("%s", log)
		}
	})
}

func TestTheStatusOfPipelinesIsShownOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shown := make(chan []admin.PipelineStatus, 1)
		log := runFor(t, 150*time.Second, RunOptions{Show: func(pipelines func() []admin.PipelineStatus) func() {
			timer := time.AfterFunc(90*time.Second, func() { shown <- pipelines() })
			return func() { timer.Stop() }
		}})
		if strings.Contains(log, "progress") {
			t.Errorf("the log has it too: %s", log)
		}
		seen := <-shown
		if len(seen) != 1 || seen[0].Name != "copy" || seen[0].State != admin.StateReady || seen[0].Settled != 4 || seen[0].LagBytes == nil || *seen[0].LagBytes != 0 || seen[0].Lag != nil {
			t.Errorf("%+v", seen)
		}
	})
}

// working is a pipeline that is ready.
type working struct{ config.Runnable }

func (working) Ready(context.Context) error                 { return nil }
func (working) Lag(context.Context) ([]pipeline.Lag, error) { return nil, errors.ErrUnsupported }
func (working) Waiting(context.Context) (int64, error)      { return 0, errors.ErrUnsupported }

// idling is a pipeline that is ready, and has so many messages in progress.
type idling struct {
	working
	messages int
}

func (i idling) Progress() pipeline.Progress { return pipeline.Progress{Retrying: i.messages} }
func (i idling) NextAttempt() time.Time      { return time.Time{} }
func (i idling) Workers() int                { return 1 }
func (i idling) UnderWay() (int, int64)      { return i.messages, 0 }

// TestAnErrorIsOverWhenNoMessageIsLeft has a message that failed, and that another process takes over.
func TestAnErrorIsOverWhenNoMessageIsLeft(t *testing.T) {
	t.Parallel()
	for _, messages := range []int{0, 1} {
		file := &config.File{}
		d := &daemon{file: file, states: make([]state, 1)}
		s := &d.states[0]
		s.readiness, s.pipeline = newReadiness(file, &config.Pipeline{}), &Pipeline{Runnable: idling{messages: messages}, file: file, spec: &config.Pipeline{}}
		s.counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventRetried, Err: errors.New("refused"), Count: 1})
		if got := d.status(t.Context()).Pipelines[0].LastError; got == nil || got.Over != (messages == 0) {
			t.Errorf("with %d messages in progress, the last error is %+v", messages, got)
		}
	}
}

// Nobody needs the remedy of an error that is over. A message that failed may fail again
// until one is settled.
func TestTheStatusSaysWhetherTheLastErrorIsOver(t *testing.T) {
	t.Parallel()
	down := &diagnose.Error{Cause: "the server refuses the password", Remedy: "correct password", Public: true, Err: errors.New("of key 17")}
	event := func(kind pipeline.EventKind, reason string, err error) func(*counters) {
		return func(c *counters) { c.ObservePipeline(pipeline.Event{Kind: kind, Reason: reason, Err: err, Count: 1}) }
	}
	paused, resumed := event(pipeline.EventPaused, "sink", down), event(pipeline.EventResumed, "sink", nil)
	settled := event(pipeline.EventSettled, "", nil)
	delivered, retried := event(pipeline.EventDelivered, "", nil), event(pipeline.EventRetried, "", down)
	parked, dropped := event(pipeline.EventParked, "permanent", down), event(pipeline.EventDropped, "late", down)
	moves := event(pipeline.EventMoves, "", nil)
	waiting := func(n int64) func(*counters) { return func(c *counters) { c.setWaiting(n, time.Now()) } }
	countedBefore := func(c *counters) { c.setWaiting(0, time.Now().Add(-time.Minute)) }
	full, room := event(pipeline.EventPaused, "parking", down), event(pipeline.EventResumed, "parking", nil)
	deaf, heard := event(pipeline.EventPaused, "acknowledging", down), event(pipeline.EventResumed, "acknowledging", nil)
	claimed := func(c *counters) { c.Observe(semel.Event{Kind: semel.EventDecided, Decision: semel.Fresh}) }
	store := func(c *counters) { c.Observe(semel.Event{Kind: semel.EventStoreError, Err: down}) }
	for name, test := range map[string]struct {
		events []func(*counters)
		waits  bool // for a server
		over   bool
	}{
		"paused":                          {[]func(*counters){paused}, false, false},
		"paused and settled":              {[]func(*counters){paused, settled}, false, false},
		"resumed":                         {[]func(*counters){paused, resumed}, false, true},
		"resumed, and paused again":       {[]func(*counters){paused, resumed, paused}, false, false},
		"stalled":                         {[]func(*counters){event(pipeline.EventStalled, "sink", down)}, false, false},
		"moves":                           {[]func(*counters){event(pipeline.EventStalled, "sink", down), event(pipeline.EventMoves, "", nil)}, false, true},
		"a source that changed":           {[]func(*counters){event(pipeline.EventSourceChanged, "", down)}, false, true},
		"a store that failed":             {[]func(*counters){store}, false, true},
		"a store that fails, and waits":   {[]func(*counters){store}, true, false},
		"a store that answers, and waits": {[]func(*counters){store, claimed}, true, true},
		"a message that failed":           {[]func(*counters){retried}, false, false},
		"delivered, then one failed":      {[]func(*counters){delivered, settled, retried}, false, false},
		"delivered since a failure":       {[]func(*counters){retried, delivered, settled}, false, true},
		"filtered since a failure":        {[]func(*counters){retried, event(pipeline.EventFiltered, "", nil), settled}, false, true},
		"parked, which settles it":        {[]func(*counters){parked, settled, waiting(1)}, false, false},
		"parked, and another delivered":   {[]func(*counters){parked, settled, delivered, settled, waiting(1)}, false, false},
		"parked, and settled by a person": {[]func(*counters){parked, settled, waiting(0)}, false, true},
		"dropped":                         {[]func(*counters){dropped, settled, delivered, settled, waiting(0)}, false, false},
		"resumed, then another trouble":   {[]func(*counters){paused, resumed}, true, true},
		"moves, then another trouble":     {[]func(*counters){paused, event(pipeline.EventStalled, "sink", down), resumed, moves}, true, true},
		"another pause is over":           {[]func(*counters){paused, event(pipeline.EventResumed, "store", nil)}, true, false},
		"parked, and counted before":      {[]func(*counters){parked, countedBefore}, false, false},
		"no place for a parked message":   {[]func(*counters){full}, false, false},
		"a place again":                   {[]func(*counters){full, room}, false, true},
		"a source that takes no answer":   {[]func(*counters){deaf, delivered, settled}, false, false},
		"a source that takes it again":    {[]func(*counters){deaf, heard}, false, true},
		"a state without its copy":        {[]func(*counters){event(pipeline.EventPaused, "state directory", down), delivered, settled}, false, false},
		"no place, hidden by another":     {[]func(*counters){full, retried, delivered, settled}, false, false},
		"no place, and another is over":   {[]func(*counters){full, paused, resumed}, false, false},
		"two of them, both over":          {[]func(*counters){full, deaf, heard, room}, false, true},
		"opened again":                    {[]func(*counters){paused, (*counters).stops}, false, true},
		"ended with a full disk":          {[]func(*counters){full, (*counters).stops}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				file := &config.File{}
				d := &daemon{file: file, states: make([]state, 1)}
				s := &d.states[0]
				s.readiness, s.pipeline = newReadiness(file, &config.Pipeline{}), working{}
				if test.waits {
					s.pipeline, s.waiting = nil, down
				}
				for _, happens := range test.events {
					happens(&s.counters)
					time.Sleep(time.Second)
				}
				got := d.status(t.Context()).Pipelines[0].LastError
				want := "the server refuses the password: correct password"
				if test.over {
					want = "the server refuses the password"
				}
				if got == nil || got.Over != test.over || got.Cause != want {
					t.Errorf("the last error is %+v, want over %t and the cause %q", got, test.over, want)
				}
			})
		})
	}
}

// silent is a part that is asked whether it is ready and does not answer.
type silent struct{ working }

func (silent) Ready(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// healthy is a part that needs a second for its answer, and all of its store's.
type healthy struct {
	working
	semel.Store
}

func (healthy) Ready(ctx context.Context) error {
	select {
	case <-time.After(time.Second):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestAPartThatDoesNotAnswerTakesNoTimeFromOthers has a pipeline with a frozen server before healthy ones.
func TestAPartThatDoesNotAnswerTakesNoTimeFromOthers(t *testing.T) {
	t.Parallel()
	file := parse(t, `stores: { one: { memory: {} }, two: { memory: {} } }
pipelines: { copy: { source: { file: { paths: [in] } }, key: { id: .id }, store: one, sink: { file: { path: out } } } }`)
	synctest.Test(t, func(t *testing.T) {
		d := &daemon{file: file, states: make([]state, 3), tended: map[string]tended{"one": {store: healthy{}}, "two": {store: healthy{}}}}
		d.opts.Service = &Service{Name: "proxy", Ready: healthy{}.Ready}
		for i, p := range []config.Runnable{silent{}, healthy{}, healthy{}} {
			s := &d.states[i]
			s.name, s.readiness, s.pipeline = fmt.Sprint("p", i), newReadiness(file, file.Pipelines[0]), p
		}
		defer d.asking.Close()
		for name, of := range d.tended {
			of.asked = &admin.Inquiry{}
			d.tended[name] = of
		}
		const limit = 5 * time.Second
		ask := func(what string, takes time.Duration, ask func(ctx context.Context)) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			if ask(ctx); time.Since(began) != takes {
				t.Errorf("the %s took %v", what, time.Since(began))
			}
		}
		look := func(ctx context.Context) {
			now := d.status(ctx)
			for i, p := range now.Pipelines {
				if well := p.State == admin.StateReady; well == (i == 0) {
					t.Errorf("%s is %s: %s", p.Name, p.State, p.Reason)
				}
			}
			if len(now.Stores) != 2 || now.Stores[0].State != admin.StateReady || now.Stores[1].State != admin.StateReady || now.Service.State != admin.StateReady {
				t.Errorf("the stores are %+v, the service is %+v", now.Stores, now.Service)
			}
		}
		ask("status", 2*time.Second, look)
		ask("second status", time.Second, look) // of the healthy parts, which are asked again
		ask("probe", limit, func(ctx context.Context) {
			for i, part := range d.ready(ctx) {
				if well := part.Why == ""; well == (i == 0) || part.Name != []string{"p0", "p1", "p2", "proxy"}[i] {
					t.Errorf("%s: %q", part.Name, part.Why)
				}
			}
		})
	})
}

func TestStateAndRateFollowTheEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := &counters{}
		for range 100 {
			c.sample()
			c.ObservePipeline(pipeline.Event{Kind: pipeline.EventSettled, Count: 40})
			time.Sleep(time.Second)
		}
		check := func(state admin.State, event, cause string) {
			t.Helper()
			s := c.status(1, false)
			if s.State != state || s.LastError == nil || s.LastError.Event != event || s.LastError.Cause != cause {
				t.Errorf("%s %+v, want %s %q %q", s.State, s.LastError, state, event, cause)
			}
		}
		if s := c.status(1, false); s.Rate != 40 || s.Settled != 4000 || s.State != admin.StateReady || s.LastError != nil {
			t.Errorf("%+v", s)
		}
		c.ObservePipeline(pipeline.Event{Kind: pipeline.EventPaused, Reason: "sink", Err: fmt.Errorf("of key 17: %w", semel.ErrStoreFull)})
		check(admin.StatePaused, "paused: sink", "store is full")
		c.ObservePipeline(pipeline.Event{Kind: pipeline.EventStalled, Elapsed: time.Minute, Reason: "the sink", Err: errors.New("key 17")})
		check(admin.StateStalled, "stalled: the sink", "")
		if s := c.status(1, false); s.WaitingFor != "the sink" {
			t.Errorf("stalled, waiting for %q", s.WaitingFor)
		}
		c.ObservePipeline(pipeline.Event{Kind: pipeline.EventResumed, Reason: "sink"})
		c.ObservePipeline(pipeline.Event{Kind: pipeline.EventMoves})
		check(admin.StateReady, "stalled: the sink", "")
		if s := c.status(1, false); s.WaitingFor != "" {
			t.Errorf("it moves, waiting for %q", s.WaitingFor)
		}
		c.Observe(semel.Event{Kind: semel.EventStoreError, Err: semel.ErrStoreUnavailable})
		check(admin.StateReady, "store_error", "unavailable")
	})
}

// TestTheStatusHasTheLastCleanUp lets clean-ups of a store end, the last one early.
func TestTheStatusHasTheLastCleanUp(t *testing.T) {
	t.Parallel()
	file := parse(t, `stores: { one: { memory: {} } }
pipelines: { copy: { source: { file: { paths: [in] } }, key: { id: .id }, store: one, sink: { file: { path: out } } } }`)
	metrics, err := newMetrics()
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{file: file, metrics: metrics, log: slog.New(slog.DiscardHandler), tended: map[string]tended{"one": {store: struct{ semel.Store }{}, asked: &admin.Inquiry{}}}}
	defer d.asking.Close()
	check := func(what string, keys int64, why string, ended bool) {
		t.Helper()
		c := d.storeStatus(t.Context(), "one").CleanUp
		if c == nil || c.Keys != keys || c.Error != why || c.At.IsZero() == ended {
			t.Errorf("%s: %+v", what, c)
		}
	}
	d.clean(t.Context(), "one", func(_ context.Context, pass func(int64, error)) error {
		check("before", 0, "", false)
		pass(12, nil)
		check("the first", 12, "", true)
		pass(3, fmt.Errorf("key 17: %w", semel.ErrStoreFull))
		check("the second", 3, "it ended early: store is full: the log has the error", true)
		return nil
	})
}

// paused is a pipeline that tries again at a time.
type paused struct {
	working
	next time.Time
}

func (p paused) NextAttempt() time.Time { return p.next }

func TestTheNextAttemptHasATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		file := &config.File{}
		d := &daemon{file: file, states: make([]state, 1)}
		s := &d.states[0]
		s.readiness = newReadiness(file, &config.Pipeline{})
		opened := &Pipeline{file: file}
		began := time.Now()
		check := func(what string, want time.Duration) {
			t.Helper()
			got := d.status(t.Context()).Pipelines[0].NextAttempt
			if got.IsZero() != (want == 0) || want != 0 && got.Sub(began) != want {
				t.Errorf("%s: the next attempt is %v after the start, want %v", what, got.Sub(began), want)
			}
		}
		s.waiting, s.next = errors.New("no server"), began.Add(12*time.Second)
		check("a pipeline that waits for a server", 12*time.Second)
		time.Sleep(13 * time.Second)
		check("an attempt that takes long", 0)
		s.counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventPaused, Reason: "sink", Err: errors.New("down")})
		opened.Runnable = paused{next: began.Add(20 * time.Second)}
		s.pipeline = opened
		check("a pause of the sink", 20*time.Second)
		opened.Runnable = paused{}
		s.counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventPaused, Reason: "parking", Err: errors.New("full"), Next: 4 * time.Second})
		check("a message that cannot be parked", 17*time.Second)
		s.counters.ObservePipeline(pipeline.Event{Kind: pipeline.EventResumed, Reason: "sink"})
		check("a pause that is over", 0)
		if state := d.status(t.Context()).Pipelines[0].State; state != admin.StateReady {
			t.Errorf("%s", state)
		}
	})
}
