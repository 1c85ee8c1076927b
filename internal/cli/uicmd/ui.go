// Package uicmd has the verb ui, which shows the page for the shared stores of a configuration.
package uicmd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/page"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/pipeline"
)

// defaultAddress is neither that of semel run nor that of semel serve, which may be on the same
// machine.
const defaultAddress = "127.0.0.1:4197"

// New returns the verb ui.
func New(a *term.App) *cobra.Command {
	listen := defaultAddress
	cmd := &cobra.Command{
		Use:   "ui FILE",
		Short: "Show a page for people, about the shared stores of a configuration",
		Example: `semel ui pipelines.yaml
semel ui pipelines.yaml --listen 127.0.0.1:8800`,
		Long: `Serves the page that the admin server of semel run serves at /, for stores that several
processes can use: keys, unknown keys, parked messages, and what each pipeline promises.
What the pipelines do now comes from the running process that answers at the admin
address of the FILE. It runs until a signal ends it.

With admin.auth in the FILE, people log in with its credentials. Without it, the page
listens on loopback only, and the terminal gets a login link, which is valid once.
Nobody else sees a key or a message, or changes anything.

A store in a directory belongs to one process: look at the page of that process.`,
		Args: term.Arguments(1, 1, term.MissingFile, "one FILE"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			var conf *config.File
			if len(args) > 0 {
				conf = open.ConfigFor(a, args[0], config.Everything, &wrong)
			}
			if listen == admin.Off {
				wrong.Addf("--listen off: the page needs an address")
			}
			if conf != nil && !slices.ContainsFunc(conf.Stores, func(s *config.Store) bool { return shared(conf, s.Name) }) {
				wrong.Addf("%s: it names no store that several processes can use: start its pipelines with semel run %[1]s, and open / on its admin server", conf.Name)
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			return run(cmd.Context(), a, conf, listen)
		}),
	}
	cmd.Flags().StringVar(&listen, "listen", listen, "`ADDRESS` of the page")
	term.CompleteValues(cmd, "listen")
	return cmd
}

// shared reports whether several processes can use a store and all that it is built on.
func shared(conf *config.File, name string) bool {
	stack := conf.Stack(name)
	decider := conf.Decider(name)
	return decider != nil && decider.Spec.About().Shared && decider.Spec.About().NoRecords == "" &&
		!slices.ContainsFunc(stack, func(s *config.Store) bool { return s.Spec.About().Directory != "" })
}

// run serves the page until ctx ends.
func run(ctx context.Context, a *term.App, conf *config.File, address string) (err error) {
	listener, err := admin.Listen(address, &conf.Admin, false)
	if err != nil {
		if errors.Is(err, semel.ErrInvalidRequest) {
			return term.Usagef("%s", err)
		}
		return err
	}
	u := &ui{
		conf: conf, patience: a.Patience, stores: app.NewStores(conf, &app.StoresOptions{KeepIDs: true}),
		asked: map[any]*admin.Inquiry{conf: {SilentFor: admin.SilentFor}}, waits: map[string]waits{}, counts: map[string]*counted{},
	}
	defer func() {
		u.asking.Close()
		err = errors.Join(err, u.stores.Close())
	}()
	u.status(ctx) // or the first page would say of a part that it has not answered yet
	process := &admin.Process{Status: u.status, Store: u.store, Parked: u.parked, Redact: conf.Redact, Tries: admin.Tries{Failed: func(user, address string) { a.Note("a login of %q from %s failed", user, address) }}}
	o := &page.Options{App: a, File: conf.Name, Conf: conf, Process: process, At: listener.Addr(), Apart: true}
	tell := func(link string) { a.Note("open %s (this login link is valid once, for 15 minutes)", link) }
	if a.Terminal && conf.Admin.Auth == nil {
		o.Tell = tell // elsewhere, a log would always have a valid one
	}
	shown := page.New(o)
	if conf.Admin.Auth == nil {
		tell(shown.LoginLink())
	} else {
		a.Note("open %s", shown.URL())
	}
	server := admin.NewPageServer(shown, address, &conf.Admin)
	var serving sync.WaitGroup
	var failed error
	ended := make(chan struct{})
	serving.Go(func() {
		defer close(ended)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			failed = err
		}
	})
	select {
	case <-ctx.Done():
	case <-ended:
	}
	_ = server.Close() // a page that is cut is loaded again
	serving.Wait()
	return failed
}

// ui is a process that runs no pipeline.
type ui struct {
	conf     *config.File
	patience time.Duration
	stores   *app.Stores
	asking   admin.Questions

	mu    sync.Mutex // guards the fields below
	asked map[any]*admin.Inquiry
	// process is the last status of the process that runs the pipelines.
	process *admin.Status
	waits   map[string]waits    // by pipeline
	counts  map[string]*counted // by store
}

// waits is the last count of the parked messages of a pipeline.
type waits struct {
	n  int64
	at time.Time
}

// counted is the last count of a store.
type counted struct {
	counts semel.Counts
	at     time.Time
	took   time.Duration
}

// ask asks one of the parts, and blocks no longer than an Inquiry does.
func (u *ui) ask(ctx context.Context, part any, question func(context.Context) error) admin.Answer {
	u.mu.Lock()
	of := u.asked[part]
	if of == nil {
		of = &admin.Inquiry{}
		u.asked[part] = of
	}
	u.mu.Unlock()
	return of.Ask(ctx, &u.asking, question)
}

// store opens a store that several processes can use.
func (u *ui) store(name string) (semel.Store, error) {
	if _, ok := u.conf.Store(name); !ok {
		return nil, fmt.Errorf("there is no store %q: %s: %w", name, schema.OneOf(name, u.conf.StoreNames()), semel.ErrInvalidRequest)
	}
	if !shared(u.conf, name) {
		return nil, fmt.Errorf("the store %s belongs to one process: look at the page on the admin server of that process: %w", name, semel.ErrInvalidRequest)
	}
	ctx, cancel := context.WithTimeout(context.Background(), u.patience)
	defer cancel()
	store, err := u.stores.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("open the store %s: %w", name, term.InOneLine(u.conf.AdviseStores(u.conf.Stack(name), err)))
	}
	return store, nil
}

// parked opens the parked messages of a pipeline.
func (u *ui) parked(ctx context.Context, name string) (pipeline.DeadLetters, bool, error) {
	spec, ok := u.conf.Pipeline(name)
	if !ok {
		return nil, false, fmt.Errorf("there is no pipeline %q: %w", name, semel.ErrInvalidRequest)
	}
	letters, ok, err := app.ExistingDeadLetters(ctx, u.conf, spec)
	if err == nil && !ok && spec.Parked.Path != "" {
		err = fmt.Errorf("this machine has no directory %s: if %s runs on another machine, its parked messages are there; otherwise none was parked yet", spec.Parked.Path, name)
	}
	return letters, ok, err
}

// countFor limits the time for a count.
const countFor = time.Second

// status returns the status of the pipelines, as the process that runs them says, and the state
// of the shared stores. It asks all concurrently, so that one that does not answer takes no time
// from the others.
func (u *ui) status(ctx context.Context) *admin.Status {
	var asking sync.WaitGroup
	stores := make([]*admin.StoreStatus, len(u.conf.Stores))
	for i, s := range u.conf.Stores {
		if _, layer := u.conf.LayerOf(s.Name); !layer && shared(u.conf, s.Name) {
			asking.Go(func() { stores[i] = u.storeStatus(ctx, s) })
		}
	}
	now := u.running(ctx)
	asking.Wait()
	for _, s := range stores {
		if s != nil {
			now.Stores = append(now.Stores, *s)
		}
	}
	now.Time = time.Now()
	return now
}

// running returns the status of the pipelines, without stores.
func (u *ui) running(ctx context.Context) *admin.Status {
	answer := u.ask(ctx, u.conf, func(ctx context.Context) error {
		now, err := open.StatusOf(ctx, u.conf, "")
		if err != nil {
			return err
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.process = now
		return nil
	})
	now, why := &admin.Status{}, "the process that answered does not run it"
	if answer.Err != nil {
		why = term.JoinLines(u.conf.Redact(term.PlainText(answer.Err.Error())))
	} else {
		u.mu.Lock()
		now.Started, now.Pipelines, now.Service = u.process.Started, slices.Clone(u.process.Pipelines), u.process.Service
		u.mu.Unlock()
	}
	for i := range now.Pipelines {
		if !answer.At.IsZero() {
			now.Pipelines[i].Answered = answer.At
		}
	}
	seen := len(now.Pipelines)
	for _, p := range u.conf.Pipelines {
		if !slices.ContainsFunc(now.Pipelines, func(s admin.PipelineStatus) bool { return s.Name == p.Name }) {
			now.Pipelines = append(now.Pipelines, admin.PipelineStatus{Name: p.Name, State: admin.StateNotSeen, Reason: why})
		}
	}
	var asking sync.WaitGroup
	for i := range now.Pipelines[seen:] {
		s := &now.Pipelines[seen+i]
		p, _ := u.conf.Pipeline(s.Name)
		asking.Go(func() { u.wait(ctx, p, s) })
	}
	asking.Wait()
	return now
}

// wait sets how many messages of a pipeline are parked.
func (u *ui) wait(ctx context.Context, p *config.Pipeline, s *admin.PipelineStatus) {
	u.ask(ctx, p, func(ctx context.Context) error {
		asked := time.Now()
		n, ok := u.waiting(ctx, p)
		u.mu.Lock()
		defer u.mu.Unlock()
		if ok {
			u.waits[p.Name] = waits{n, asked}
		}
		return nil
	})
	u.mu.Lock()
	defer u.mu.Unlock()
	if w, ok := u.waits[p.Name]; ok {
		s.Waiting, s.WaitingMeasured = &w.n, w.at
	}
}

// waiting counts the parked messages of a pipeline.
func (u *ui) waiting(ctx context.Context, p *config.Pipeline) (n int64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	letters, ok, err := u.parked(ctx, p.Name)
	if err != nil || !ok {
		return 0, err == nil
	}
	if counter, can := letters.(pipeline.DeadLetterStore); can {
		n, err = counter.Count(ctx, p.Name)
	} else {
		err = errors.ErrUnsupported
	}
	return n, errors.Join(err, letters.Close()) == nil
}

// storeStatus asks a store whether it is ready, and counts its keys unless that takes long.
func (u *ui) storeStatus(ctx context.Context, of *config.Store) *admin.StoreStatus {
	answer := u.ask(ctx, of, func(ctx context.Context) error {
		store, err := u.store(of.Name)
		if err != nil {
			return err
		}
		if ready, ok := semel.As[doctor.Readier](store); ok {
			if err := ready.Ready(ctx); err != nil {
				return u.conf.AdviseStores(u.conf.Stack(of.Name), err)
			}
		}
		u.count(ctx, of.Name, store)
		return nil
	})
	s := &admin.StoreStatus{Name: of.Name, State: admin.StateReady, Answered: answer.At}
	if answer.Err != nil {
		s.State, s.Reason = admin.StateNotReady, term.JoinLines(u.conf.Redact(term.PlainText(answer.Err.Error())))
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if last := u.counts[of.Name]; last != nil {
		s.Counted(&last.counts, last.at)
	}
	return s
}

// count counts the keys of a store, unless that took long a short time ago.
func (u *ui) count(ctx context.Context, name string, store semel.Store) {
	counter, ok := semel.As[semel.Inspector](store)
	u.mu.Lock()
	last := u.counts[name]
	u.mu.Unlock()
	if !ok || last != nil && time.Since(last.at) <= app.CountPause*last.took {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, countFor)
	defer cancel()
	next := &counted{at: time.Now()}
	counts, err := counter.Count(ctx)
	next.took, next.counts = time.Since(next.at), counts
	switch {
	case err == nil:
	case last == nil:
		return
	default:
		next.counts, next.at = last.counts, last.at
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.counts[name] = next
}
