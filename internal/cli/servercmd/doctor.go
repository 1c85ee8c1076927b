// Package servercmd has the verbs that ask and change servers: status, doctor, migrate
// and kafka.
package servercmd

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
	"github.com/semel-dev/semel/internal/wiring"
)

// findingLine is one finding in JSON, or the error of a store or pipeline that
// could not be checked.
type findingLine struct {
	Store    string `json:"store,omitempty"`
	Pipeline string `json:"pipeline,omitempty"`
	Kind     string `json:"kind"`
	Severity string `json:"severity,omitempty"`
	Subject  string `json:"subject,omitempty"`
	Found    string `json:"found,omitempty"`
	Cost     string `json:"cost,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	Error    string `json:"error,omitempty"`
}

// NewDoctor returns the verb doctor.
func NewDoctor(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor FILE [NAME]",
		Short: "Check whether servers are set up to keep the promise",
		Example: `semel doctor semel.yaml ledger
semel doctor semel.yaml ledger --json`,
		Long: `Connects to the stores of a configuration and to both ends of its pipelines, or to
the named store or pipeline. It says whether their set-up keeps the promise:
eviction and persistence of Redis; commits, isolation and standbys of PostgreSQL;
replicas, retention, groups and transactions of Kafka; files, targets, tables,
places of parked messages, versions, permissions, clocks. It reads nothing from a
source, writes nothing to a sink and changes nothing.

Each finding is fine, a notice, a warning (the promise holds, with the stated
exception) or broken (the promise does not hold). The exit status is 3 if there is
a warning or a broken finding, and 1 if a store or pipeline could not be checked.`,
		Args: term.Arguments(1, 2, term.MissingFile, "FILE and NAME"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			stores, pipelines, conf := toExamine(a, args, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return examine(cmd.Context(), a, args[0], conf, stores, pipelines)
		}),
	}
}

func toExamine(a *term.App, args []string, p *term.Problems) ([]*config.Store, []*config.Pipeline, *config.File) {
	if len(args) == 0 {
		return nil, nil, nil // another flag was wrong too, and the parser has reported it
	}
	conf := open.ConfigFor(a, args[0], func(conf *config.File) (string, bool) {
		if len(args) == 1 {
			return "", false
		}
		_, store := conf.Store(args[1])
		return args[1], store
	}, p)
	if conf == nil {
		return nil, nil, nil
	}
	if len(args) == 1 {
		return conf.Stores, conf.Pipelines, conf
	}
	if _, ok := conf.Store(args[1]); ok {
		return conf.Stack(args[1]), nil, conf
	}
	if pipeline, ok := conf.Pipeline(args[1]); ok {
		return nil, []*config.Pipeline{pipeline}, conf
	}
	names := append(conf.StoreNames(), conf.PipelineNames()...)
	p.Addf("%s: %s has no such store or pipeline: %s", args[1], conf.Name, schema.OneOf(args[1], names))
	return nil, nil, conf
}

// examine reports on each store and then on each pipeline. If one cannot be
// checked, it continues with the others.
func examine(ctx context.Context, a *term.App, file string, conf *config.File, stores []*config.Store, pipelines []*config.Pipeline) error {
	var failures []error
	count, bad := map[semel.Severity]int{}, map[*config.Store]bool{}
	for i := range len(stores) + len(pipelines) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var report *config.Examination
		if i < len(stores) {
			report = wiring.Examine(ctx, conf, stores[i], a.Patience)
			report.Err = open.Advise(ctx, conf, serverOf(conf, stores[i]), report.Err)
			bad[stores[i]] = report.Err != nil || report.Breaks()
		} else {
			p := pipelines[i-len(stores)]
			report = wiring.ExaminePipeline(ctx, conf, p, a.Patience)
			if !bad[conf.Decider(p.Store.Name)] {
				open.ExamineScope(ctx, a, file, report)
			}
		}
		for _, finding := range report.Findings {
			count[finding.Severity]++
		}
		if report.Err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", report.Name(), term.InOneLine(report.Err)))
		}
		if err := printReport(a, report); err != nil {
			return err
		}
	}
	what := term.Plural(len(stores), "store")
	if len(pipelines) > 0 {
		what += " and " + term.Plural(len(pipelines), "pipeline")
	}
	a.Note("%s: %d fine, %d to note, %d with a warning, %d broken", what,
		count[semel.Fine], count[semel.Notice], count[semel.Warning], count[semel.Broken])
	switch {
	case len(failures) > 0:
		return errors.Join(failures...)
	case count[semel.Warning]+count[semel.Broken] > 0:
		return term.ErrFound
	}
	return nil
}

// serverOf returns the store whose server a store uses.
func serverOf(conf *config.File, s *config.Store) []*config.Store {
	if server, ok := conf.Store(s.Spec.About().Server.Name); ok {
		return []*config.Store{server}
	}
	return []*config.Store{s}
}

func printReport(a *term.App, r *config.Examination) error {
	if a.JSON {
		return printReportJSON(a, r)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s (%s)\n", r.Name(), r.Kind())
	for _, finding := range r.Findings {
		fmt.Fprintf(&text, "  %-8s %-28s %s\n", finding.Severity, term.DisplayText(finding.Subject), term.DisplayText(term.JoinLines(term.PlainText(finding.Found))))
		if finding.Cost != "" {
			fmt.Fprintf(&text, "           cost: %s\n", term.DisplayText(finding.Cost))
		}
		if finding.Remedy != "" {
			fmt.Fprintf(&text, "           do:   %s\n", term.DisplayText(finding.Remedy))
		}
	}
	if r.Err != nil {
		text.WriteString("  not checked\n")
	}
	_, err := a.Stdout.Write([]byte(a.Redact(text.String())))
	return err
}

func printReportJSON(a *term.App, r *config.Examination) error {
	line := findingLine{Kind: r.Kind()}
	if r.Pipeline != nil {
		line.Pipeline = r.Name()
	} else {
		line.Store = r.Name()
	}
	for _, f := range r.Findings {
		line.Severity, line.Subject = f.Severity.String(), f.Subject
		line.Found, line.Cost, line.Remedy = a.Redact(term.JoinLines(term.PlainText(f.Found))), a.Redact(f.Cost), a.Redact(f.Remedy)
		if err := a.PrintJSON(line); err != nil {
			return err
		}
	}
	if r.Err == nil {
		return nil
	}
	return a.PrintJSON(findingLine{Store: line.Store, Pipeline: line.Pipeline, Kind: line.Kind, Error: a.Redact(term.PlainText(term.InOneLine(r.Err).Error()))})
}
