// Package statuscmd has the verb status, which asks a running process what its pipelines
// do.
package statuscmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// watchEvery is how often --watch asks.
const watchEvery = 2 * time.Second

// freshFor is how long a measured lag is shown without its age.
const freshFor = 5 * time.Second

// New returns the verb status.
func New(a *term.App) *cobra.Command {
	var address string
	var watch bool
	cmd := &cobra.Command{
		Use:   "status [FILE]",
		Short: "Show what a running program does",
		Example: `semel status pipelines.yaml
semel status --admin 127.0.0.1:4195 --json`,
		Long: `Asks the admin server of a running semel run what its pipelines and stores do. The
process that has an embedded store of the FILE open answers first. Otherwise the address
is that of the FILE, or ` + admin.DefaultAddress + `; --admin names another. The FILE also has
the credentials (admin.auth) and the certificate (admin.tls). A process that runs no
pipeline of the FILE is refused.

For each pipeline it shows the state, the messages per second, the share of fresh
messages, the lag of the source, the messages in flight, the parked messages, and
the last error. If a pipeline is behind, it says how long that takes and what limits
it. For each store it shows the keys by state.

The exit status is 3 if a person is needed: a pipeline or store is not ready, messages
are parked, or the outcome of keys is unknown. It is 1 if there is no answer.`,
		Args: term.Arguments(0, 1, "", "FILE"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			var conf *config.File
			if len(args) > 0 {
				conf = open.ConfigFor(a, args[0], open.NoStore, &wrong)
			}
			from := &asking{conf: conf, chosen: address != ""}
			if len(args) == 0 || conf != nil && (address != "" || conf.Admin.Listen != admin.Off) {
				from.admin = open.Admin(address, conf, &wrong)
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			if watch {
				return from.watch(cmd.Context(), a)
			}
			now, _, err := from.status(cmd.Context())
			if err != nil {
				return err
			}
			if err := from.print(a, now); err != nil {
				return err
			}
			if needsPerson(now) {
				return term.ErrFound
			}
			return nil
		}),
	}
	cmd.Flags().StringVar(&address, "admin", "", "`ADDRESS` or URL of the admin server (default that of the file, or "+admin.DefaultAddress+")")
	cmd.Flags().BoolVar(&watch, "watch", false, "show it again every two seconds until a signal ends it")
	term.CompleteValues(cmd, "admin")
	return cmd
}

// asking asks for the status of a running program: its admin server, or the process that
// has an embedded store open.
type asking struct {
	admin  *admin.Client // nil if the configuration says that there is no server
	conf   *config.File  // nil if none exists
	chosen bool          // an address was chosen
}

// status asks for the status. shown names where it came from.
func (q *asking) status(ctx context.Context) (now *admin.Status, shown string, err error) {
	now = &admin.Status{}
	if q.conf != nil && !q.chosen {
		if holder := open.Holder(ctx, q.conf); holder != nil {
			defer holder.Close()
			return now, holder.Name(), holder.Get(ctx, admin.StatusPath, now)
		}
	}
	if q.admin == nil {
		return nil, "", term.Usagef("%s: admin.listen is off, and no process answers in the directory of an embedded store: write an address, or name it with --admin", q.conf.Name)
	}
	err = q.admin.Get(ctx, admin.StatusPath, now)
	if _, silent := errors.AsType[*admin.NoAnswerError](err); silent && q.conf != nil && !q.chosen {
		err = fmt.Errorf("%w If no process runs %s, start it with semel run %[2]s", err, q.conf.Name)
	}
	if err == nil && q.conf != nil {
		err = open.Another(q.admin, now, q.conf)
	}
	return now, q.admin.Name() + admin.StatusPath, err
}

// watch shows the status again and again until ctx ends.
func (q *asking) watch(ctx context.Context, a *term.App) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		now, shown, err := q.status(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			a.Note("%s", err)
		default:
			if err := q.show(a, now, shown); err != nil {
				return err
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// show prints a status below a line with its time. On a terminal it replaces the one
// before.
func (q *asking) show(a *term.App, now *admin.Status, from string) error {
	if !a.JSON {
		start := "\n"
		if a.OnTerminal() {
			start = "\x1b[H\x1b[2J"
		}
		if _, err := fmt.Fprintf(a.Stdout, "%s%s  %s\n", start, term.DisplayTime(now.Time), from); err != nil {
			return err
		}
	}
	return q.print(a, now)
}

// needsPerson reports whether a person must look at something.
func needsPerson(now *admin.Status) bool {
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		if p.State != admin.StateReady && p.State != admin.StateEnded || p.Waiting != nil && *p.Waiting > 0 {
			return true
		}
	}
	if now.Service != nil && now.Service.State != admin.StateReady {
		return true
	}
	for i := range now.Stores {
		s := &now.Stores[i]
		if s.State != admin.StateReady || s.Unknown != nil && *s.Unknown > 0 {
			return true
		}
	}
	return false
}

// print prints a status as tables, or as a line of JSON for each pipeline and
// store. Its texts come from the server, which may be any.
func (q *asking) print(a *term.App, now *admin.Status) error {
	if a.JSON {
		var lines []any
		for i := range now.Pipelines {
			lines = append(lines, &now.Pipelines[i])
		}
		if now.Service != nil {
			lines = append(lines, now.Service)
		}
		for i := range now.Stores {
			lines = append(lines, &now.Stores[i])
		}
		for _, line := range lines {
			if err := a.PrintJSON(line); err != nil {
				return err
			}
		}
		return nil
	}
	var out bytes.Buffer
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	if s := now.Service; s != nil {
		fmt.Fprintf(table, "SERVICE\tSTATE\n%s\t%s\n", term.OneLine(s.Name), term.OneLine(string(s.State)))
	}
	if now.Service == nil || len(now.Pipelines) > 0 {
		fmt.Fprintln(table, "PIPELINE\tSTATE\tRATE\tFRESH\tLAG\tIN FLIGHT\tPARKED\tLAST SETTLED")
	}
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		fmt.Fprintf(table, "%s\t%s\t%s/s\t%s\t%s\t%s\t%s\t%s\n", term.OneLine(p.Name), term.OneLine(string(p.State)), term.FormatRate(p.Rate), share(p), lagged(now, p),
			term.FormatCount(int64(p.InFlight)), count(p.Waiting), ago(now.Time, p.LastSettled))
	}
	if len(now.Stores) > 0 {
		fmt.Fprintln(table, "\nSTORE\tSTATE\tDONE\tCLAIMED\tUNKNOWN\tMEASURED")
		for i := range now.Stores {
			s := &now.Stores[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", term.OneLine(s.Name), term.OneLine(string(s.State)), count(s.Done), count(s.Claimed), count(s.Unknown), ago(now.Time, s.Measured))
		}
	}
	_ = table.Flush() // to memory
	q.printDetails(&out, now)
	_, err := a.Stdout.Write(out.Bytes())
	return err
}

// printDetails prints what has no place in the tables: reasons, errors, the lag of
// partitions, and the commands for what needs a person.
func (q *asking) printDetails(out *bytes.Buffer, now *admin.Status) {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, term.OneLine(fmt.Sprintf(format, args...)))
	}
	for i := range now.Pipelines {
		p := &now.Pipelines[i]
		if p.Settled > 0 {
			add("%s", accounts(p))
		}
		if p.Reason != "" {
			add("%s is not ready: %s", p.Name, term.Trouble(p.Reason, p.NextAttempt, now.Time))
		} else if p.WaitingFor != "" {
			add("%s is stalled, waiting for %s", p.Name, p.WaitingFor)
		}
		if e := p.LastError; e != nil {
			text := e.Event
			if e.Cause != "" {
				text += ": " + e.Cause
			}
			if e.Over {
				add("%s failed last %s, which is over: %s", p.Name, ago(now.Time, e.At), text)
			} else {
				add("%s failed last %s: %s: the log has the error", p.Name, ago(now.Time, e.At), text)
			}
		}
		if p.Pace != nil {
			add("%s", behind(p))
		}
		for _, at := range p.Lags {
			if len(p.Lags) > 1 && (at.Messages != nil && *at.Messages > 0 || at.Bytes != nil && *at.Bytes > 0) {
				add("%s: %s/%d has lag %s", p.Name, at.Source, at.Partition, lag(at.Messages, at.Bytes))
			}
		}
	}
	if s := now.Service; s != nil && s.Reason != "" {
		add("%s is not ready: %s", s.Name, term.Trouble(s.Reason, s.NextAttempt, now.Time))
	}
	file := "FILE"
	if q.conf != nil {
		file = q.conf.Name
	}
	for i := range now.Pipelines {
		if p := &now.Pipelines[i]; p.Waiting != nil && *p.Waiting > 0 {
			add("%s has parked messages: %s", p.Name, term.ShellLine("semel", "parked", "ls", "--config", file, "--pipeline", p.Name))
		}
	}
	for i := range now.Stores {
		s := &now.Stores[i]
		if s.Reason != "" {
			add("store %s is not ready: %s", s.Name, s.Reason)
		}
		if s.Unknown != nil && *s.Unknown > 0 {
			named := []string{"--config", file, "--store-name", s.Name}
			if now.Service != nil && q.conf == nil { // flags named the directory
				named = []string{"--store", s.Name}
			}
			add("store %s has unknown keys: %s", s.Name, term.ShellLine(append([]string{"semel", "keys", "ls", "--state", "unknown"}, named...)...))
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(out, "\n%s\n", strings.Join(lines, "\n"))
	}
}

// accounts says what became of the messages since the start of the program.
func accounts(p *admin.PipelineStatus) string {
	line := fmt.Sprintf("%s: %d settled", p.Name, p.Settled)
	if p.Held < 0 {
		line += fmt.Sprintf(" + %d settled earlier or in flight", -p.Held)
	}
	line += fmt.Sprintf(" = %d fresh", p.Fresh)
	for _, of := range []struct {
		n    int64
		name string
	}{{p.Duplicate, "duplicate"}, {p.Superseded, "superseded"}, {p.Filtered, "filtered"}, {p.Parked, "parked"}, {p.Dropped, "dropped"}, {p.Held, "held"}} {
		if of.n > 0 {
			line += fmt.Sprintf(" + %d %s", of.n, of.name)
		}
	}
	if p.Differ > 0 {
		line += fmt.Sprintf("; %d of the duplicates differ in content from the message of their key that took effect: is the key too coarse?", p.Differ)
	}
	return line
}

// behind says of a pipeline that is behind how far, how long that takes, and what limits it.
func behind(p *admin.PipelineStatus) string {
	pace, line := p.Pace, fmt.Sprintf("%s is lagging: %s behind, ", p.Name, lag(p.Lag, p.LagBytes))
	if pace.LeftSeconds == nil {
		line += "and nothing was settled in the last ten seconds"
	} else {
		line += fmt.Sprintf("about %s at %s/s", about(*pace.LeftSeconds), term.FormatRate(p.Rate))
	}
	if pace.BatchSeconds == nil {
		return line
	}
	what := "a message takes"
	if pace.Messages >= 1.5 {
		what = fmt.Sprintf("a batch of %s messages takes", term.FormatCount(int64(pace.Messages+0.5)))
	}
	line += fmt.Sprintf("; %s %s", what, milliseconds(*pace.BatchSeconds))
	if pace.ClaimSeconds != nil && pace.SinkSeconds != nil {
		line += fmt.Sprintf(" (claim %s, sink %s)", milliseconds(*pace.ClaimSeconds), milliseconds(*pace.SinkSeconds))
	}
	line += fmt.Sprintf(", %d at a time", pace.Workers)
	switch pace.Limit {
	case admin.LimitSource:
		line += ": most of the time they wait for the source"
	case admin.LimitStore:
		line += ": the store limits it; raise parallel, or look at the store with semel doctor"
	case admin.LimitSink, admin.LimitWorkers:
		line += ": raise parallel, or start more processes if the store is shared"
	}
	return line
}

// about formats a time that is estimated.
func about(seconds float64) string {
	const year = 365 * 24 * time.Hour
	d := time.Duration(min(seconds, year.Seconds()) * float64(time.Second))
	switch {
	case d >= year:
		return "a year or more"
	case d >= 10*time.Minute:
		return term.FormatElapsed(d.Round(time.Minute))
	case d >= time.Minute:
		return fmt.Sprintf("%.0f min", d.Minutes())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}

// milliseconds formats a short time.
func milliseconds(seconds float64) string {
	switch ms := 1000 * seconds; {
	case ms < 0.05:
		return "0 ms"
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 10_000:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return term.FormatElapsed(time.Duration(seconds * float64(time.Second)))
}

// share formats the share of fresh messages.
func share(p *admin.PipelineStatus) string {
	if p.Fresh+p.Duplicate == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(p.Fresh)/float64(p.Fresh+p.Duplicate))
}

// count formats a count that may not be known.
func count(n *int64) string {
	if n == nil {
		return "-"
	}
	return term.FormatCount(*n)
}

// lag formats a lag in messages or bytes.
func lag(messages, size *int64) string {
	if messages == nil && size != nil {
		return term.FormatBytes(*size)
	}
	return count(messages)
}

// lagged formats the lag of a pipeline, with its age if it is old.
func lagged(now *admin.Status, p *admin.PipelineStatus) string {
	text := lag(p.Lag, p.LagBytes)
	if p.LagMeasured.IsZero() || now.Time.Sub(p.LagMeasured) < freshFor {
		return text
	}
	return text + " (" + ago(now.Time, p.LagMeasured) + ")"
}

// ago formats how long ago something was.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return "-"
	}
	return term.FormatElapsed(max(now.Sub(then), 0)) + " ago"
}
