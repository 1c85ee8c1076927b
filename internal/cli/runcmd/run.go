// Package runcmd has the verbs that run pipelines: run, with run --check, and outbox
// relay.
package runcmd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/page"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// show returns how a person sees what the pipelines do, or nil: the log has a line
// each minute. On a terminal there is a status line for each pipeline, unless the lines
// of a sink go there too.
func show(a *term.App, screen *term.Screen, text bool, chosen []*config.Pipeline) func(func() []admin.PipelineStatus) func() {
	toStdout := func(p *config.Pipeline) bool { return p.Sink.Kind() == "stdout" }
	switch {
	case a.NoProgress:
		return func(func() []admin.PipelineStatus) func() { return func() {} }
	case !screen.Shows() || !text || slices.ContainsFunc(chosen, toStdout):
		return nil
	}
	return func(pipelines func() []admin.PipelineStatus) func() {
		return screen.Show(func() []string { return statusLines(pipelines()) })
	}
}

// statusLines returns a line for each pipeline:
// orders  12.4 k/s  fresh 81 %  lag 3,120  parked 2  ready.
func statusLines(pipelines []admin.PipelineStatus) []string {
	width := 0
	for i := range pipelines {
		width = max(width, len(pipelines[i].Name))
	}
	var lines []string
	for i := range pipelines {
		p := &pipelines[i]
		line := fmt.Sprintf("%-*s  %s/s", width, p.Name, term.FormatRate(p.Rate))
		if decided := p.Fresh + p.Duplicate; decided > 0 {
			line += fmt.Sprintf("  fresh %.0f %%", 100*float64(p.Fresh)/float64(decided))
		}
		switch {
		case p.Lag != nil:
			line += "  lag " + term.FormatCount(*p.Lag)
		case p.LagBytes != nil:
			line += "  lag " + term.FormatBytes(*p.LagBytes)
		}
		parked := p.Parked
		if p.Waiting != nil {
			parked = *p.Waiting
		}
		lines = append(lines, line+"  parked "+term.FormatCount(parked)+"  "+string(p.State))
	}
	return lines
}

// runGC is the GC percentage when Kafka transactions have keys and nothing else, unless
// GOGC is set. Most memory is then a table without pointers. Collecting more often costs
// less than a tenth of the processor time. Windows, held messages and rows have pointers.
const runGC = 60

// runFlags are the flags of the verb run.
type runFlags struct {
	open.DaemonFlags
	check, migrate bool
}

// NewRun returns the verb run.
func NewRun(a *term.App) *cobra.Command {
	f := &runFlags{}
	cmd := &cobra.Command{
		Use: "run FILE [PIPELINE...]", ValidArgsFunction: open.NamesAfterFile(a, 0, (*config.File).PipelineNames),
		Short: "Run pipelines",
		Example: `semel run backfill.yaml --check
semel run pipelines.yaml
semel run pipelines.yaml lines --admin off --log-level warn`,
		Long: `Runs the pipelines of a configuration, or the named ones, until their sources end
or the process gets a signal. SIGTERM and SIGINT drain: the pipelines stop reading,
and messages in progress finish or return to the source, within the file's
shutdown time. A second signal ends the program immediately; messages in progress
are then delivered again.

--check runs nothing. It prints one table of what lint, migrate status, doctor and
dry-run find, and the remedies. The exit status is 3 if there is a warning or a
broken finding, and 1 if something could not be checked.

--migrate creates or updates the tables of the pipelines' PostgreSQL stores first. It
is for development: in production, let a role with more rights run semel migrate up.

The log goes to stderr. On a terminal, a status line for each pipeline is below it.
--admin serves a page for people at /, and probes, metrics and the status: /livez,
/readyz, /metrics and /status. semel status shows it. Without admin.auth in the FILE, the
page shows no keys; a terminal gets a login link, which is valid once.`,
		Args: term.Arguments(1, -1, term.MissingFile, ""),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			var conf *config.File
			var chosen []*config.Pipeline
			if len(args) > 0 {
				conf, chosen = open.Pipelines(a, args[0], args[1:], &wrong)
			}
			if f.check && f.migrate {
				wrong.Addf("--check and --migrate exclude each other: a check changes nothing")
			}
			if f.check && wrong.Err() == nil {
				c := &check{App: a, name: args[0], conf: conf, chosen: chosen}
				return c.do(cmd.Context())
			}
			return f.run(cmd.Context(), a, conf, chosen, wrong)
		}),
	}
	f.AddDaemon(cmd)
	cmd.Flags().BoolVar(&f.check, "check", false, "print a table of everything that lint, migrate status, doctor and dry-run find, and run nothing")
	cmd.Flags().BoolVar(&f.migrate, "migrate", false, "create or update the tables of the stores first, for development")
	return cmd
}

// run runs pipelines, unless something is wrong.
func (f *runFlags) run(ctx context.Context, a *term.App, conf *config.File, chosen []*config.Pipeline, wrong term.Problems) error {
	var log *slog.Logger
	var text bool
	screen := a.NewScreen()
	if conf != nil {
		log, text = f.Logger(a, conf, screen, &wrong)
		for _, p := range chosen {
			for _, problem := range conf.Refused(p.Name) {
				wrong.Addf("%s", problem)
			}
		}
	}
	if err := wrong.Err(); err != nil {
		return err
	}
	if f.migrate {
		if err := migrate(ctx, a, conf, chosen, log); err != nil {
			return err
		}
	}
	inKafka := func(p *config.Pipeline) bool { return conf.Mode(p) == config.SourceIsSink }
	withState := func(p *config.Pipeline) bool { return p.Aggregate != nil || p.Key.Keep != nil || len(p.Tables) > 0 }
	if a.Env("GOGC") == "" && slices.ContainsFunc(chosen, inKafka) && !slices.ContainsFunc(chosen, withState) {
		defer debug.SetGCPercent(debug.SetGCPercent(runGC))
	}
	err := app.Run(ctx, conf, &app.RunOptions{
		Pipelines: chosen, Log: log, Admin: f.Admin, InsecureNoAuth: f.Insecure, Stdout: a.Stdout, Show: show(a, screen, text, chosen), Env: a.Env,
		Page: page.For(a, conf.Name, conf, screen),
	})
	if errors.Is(err, semel.ErrInvalidRequest) {
		return term.Usagef("%s", err)
	}
	return err
}

// migrate applies the missing steps of the PostgreSQL stores that pipelines need for
// their keys and parked messages. It blocks until the servers have answered.
func migrate(ctx context.Context, a *term.App, conf *config.File, chosen []*config.Pipeline, log *slog.Logger) error {
	for _, s := range storesOf(conf, chosen) {
		database, ok := s.Spec.(config.Database)
		if !ok {
			continue
		}
		applied, err := database.Tables(conf, a.Patience).Migrate(ctx)
		for _, step := range applied {
			log.Info("migrated", "store", s.Name, "version", step.Version, "step", step.Name)
		}
		if err != nil {
			return fmt.Errorf("migrate %s: %w", s.Name, term.InOneLine(open.Advise(ctx, conf, []*config.Store{s}, err)))
		}
		if len(applied) == 0 {
			log.Info("nothing to migrate", "store", s.Name)
		}
	}
	return nil
}
