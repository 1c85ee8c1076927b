package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
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

func newDoctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor FILE [NAME]",
		Short: "Say whether servers are set up to keep the promise",
		Example: `semel doctor semel.yaml ledger
semel doctor semel.yaml ledger --json`,
		Long: `Connects to the stores that a configuration names, or to one of them and what it
stands on, and to the ends of its pipelines, or of one, and says what of their set-up
keeps the promise and what does not: eviction and persistence of Redis, commits,
isolation and standbys of PostgreSQL, replicas, retention, groups and transactions
of Kafka, files, targets, tables, where messages are put aside, versions,
permissions, clocks. Nothing is read from a source, written to a sink or changed.

Each finding is fine, a notice, a warning (the promise holds with the exception
that is named) or broken (it does not hold). The exit status is 3 if there is a
warning or something is broken, and 1 if one could not be looked at.`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return usagef("FILE is missing: name the configuration")
			case len(args) > 2:
				return usagef("unexpected argument %q: this verb takes FILE and NAME", args[2])
			}
			return nil
		},
		RunE: a.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
			stores, pipelines, conf := a.toExamine(args, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return a.examine(cmd.Context(), conf, stores, pipelines)
		}),
	}
}

func (a *app) toExamine(args []string, p *problems) ([]*config.Store, []*config.Pipeline, *config.File) {
	if len(args) == 0 {
		return nil, nil, nil // another flag was wrong too, and the parser has reported it
	}
	conf := a.readConfigFor(args[0], func(conf *config.File) (string, bool) {
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
	p.addf("%s: %s has no such store: %s", args[1], conf.Name, schema.OneOf(args[1], names))
	return nil, nil, conf
}

// examine reports on each store and then on each pipeline. If one cannot be
// checked, it continues with the others.
func (a *app) examine(ctx context.Context, conf *config.File, stores []*config.Store, pipelines []*config.Pipeline) error {
	var failures []error
	count := map[semel.Severity]int{}
	for i := range len(stores) + len(pipelines) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var report *config.Examination
		if i < len(stores) {
			report = a.examineOne(ctx, conf, stores[i])
		} else {
			report = a.examinePipeline(ctx, conf, pipelines[i-len(stores)])
		}
		for _, finding := range report.Findings {
			count[finding.Severity]++
		}
		if report.Err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", report.Name(), inOneLine(report.Err)))
		}
		if err := a.printReport(report); err != nil {
			return err
		}
	}
	what := plural(len(stores), "store")
	if len(pipelines) > 0 {
		what += " and " + plural(len(pipelines), "pipeline")
	}
	a.note("%s: %d fine, %d to note, %d with a warning, %d broken", what,
		count[semel.Fine], count[semel.Notice], count[semel.Warning], count[semel.Broken])
	switch {
	case len(failures) > 0:
		return errors.Join(failures...)
	case count[semel.Warning]+count[semel.Broken] > 0:
		return errFound
	}
	return nil
}

func (a *app) examineOne(ctx context.Context, conf *config.File, s *config.Store) *config.Examination {
	patient, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	report := wiring.Examine(patient, conf, s)
	report.Err = advised(ctx, serverOf(conf, s), report.Err)
	return report
}

func (a *app) examinePipeline(ctx context.Context, conf *config.File, p *config.Pipeline) *config.Examination {
	patient, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	return wiring.ExaminePipeline(patient, conf, p)
}

// serverOf returns the store whose server a store uses.
func serverOf(conf *config.File, s *config.Store) []*config.Store {
	if server, ok := conf.Store(s.Spec.About().Server.Name); ok {
		return []*config.Store{server}
	}
	return []*config.Store{s}
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *app) printReport(r *config.Examination) error {
	if a.asJSON {
		return a.printReportJSON(r)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s (%s)\n", r.Name(), r.Kind())
	for _, finding := range r.Findings {
		fmt.Fprintf(&text, "  %-8s %-28s %s\n", finding.Severity, displayText(finding.Subject), displayText(joinLines(plainText(finding.Found))))
		if finding.Cost != "" {
			fmt.Fprintf(&text, "           cost: %s\n", displayText(finding.Cost))
		}
		if finding.Remedy != "" {
			fmt.Fprintf(&text, "           do:   %s\n", displayText(finding.Remedy))
		}
	}
	if r.Err != nil {
		text.WriteString("  could not be looked at\n")
	}
	_, err := a.stdout.Write([]byte(a.redact(text.String())))
	return err
}

func (a *app) printReportJSON(r *config.Examination) error {
	line := findingLine{Kind: r.Kind()}
	if r.Pipeline != nil {
		line.Pipeline = r.Name()
	} else {
		line.Store = r.Name()
	}
	for _, f := range r.Findings {
		line.Severity, line.Subject = f.Severity.String(), f.Subject
		line.Found, line.Cost, line.Remedy = a.redact(joinLines(plainText(f.Found))), a.redact(f.Cost), a.redact(f.Remedy)
		if err := a.printJSON(line); err != nil {
			return err
		}
	}
	if r.Err == nil {
		return nil
	}
	return a.printJSON(findingLine{Store: line.Store, Pipeline: line.Pipeline, Kind: line.Kind, Error: a.redact(plainText(inOneLine(r.Err).Error()))})
}
