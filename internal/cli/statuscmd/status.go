// Package statuscmd has the verb status, which asks a running process what its pipelines
// do.
package statuscmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/admin"
	"github.com/semel-dev/semel/internal/cli/facts"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// watchEvery is how often --watch asks.
const watchEvery = 2 * time.Second

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
			if facts.NeedsPerson(now) {
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
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", term.OneLine(p.Name), term.OneLine(string(p.State)), facts.Rate(p), facts.Share(p), facts.Lagged(now, p),
			facts.InFlight(p), facts.Waiting(now, p), facts.Ago(now.Time, p.LastSettled))
	}
	if len(now.Stores) > 0 {
		fmt.Fprintln(table, "\nSTORE\tSTATE\tDONE\tCLAIMED\tUNKNOWN\tMEASURED")
		for i := range now.Stores {
			s := &now.Stores[i]
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", term.OneLine(s.Name), term.OneLine(string(s.State)), facts.Count(s.Done), facts.Count(s.Claimed), facts.Count(s.Unknown), facts.Ago(now.Time, s.Measured))
		}
	}
	_ = table.Flush() // to memory
	file := ""
	if q.conf != nil {
		file = q.conf.Name
	}
	for i, d := range facts.Details(now, file) {
		if i == 0 {
			out.WriteByte('\n')
		}
		out.WriteString(term.OneLine(d.String()) + "\n")
	}
	_, err := a.Stdout.Write(out.Bytes())
	return err
}
