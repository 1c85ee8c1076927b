package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/config"
)

// lintLine is one finding in JSON.
type lintLine struct {
	File     string `json:"file"`
	Line     int    `json:"line,omitempty"`
	Column   int    `json:"column,omitempty"`
	Severity string `json:"severity"`
	Pipeline string `json:"pipeline,omitempty"`
	Subject  string `json:"subject"`
	Found    string `json:"found"`
	Risk     string `json:"risk,omitempty"`
	Cost     string `json:"cost"`
	Remedy   string `json:"remedy"`
}

func newLintCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "lint FILE...",
		Short: "Say what is wrong with a configuration, and what weakens its promise",
		Example: `semel lint pipelines.yaml
semel lint pipelines.yaml --json`,
		Long: `Reads configurations and says, without connecting to anything, what is wrong with
them and what weakens the promise of their pipelines: a window that is shorter than
messages can come again, a store that cannot do what is asked of it, keys that are
not stable, settings by which messages get lost.

Each finding is a line with its place: a notice (worth knowing), a warning (the
promise holds with the exception that is named) or broken (it does not hold, and
the pipeline does not run). The exit status is 3 if there is a warning or something
is broken, and 2 if a file cannot be read as a configuration.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("FILE is missing: name the configuration")
			}
			return nil
		},
		RunE: a.checked(func(_ *cobra.Command, args []string, wrong problems) error {
			count := map[semel.Severity]int{}
			for _, name := range args {
				conf := a.readConfig(name, &wrong)
				if conf == nil {
					continue
				}
				for _, finding := range conf.Lint() {
					count[finding.Severity]++
					if err := a.printFinding(&finding); err != nil {
						return err
					}
				}
			}
			if err := wrong.err(); err != nil {
				return err
			}
			a.note("%s: %d to note, %d with a warning, %d broken", plural(len(args), "file"), count[semel.Notice], count[semel.Warning], count[semel.Broken])
			if count[semel.Warning]+count[semel.Broken] > 0 {
				return errFound
			}
			return nil
		}),
	}
}

func (a *app) printFinding(f *config.Finding) error {
	if a.asJSON {
		return a.printJSON(lintLine{
			f.Place.File, f.Place.Line, f.Place.Column, f.Severity.String(), f.Pipeline, f.Subject,
			a.redact(f.Found), f.Risk.String(), a.redact(f.Cost), a.redact(f.Remedy),
		})
	}
	line := fmt.Sprintf("%s: %s: %s: %s: %s: %s", f.Place, f.Severity, f.Subject, f.Found, f.Cost, f.Remedy)
	_, err := fmt.Fprintln(a.stdout, oneLine(a.redact(line)))
	return err
}

func newSchemaCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of configurations, for editors",
		Example: `semel schema > semel.schema.json
semel schema | grep -c description`,
		Long: `Prints the JSON Schema (draft 2020-12) of a configuration. Editors complete and
check a file by it that begins with

  # yaml-language-server: $schema=./semel.schema.json`,
		Args: noArguments,
		RunE: a.plain(func(*cobra.Command, []string) error {
			schema, err := a.kinds.JSONSchema()
			if err != nil {
				return err
			}
			_, err = a.stdout.Write(append(schema, '\n'))
			return err
		}),
	}
}
