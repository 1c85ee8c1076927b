// Package configcmd has the verbs that write and describe a configuration, without
// connecting to its servers: init, lint, explain and schema.
package configcmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/schema"
)

// LintLine is one finding in JSON.
type LintLine struct {
	File     string `json:"file,omitempty"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Severity string `json:"severity"`
	Pipeline string `json:"pipeline,omitempty"`
	Subject  string `json:"subject,omitempty"`
	Found    string `json:"found"`
	Risk     string `json:"risk,omitempty"`
	Cost     string `json:"cost,omitempty"`
	Remedy   string `json:"remedy,omitempty"`
}

// severityError is the severity of a line with exit status 2.
const severityError = "error"

// NewLint returns the verb lint.
func NewLint(a *term.App) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lint FILE...",
		Short: "Find errors in a configuration, and settings that weaken its promise",
		Example: `semel lint pipelines.yaml
semel lint pipelines.yaml --no-env --json`,
		Long: `Checks configurations without connecting to anything. It prints errors, and
settings that weaken the promise of the pipelines: a window shorter than the time
in which messages can be delivered again, a store that cannot do what the pipeline
needs, unstable keys, settings that lose messages.

Each finding is a line with its position: a notice (worth knowing), a warning (the
promise holds, with the stated exception) or broken (the promise does not hold, and
the pipeline does not run). The exit status is 3 if there is a warning or a broken
finding, and 2 if a file is not a valid configuration. With --json the errors are lines,
too.

A variable that is not set is an error. With --no-env it stands for itself, and the
field that has it is not checked. --env-file names a file with variables.`,
		Args: term.Arguments(1, -1, term.MissingFile, ""),
		RunE: a.Checked(func(cmd *cobra.Command, args []string, wrong term.Problems) error {
			count := map[doctor.Severity]int{}
			var invalid []schema.Problem
			for _, name := range args {
				conf, problems := open.Check(a, name, &wrong)
				invalid = append(invalid, problems...)
				if conf == nil {
					continue
				}
				for _, finding := range append(conf.Lint(), scopesIn(cmd.Context(), a, name, conf)...) {
					if conf.HasPlaceholder(finding.Subject) {
						continue
					}
					count[finding.Severity]++
					if err := printFinding(a, &finding); err != nil {
						return err
					}
				}
			}
			if err := refuse(a, wrong, invalid); err != nil {
				return err
			}
			a.Note("%s: %d to note, %d with a warning, %d broken", term.Plural(len(args), "file"), count[doctor.Notice], count[doctor.Warning], count[doctor.Broken])
			if count[doctor.Warning]+count[doctor.Broken] > 0 {
				return term.ErrFound
			}
			return nil
		}),
	}
	open.AddNoEnv(a, cmd)
	return cmd
}

// refuse returns the problems of flags and of configurations as one error, or nil if there is
// none. With --json each is a line too.
func refuse(a *term.App, wrong term.Problems, invalid []schema.Problem) error {
	var lines []LintLine
	for _, text := range wrong {
		lines = append(lines, LintLine{Severity: severityError, Found: text})
	}
	for _, problem := range invalid {
		at := problem.Place
		lines = append(lines, LintLine{File: at.File, Line: at.Line, Column: at.Column, Severity: severityError, Found: problem.Text})
		wrong.Addf("%s", problem)
	}
	for _, line := range lines {
		if !a.JSON {
			break
		}
		if err := a.PrintJSON(line); err != nil {
			return err
		}
	}
	return wrong.Err()
}

// scopesIn returns the findings about scopes in the embedded stores of a configuration
// that can be read here. Lint does not connect to anything, so it looks into no other.
func scopesIn(ctx context.Context, a *term.App, name string, conf *config.File) (all []config.Finding) {
	for _, p := range conf.Pipelines {
		if decider := conf.Decider(p.Store.Name); decider == nil || decider.Spec.About().Directory == "" {
			continue
		}
		if found, err := open.ForeignScope(ctx, a, name, conf, p); err == nil && len(found) > 0 && found[0].Severity == doctor.Broken {
			all = append(all, found...)
		}
	}
	return all
}

func printFinding(a *term.App, f *config.Finding) error {
	if a.JSON {
		return a.PrintJSON(LintLine{
			f.Place.File, f.Place.Line, f.Place.Column, f.Severity.String(), f.Pipeline, f.Subject,
			a.Redact(f.Found), f.Risk.String(), a.Redact(f.Cost), a.Redact(f.Remedy),
		})
	}
	line := fmt.Sprintf("%s: %s: %s: %s: %s: %s", f.Place, f.Severity, f.Subject, f.Found, f.Cost, f.Remedy)
	_, err := fmt.Fprintln(a.Stdout, term.OneLine(a.Redact(line)))
	return err
}

// NewSchema returns the verb schema.
func NewSchema(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of configurations, for editors",
		Example: `semel schema > semel.schema.json
semel schema | grep -c description`,
		Long: `Prints the JSON Schema (draft 2020-12) of a configuration. An editor uses it to
complete and check a file that starts with

  # yaml-language-server: $schema=./semel.schema.json`,
		Args: term.NoArguments,
		RunE: a.Plain(func(*cobra.Command, []string) error {
			text, err := a.Kinds.JSONSchema()
			if err != nil {
				return err
			}
			_, err = a.Stdout.Write(append(text, '\n'))
			return err
		}),
	}
}
