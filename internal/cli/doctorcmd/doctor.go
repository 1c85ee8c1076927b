// Package doctorcmd has the verb doctor, which examines the servers of a configuration.
package doctorcmd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/app"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/proxy"
	"github.com/semel-dev/semel/internal/schema"
)

// findingLine is one finding in JSON, or the error of a store, pipeline or service that
// could not be checked.
type findingLine struct {
	Store    string `json:"store,omitempty"`
	Pipeline string `json:"pipeline,omitempty"`
	Service  string `json:"service,omitempty"`
	Kind     string `json:"kind"`
	Severity string `json:"severity,omitempty"`
	Subject  string `json:"subject,omitempty"`
	Found    string `json:"found,omitempty"`
	Cost     string `json:"cost,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
	Error    string `json:"error,omitempty"`
}

// New returns the verb doctor.
func New(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use: "doctor FILE [NAME]", ValidArgsFunction: open.NamesAfterFile(a, 1, open.PipelinesAndStores),
		Short: "Check whether servers are set up to keep the promise",
		Example: `semel doctor semel.yaml ledger
semel doctor semel.yaml ledger --json`,
		Long: `Connects to the stores of a configuration, to both ends of its pipelines, and to the
services of its proxy, or to the named one. The name of the proxy is proxy, and that of
the server for programs is serve. It says whether their set-up keeps the promise:
eviction and persistence of Redis; commits, isolation and standbys of PostgreSQL;
replicas, retention, groups and transactions of Kafka; files, targets, tables,
places of parked messages, versions, permissions, clocks; the address, certificate and
callers of serve. It reads nothing from a source, writes nothing to a sink and changes
nothing. The service of a proxy gets a HEAD request.

Each finding is fine, a notice, a warning (the promise holds, with the stated
exception) or broken (the promise does not hold). The exit status is 3 if there is
a warning or a broken finding, and 1 if a store or pipeline could not be checked.`,
		Args: term.Arguments(1, 2, term.MissingFile, "FILE and NAME"),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			all := toExamine(a, args, &wrong)
			if err := wrong.Err(); err != nil {
				return err
			}
			return all.examine(cmd.Context(), a, args[0])
		}),
	}
}

// examinable is what doctor examines.
type examinable struct {
	conf      *config.File
	stores    []*config.Store
	pipelines []*config.Pipeline
	proxy     bool
	serve     bool
}

func toExamine(a *term.App, args []string, p *term.Problems) (all examinable) {
	if len(args) == 0 {
		return all // another flag was wrong too, and the parser has reported it
	}
	conf := open.ConfigFor(a, args[0], func(conf *config.File) (string, bool) {
		if len(args) == 1 {
			return "", false
		}
		_, store := conf.Store(args[1])
		return args[1], store
	}, p)
	if conf == nil {
		return all
	}
	all.conf = conf
	if len(args) == 1 {
		all.stores, all.pipelines, all.proxy, all.serve = conf.Stores, conf.Pipelines, conf.Proxy != nil, conf.Serve != nil
		return all
	}
	names := append(conf.StoreNames(), conf.PipelineNames()...)
	if conf.Proxy != nil {
		names = append(names, config.ProxyName)
	}
	if conf.Serve != nil {
		names = append(names, config.ServeName)
	}
	pipeline, isPipeline := conf.Pipeline(args[1])
	_, isStore := conf.Store(args[1])
	switch {
	case isStore:
		all.stores = conf.Stack(args[1])
	case isPipeline:
		all.pipelines = []*config.Pipeline{pipeline}
	case conf.Proxy != nil && args[1] == config.ProxyName:
		all.proxy = true
	case conf.Serve != nil && args[1] == config.ServeName:
		all.stores, all.serve = conf.Stack(conf.Serve.Store.Name), true
	default:
		p.Addf("%s: %s has no such store or pipeline: %s", args[1], conf.Name, schema.OneOf(args[1], names))
	}
	return all
}

// reports examines each store, then each pipeline, and then the proxy and the section "serve".
func (e *examinable) reports(ctx context.Context, a *term.App, file string) iter.Seq[*config.Examination] {
	return func(yield func(*config.Examination) bool) {
		bad := map[*config.Store]bool{}
		for _, s := range e.stores {
			report := app.Examine(ctx, e.conf, s, a.Patience)
			report.Err = open.Advise(ctx, e.conf, serverOf(e.conf, s), report.Err)
			bad[s] = report.Err != nil || report.Breaks()
			if !yield(report) {
				return
			}
		}
		for _, p := range e.pipelines {
			report := app.ExaminePipeline(ctx, e.conf, p, a.Patience)
			if !bad[e.conf.Decider(p.Store.Name)] {
				open.ExamineScope(ctx, a, file, report)
			}
			if !yield(report) {
				return
			}
		}
		if e.proxy && !yield(proxy.Examine(ctx, e.conf, a.Patience)) {
			return
		}
		if e.serve {
			yield(examineServe(ctx, e.conf, a.Patience))
		}
	}
}

// examine prints all reports. If something cannot be checked, it continues with the rest.
func (e *examinable) examine(ctx context.Context, a *term.App, file string) error {
	var failures []error
	count := map[doctor.Severity]int{}
	for report := range e.reports(ctx, a, file) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
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
	what := []string{term.Plural(len(e.stores), "store")}
	if len(e.pipelines) > 0 {
		what = append(what, term.Plural(len(e.pipelines), "pipeline"))
	}
	if e.proxy {
		what = append(what, "the proxy")
	}
	if e.serve {
		what = append(what, "serve")
	}
	a.Note("%s: %d fine, %d to note, %d with a warning, %d broken", strings.Join(what, " and "),
		count[doctor.Fine], count[doctor.Notice], count[doctor.Warning], count[doctor.Broken])
	switch {
	case len(failures) > 0:
		return errors.Join(failures...)
	case count[doctor.Warning]+count[doctor.Broken] > 0:
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
	switch {
	case r.Pipeline != nil:
		line.Pipeline = r.Name()
	case r.Proxy != nil, r.Serve != nil:
		line.Service = r.Name()
	default:
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
	return a.PrintJSON(findingLine{Store: line.Store, Pipeline: line.Pipeline, Service: line.Service, Kind: line.Kind, Error: a.Redact(term.PlainText(term.InOneLine(r.Err).Error()))})
}
