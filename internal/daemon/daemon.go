package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/health"
	"github.com/semel-dev/semel/internal/kind/embedded"
	"github.com/semel-dev/semel/internal/wiring"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/pipeline"
)

// Options are the options of Run. Log is required.
type Options struct {
	// Pipelines are the pipelines to run. Defaults to all.
	Pipelines []*config.Pipeline
	// Service is served instead of pipelines. Defaults to none.
	Service *Service
	// Log receives the log records. Their secrets are already hidden.
	Log *slog.Logger
	// Admin is the address of the admin server; "off" disables it. Defaults to the
	// configuration's address.
	Admin string
	// Stdout is where stdout sinks write. Defaults to none. If a write fails with
	// syscall.EPIPE, the pipeline ends, because the reader does not come back.
	Stdout io.Writer
	// InsecureNoAuth allows an admin address without auth that other machines can
	// reach.
	InsecureNoAuth bool
	// Show shows a person what pipelines, which it may call at any time, returns, until
	// stop is called. Defaults to a line in the log each minute.
	Show func(pipelines func() []PipelineStatus) (stop func())
	// Env looks up the variables by which systemd says where it listens. Defaults to
	// none, and systemd gets no messages.
	Env func(name string) string
}

// DefaultAdmin is the default address of the admin server. If another program
// already listens there, there is no admin server.
const DefaultAdmin = "127.0.0.1:4195"

// Run runs pipelines, or the service of its options, until all sources have ended or
// ctx ends, and then drains.
// It first logs the warnings of lint. If one pipeline fails, the others drain
// too. If a server does not answer at the start, Run retries.
func Run(ctx context.Context, f *config.File, opts *Options) error {
	d := &daemon{file: f, log: opts.Log, opts: *opts, started: time.Now(), journal: newJournal()}
	metrics, err := newMetrics()
	if err != nil {
		return err
	}
	d.metrics, d.tended = metrics, map[string]tended{}
	if d.lines, err = observe.NewLog(opts.Log, &observe.LogOptions{Redact: f.Redact}); err != nil {
		return err
	}
	defer d.lines.Close()
	specs := opts.Pipelines
	if specs == nil && opts.Service == nil {
		specs = f.Pipelines
	}
	admin, err := d.listenAdmin()
	if err != nil {
		return err
	}
	d.lint(specs)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	d.stores = wiring.NewStores(f, &wiring.Options{OnLayer: d.layer, OnDirectory: d.listenInStore})
	errs := make([]error, len(specs))
	d.states = make([]state, len(specs))
	var running, serving sync.WaitGroup
	if admin != nil {
		server := d.adminServer()
		serving.Go(func() {
			if err := server.Serve(admin); !errors.Is(err, http.ErrServerClosed) {
				d.log.Error("the admin server ended", "error", err)
			}
		})
		defer serving.Wait()
		defer func() { _ = server.Close() }() // probes need no graceful shutdown
	}
	for i, p := range specs {
		d.states[i].name, d.states[i].trouble = p.Name, newTrouble(f, p)
	}
	if opts.Show != nil {
		defer opts.Show(d.pipelines)()
	}
	opening := len(specs)
	if opts.Service != nil {
		opening++
	}
	d.notifier = newNotifier(opts.Env, opening)
	defer d.notifier.start(ctx, func() { d.pipelines() })() // takes the locks of all pipelines
	var served error
	if opts.Service != nil {
		running.Go(func() {
			served = d.serve(ctx)
			cancel()
		})
	}
	for i, p := range specs {
		running.Go(func() {
			errs[i] = d.run(ctx, p, &d.states[i])
			if errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	cancel()
	d.tending.Wait()
	return errors.Join(append(errs, served, d.stores.Close())...)
}

type daemon struct {
	file    *config.File
	opts    Options
	log     *slog.Logger
	stores  *wiring.Stores
	metrics *metrics
	lines   *observe.Log // events of stacks
	states  []state
	service state // of opts.Service, while its store opens
	started time.Time
	journal *journal

	notifier *notifier

	tending   sync.WaitGroup // goroutines that tend started
	tendingMu sync.Mutex     // guards tended
	tended    map[string]tended
}

// tended is a store that is measured and cleaned up.
type tended struct {
	store    semel.Store   // nil until it is open
	counts   *semel.Counts // nil until it was measured
	measured time.Time
	took     time.Duration // of the last count
}

// state is the state of one pipeline.
type state struct {
	name    string
	tally   tally
	trouble *trouble

	mu       sync.Mutex
	pipeline config.Runnable // nil until it is open
	waiting  error           // the reason why it is not open yet
	ended    bool
}

func (s *state) set(change func(s *state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// ready returns nil if the pipeline can work, and otherwise the reason why not.
func (s *state) ready(ctx context.Context) error {
	s.mu.Lock()
	p, waiting, ended := s.pipeline, s.waiting, s.ended
	s.mu.Unlock()
	switch {
	case ended:
		return errors.New("ended")
	case p != nil:
		return s.trouble.answer(ctx, p)
	case waiting != nil:
		return waiting
	}
	return errors.New("opening")
}

// lint logs what weakens the promise of the pipelines to run, as semel lint does.
// One example is a window shorter than the time in which messages can be
// delivered again.
func (d *daemon) lint(specs []*config.Pipeline) {
	for _, x := range d.file.Lint() {
		runs := x.Pipeline == "" || slices.ContainsFunc(specs, func(p *config.Pipeline) bool { return p.Name == x.Pipeline })
		if x.Severity >= semel.Warning && runs {
			d.log.Warn("lint", "field", x.Subject, "found", x.Found, "cost", x.Cost, "remedy", x.Remedy)
		}
	}
}

// run opens and runs one pipeline.
func (d *daemon) run(ctx context.Context, spec *config.Pipeline, s *state) error {
	log := d.log.With("pipeline", spec.Name)
	observer, finish, err := d.observer(spec, s, log)
	if err != nil {
		return err
	}
	defer finish()
	own, end := context.WithCancel(ctx)
	defer end()
	p, err := d.open(own, spec, s, log, &wiring.PipelineOptions{Observer: observer, Stdout: untilGone(d.opts.Stdout, end)})
	if err != nil || p == nil {
		return err
	}
	s.set(func(s *state) { s.pipeline = p })
	d.notifier.opened()
	d.tend(ctx, spec.Store.Name)
	defer d.metrics.Watch(spec.Name, p.UnderWay)()
	defer d.look(own, s, p, log)()
	defer s.trouble.watch(own, p, log)()
	log.Info("running", "source", spec.Source.Kind(), "store", spec.Store.Name, "sink", spec.Sink.Kind(), "mode", d.file.Mode(spec).String())
	if f, ok := d.filter(spec); ok {
		log.Warn("new messages are lost: a filter decides alone", "store", spec.Store.Name, "rate", f.Rate, "expect", f.Expect)
	}
	d.warnOfNewer(own, spec, log)
	d.warnOfUnbound(own, spec, log)
	err = p.Run(own)
	s.set(func(s *state) { s.ended = true })
	s.tally.over(err == nil && own.Err() == nil)
	now := s.status()
	if err != nil {
		log.Error("ended", append(now.attrs(), "error", err)...)
		return err
	}
	log.Info("ended", now.attrs()...)
	return nil
}

// warnOfNewer logs that a newer version of the program changed the tables of a
// pipeline's keys or parked messages.
func (d *daemon) warnOfNewer(ctx context.Context, spec *config.Pipeline, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, s := range d.file.Stores {
		at := func(name string) bool { return slices.Contains(d.file.Stack(name), s) }
		of, ok := s.Spec.(config.Versioned)
		if !ok || !at(spec.Store.Name) && !at(spec.Parked.Store.Name) && !at(spec.Source.About(spec).Outbox.Name) {
			continue
		}
		// A server that fails now fails for the pipeline too.
		if newer, err := of.Newer(ctx, d.file, s.Name); err == nil && newer != "" {
			log.Warn("the program is older than its tables", "store", s.Name, "found", newer, "remedy", config.UpgradeProgram)
		}
	}
}

// warnOfUnbound logs that another key rule may have filled the scope of a pipeline, in a
// store of a version that kept no rules or after an import.
func (d *daemon) warnOfUnbound(ctx context.Context, spec *config.Pipeline, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	opened, _ := d.stores.Opened(spec.Store.Name)
	store, ok := semel.As[interface {
		semel.ScopeBinder
		KeysWithoutRule(ctx context.Context) (bool, error)
	}](opened)
	if !ok || spec.Key.SameScope {
		return
	}
	// A store that fails now fails for the pipeline too.
	if bound, err := store.BindScope(ctx, spec.Key.Scope, ""); err != nil || bound != "" {
		return
	}
	if unbound, err := store.KeysWithoutRule(ctx); err == nil && unbound {
		log.Warn("the store has keys and no key rule: they are from a version that did not keep rules, or from an import", "store", spec.Store.Name, "scope", spec.Key.Scope, "binds", spec.Key.Rule.String(),
			"remedy", "if another rule filled the scope, stop and write another key.scope")
	}
}

// untilGone returns a writer to to. It calls gone when the reader has closed its
// end.
func untilGone(to io.Writer, gone func()) io.Writer {
	if to == nil {
		return nil
	}
	return pipeEnd{to, gone}
}

type pipeEnd struct {
	to   io.Writer
	gone func()
}

// Write implements io.Writer.
func (p pipeEnd) Write(data []byte) (int, error) {
	n, err := p.to.Write(data)
	if errors.Is(err, syscall.EPIPE) {
		p.gone()
	}
	return n, err
}

// filter returns the filter that decides alone in a pipeline, if there is one.
func (d *daemon) filter(spec *config.Pipeline) (*config.FilterAbout, bool) {
	if d.file.Mode(spec) != config.Lossy {
		return nil, false
	}
	s, _ := d.file.Store(spec.Store.Name)
	return s.Spec.About().Filter, true
}

// open opens a pipeline. It returns nil if ctx ends first.
func (d *daemon) open(ctx context.Context, spec *config.Pipeline, s *state, log *slog.Logger, opts *wiring.PipelineOptions) (*wiring.Pipeline, error) {
	return retrying(ctx, s, log, "pipeline "+spec.Name+": ", func() (*wiring.Pipeline, error) {
		return wiring.OpenPipeline(ctx, d.file, spec, d.stores, opts)
	})
}

// retrying calls open until it succeeds. It retries as long as servers do not answer,
// and reports a try that takes long. It removes prefix from what it logs. It returns the
// zero value if ctx ends first.
func retrying[T any](ctx context.Context, s *state, log *slog.Logger, prefix string, open func() (T, error)) (none T, _ error) {
	backoff := pipeline.Failure{From: 500 * time.Millisecond, To: 15 * time.Second}
	var last told
	var trying atomic.Bool
	var silent health.Stall
	defer silent.Start(ctx, health.Work{
		Look: func() (uint64, bool) { return 0, trying.Load() },
		Stalled: func(_ context.Context, still time.Duration) {
			s.set(func(s *state) {
				if s.waiting == nil { // the error of an earlier try says more
					s.waiting = fmt.Errorf("waits for %w", errOpening)
				}
			})
			log.Warn("stalled", "for", still.Round(time.Second).String(), "waiting_for", errOpening.Error())
		},
		Moves: func(time.Duration) {}, // the next line of the log says how it ended
	})()
	for n := 1; ; n++ {
		trying.Store(true)
		opened, err := open()
		trying.Store(false)
		if err == nil {
			return opened, nil
		}
		if ctx.Err() != nil {
			return none, nil
		}
		if _, held := embedded.Holder(err); held {
			return none, err // another process has the store, and may have it for years
		}
		// A server that is stopped during an answer leaves the outcome open. Nothing is lost if
		// the same is opened again.
		if class := semel.Classify(err); class != semel.ClassRetryable && !errors.Is(err, semel.ErrOutcomeUnknown) && !mayPass(err) {
			return none, err
		}
		s.set(func(s *state) { s.waiting = err })
		pause, text := backoff.Pause(n), strings.TrimPrefix(oneLine(err), prefix)
		if last.isNew(text, time.Now()) {
			log.Warn("cannot start yet, trying again", "error", text, "attempt", n, "next", pause.Round(time.Millisecond))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return none, nil
		}
	}
}

// errOpening is why a pipeline waits whose servers neither answer nor refuse.
var errOpening = errors.New("the first answer of its servers: is each address right, and can this machine reach it?")

// mayPass reports whether an error may go away by itself: a network error, or a
// shortage of resources on this machine. A bare errno comes from a file, although
// it has the methods of a net.Error.
func mayPass(err error) bool {
	var of net.Error
	if !errors.As(err, &of) {
		return false
	}
	number, alone := of.(syscall.Errno)
	return !alone || number.Temporary() || number == syscall.ENOSPC || number == syscall.EDQUOT || number == syscall.ENOMEM
}
