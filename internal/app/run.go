package app

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/observe"
	"github.com/semel-dev/semel/pipeline"
)

// RunOptions are the options of Run. Log is required.
type RunOptions struct {
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
	Show func(pipelines func() []admin.PipelineStatus) (stop func())
	// Page returns the page for people of the process whose admin server listens at an
	// address. Defaults to none.
	Page func(p *admin.Process, at net.Addr) http.Handler
	// Env looks up the variables by which systemd says where it listens. Defaults to
	// none, and systemd gets no messages.
	Env func(name string) string
}

// Run runs pipelines, or the service of its options, until all sources have ended or
// ctx ends, and then drains. It first logs the warnings of lint. A pipeline that a person
// at a server can repair waits, at the start and later; see waits. A pipeline that cannot
// continue ends alone, and Run returns its error when all have ended. There is one
// exception: if only the configuration can repair what the first attempt to open a pipeline
// finds, all pipelines end, so that no part of a wrong file runs.
func Run(ctx context.Context, f *config.File, opts *RunOptions) error {
	d := &daemon{file: f, log: opts.Log, opts: *opts, started: time.Now(), journal: admin.NewJournal()}
	metrics, err := newMetrics()
	if err != nil {
		return err
	}
	d.metrics, d.tended = metrics, map[string]tended{}
	d.journal.UnderWay = d.underWay
	if d.lines, err = observe.NewLog(opts.Log, &observe.LogOptions{Redact: f.Redact}); err != nil {
		return err
	}
	defer d.lines.Close()
	specs := opts.Pipelines
	if specs == nil && opts.Service == nil {
		specs = f.Pipelines
	}
	listener, err := d.listenAdmin()
	if err != nil {
		return err
	}
	d.lint(specs)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// A request that was sent to a service does not end with this process.
	d.stores = NewStores(f, &StoresOptions{OnLayer: d.layer, OnDirectory: d.listenInStore, KeepClaims: opts.Service != nil})
	errs := make([]error, len(specs))
	d.states = make([]state, len(specs))
	for i, p := range specs {
		d.states[i].name, d.states[i].readiness = p.Name, newReadiness(f, p)
	}
	var running, serving sync.WaitGroup
	if listener != nil {
		process := d.process()
		if opts.Page != nil {
			process.Page = opts.Page(process, listener.Addr())
		}
		server := admin.NewServer(process, d.adminAddress(), &d.file.Admin)
		serving.Go(func() {
			if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
				d.log.Error("the admin server ended", "error", err)
			}
		})
		defer serving.Wait()
		defer func() { _ = server.Close() }() // probes need no graceful shutdown
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
			s := &d.states[i]
			errs[i] = d.run(ctx, p, s)
			if s.begun() && errors.Is(errs[i], semel.ErrInvalidRequest) {
				cancel()
			}
		})
	}
	running.Wait()
	cancel()
	d.tending.Wait()
	d.asking.Close()
	return errors.Join(append(errs, served, d.stores.Close())...)
}

type daemon struct {
	file     *config.File
	opts     RunOptions
	log      *slog.Logger
	stores   *Stores
	metrics  *metrics
	lines    *observe.Log // events of stacks
	states   []state
	service  state // of opts.Service, while its store opens
	started  time.Time
	journal  *admin.Journal
	notifier *notifier

	asking  admin.Questions // to pipelines, stores and the service
	serving admin.Inquiry   // of opts.Service

	tending   sync.WaitGroup // goroutines that tend started
	tendingMu sync.Mutex     // guards tended
	tended    map[string]tended
}

// tended is a store that is measured and cleaned up.
type tended struct {
	store    semel.Store // nil until it is open
	asked    *admin.Inquiry
	counts   *semel.Counts // nil until it was measured
	measured time.Time
	took     time.Duration // of the last count
	cleanUp  *admin.CleanUp
}

// state is the state of one pipeline.
type state struct {
	name      string
	counters  counters
	readiness *readiness
	gauges    pipeline.Observer // its metrics
	tried     atomic.Bool       // the first attempt to open it is over
	open      sync.Once         // the notifier knows that it was open

	mu       sync.Mutex      // guards the fields below
	pipeline config.Runnable // nil while it is not open
	waiting  error           // the reason why it is not open
	next     time.Time       // when it is opened again
	ended    bool
	failure  error // the reason why it cannot continue, for probes
}

func (s *state) set(change func(s *state)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s)
}

// ready returns nil if the pipeline can work, and otherwise the reason why not.
func (s *state) ready(ctx context.Context) error {
	p, err := s.opened()
	if p != nil {
		return s.readiness.answer(ctx, p)
	}
	return err
}

// opened returns the pipeline, or the reason why it is not open.
func (s *state) opened() (config.Runnable, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.failure != nil:
		return nil, s.failure
	case s.ended:
		return nil, errors.New("ended")
	case s.pipeline != nil:
		return s.pipeline, nil
	case s.waiting != nil:
		return nil, s.waiting
	}
	return nil, errors.New("opening")
}

// lint logs what weakens the promise of the pipelines to run, as semel lint does.
// One example is a window shorter than the time in which messages can be
// delivered again.
func (d *daemon) lint(specs []*config.Pipeline) {
	for _, x := range d.file.Lint() {
		runs := x.Pipeline == "" || slices.ContainsFunc(specs, func(p *config.Pipeline) bool { return p.Name == x.Pipeline })
		if x.Severity >= doctor.Warning && runs {
			d.log.Warn("lint", "field", x.Subject, "found", x.Found, "cost", x.Cost, "remedy", x.Remedy)
		}
	}
}

// warnOfNewer logs that a newer version of the program changed the tables of a
// pipeline's keys or parked messages.
func (d *daemon) warnOfNewer(ctx context.Context, spec *config.Pipeline, log *slog.Logger) {
	const tablesFor = 5 * time.Second
	ctx, cancel := context.WithTimeout(ctx, tablesFor)
	defer cancel()
	for _, s := range d.file.Stores {
		at := func(name string) bool { return slices.Contains(d.file.Stack(name), s) }
		of, ok := s.Spec.(config.Database)
		if !ok || !at(spec.Store.Name) && !at(spec.Parked.Store.Name) && !at(spec.Source.About(spec).Outbox.Name) {
			continue
		}
		// A server that fails now fails for the pipeline too.
		steps, err := of.Tables(d.file, tablesFor).Status(ctx)
		if newer := config.NewerTables(steps); err == nil && newer != "" {
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
		log.Warn("the store has keys and no key rule: they are from a version that did not keep rules, or from an import", "store", spec.Store.Name, "scope", spec.Key.Scope, "binds", spec.RuleText(),
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
