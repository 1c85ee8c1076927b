package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/wiring"
)

// findingLine is one finding in JSON, or the error of a store that could not be
// looked at.
type findingLine struct {
	Store    string `json:"store"`
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
stands on, and says what of their set-up keeps the promise and what does not:
eviction and persistence of Redis, commits, isolation and standbys of
PostgreSQL, versions, permissions, clocks. Nothing is changed.

Each finding is fine, a notice, a warning (the promise holds with the exception
that is named) or broken (it does not hold). The exit status is 3 if there is a
warning or something is broken, and 1 if a store could not be looked at.`,
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
			stores, conf := a.storesToExamine(args, &wrong)
			if err := wrong.err(); err != nil {
				return err
			}
			return a.examine(cmd.Context(), conf, stores)
		}),
	}
}

func (a *app) storesToExamine(args []string, p *problems) ([]*config.Store, *config.File) {
	if len(args) == 0 {
		return nil, nil // a flag was wrong as well, and the parser has said so
	}
	conf := a.readConfig(args[0], p)
	switch {
	case conf == nil:
		return nil, nil
	case len(args) == 1:
		return conf.Stores, conf
	}
	if _, ok := conf.Store(args[1]); !ok {
		p.addf("%s: %s has no such store: %s", args[1], conf.Name, config.OneOf(args[1], conf.StoreNames()))
	}
	return conf.Stack(args[1]), conf
}

// examine reports on each store in turn. What cannot be looked at does not keep
// the others from it.
func (a *app) examine(ctx context.Context, conf *config.File, stores []*config.Store) error {
	var failures []error
	count := map[semel.Severity]int{}
	for _, s := range stores {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		report := a.examineOne(ctx, conf, s)
		for _, finding := range report.Findings {
			count[finding.Severity]++
		}
		if report.Err != nil {
			failures = append(failures, fmt.Errorf("%s: %w", s.Name, inOneLine(report.Err)))
		}
		if err := a.printReport(report); err != nil {
			return err
		}
	}
	a.note("%s: %d fine, %d to note, %d with a warning, %d broken", plural(len(stores), "store"),
		count[semel.Fine], count[semel.Notice], count[semel.Warning], count[semel.Broken])
	switch {
	case len(failures) > 0:
		return errors.Join(failures...)
	case count[semel.Warning]+count[semel.Broken] > 0:
		return errFound
	}
	return nil
}

func (a *app) examineOne(ctx context.Context, conf *config.File, s *config.Store) wiring.Report {
	patient, cancel := context.WithTimeout(ctx, a.patience)
	defer cancel()
	return wiring.Examine(patient, conf, s)
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (a *app) printReport(r wiring.Report) error {
	if a.asJSON {
		return a.printReportJSON(r)
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s (%s)\n", r.Store.Name, r.Store.Spec.Kind())
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

func (a *app) printReportJSON(r wiring.Report) error {
	line := findingLine{Store: r.Store.Name, Kind: r.Store.Spec.Kind()}
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
	return a.printJSON(findingLine{Store: line.Store, Kind: line.Kind, Error: a.redact(plainText(inOneLine(r.Err).Error()))})
}
