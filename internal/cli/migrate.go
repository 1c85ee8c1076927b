package cli

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/kind/postgres"
	"github.com/semel-dev/semel/store/pgstore"
)

// migrateFlags are the flags that all migrate verbs share.
type migrateFlags struct {
	*app
	storeFlags
}

func newMigrateCommand(a *app) *cobra.Command {
	m := &migrateFlags{app: a}
	cmd := newGroup(a, &cobra.Command{
		Use:   "migrate VERB --config FILE --store-name NAME",
		Short: "Make and change the tables of a store in PostgreSQL",
		Example: `semel migrate up --config semel.yaml --store-name db
semel migrate status --config semel.yaml --store-name db
semel migrate sql --config semel.yaml --store-name db > schema.sql`,
		Long: `Makes the tables that a store in PostgreSQL needs, in numbered steps, and tells
which are there. Programs that use the store need no right to make tables.`,
	})
	m.addConfig(cmd)
	cmd.AddCommand(
		m.verb(&cobra.Command{
			Use:   "up",
			Short: "Apply the steps that are missing",
			Example: `semel migrate up --config semel.yaml --store-name db
semel migrate up --config semel.yaml --store-name db --json`,
			Long: `Applies the steps that the database does not have yet, in order, each in a
transaction of its own. It may run in many places at once, and be killed and run
again. It gives up when the server does not answer within 30 seconds, or a lock
that a step needs is not free within 30 seconds.`,
		}, m.up),
		m.verb(&cobra.Command{
			Use:   "status",
			Short: "Tell which steps are applied",
			Example: `semel migrate status --config semel.yaml --store-name db
semel migrate status --config semel.yaml --store-name db --json`,
			Long: `Lists the steps that this program knows, and when each was applied. The exit
status is 3 if one is missing.`,
		}, m.status),
		m.verb(&cobra.Command{
			Use:   "sql",
			Short: "Print the steps as SQL",
			Example: `semel migrate sql --config semel.yaml --store-name db
semel migrate sql --config semel.yaml --store-name db > schema.sql`,
			Long: `Prints all steps as a script for psql or another tool, for those who do not let
programs change schemas. It connects to nothing. A step that was applied before
fails as a whole and changes nothing.`,
		}, m.sql),
	)
	return cmd
}

// verb completes a verb that works on the schema of the named store.
func (m *migrateFlags) verb(cmd *cobra.Command, run func(*cobra.Command, *postgres.Schema) error) *cobra.Command {
	cmd.Args = noArguments
	cmd.RunE = m.checked(func(cmd *cobra.Command, _ []string, wrong problems) error {
		var schema *postgres.Schema
		switch {
		case m.file == "" && m.name == "" && len(wrong) == 0:
			wrong.addf("--config FILE is missing: name the configuration, and the store with --store-name NAME")
		case m.find(m.app, &wrong):
			var err error
			if schema, err = postgres.NewSchema(m.conf, m.found.Name); err != nil {
				wrong.addf("--store-name %v", err)
			} else {
				schema.Patience = m.patience
			}
		}
		if err := wrong.err(); err != nil {
			return err
		}
		return run(cmd, schema)
	})
	return cmd
}

// stepLine is one step in JSON.
type stepLine struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	Applied string `json:"applied,omitempty"`
}

func (m *migrateFlags) up(cmd *cobra.Command, schema *postgres.Schema) error {
	applied, err := schema.Migrate(cmd.Context())
	for _, step := range applied {
		if m.asJSON {
			if err := m.printJSON(newStepLine(step)); err != nil {
				return err
			}
			continue
		}
		m.note("applied %d: %s", step.Version, step.Name)
	}
	switch {
	case err != nil:
		return m.failed(cmd.Context(), "migrate %s: what was applied stays, and the same command goes on: %w", err)
	case len(applied) == 0:
		m.note("nothing to apply: %s is up to date", m.shown())
	}
	return nil
}

// failed adds the store, the error and a remedy to a message.
func (m *migrateFlags) failed(ctx context.Context, format string, err error) error {
	return advised(ctx, m.conf.Stack(m.found.Name), fmt.Errorf(format, m.shown(), inOneLine(err)))
}

func (m *migrateFlags) status(cmd *cobra.Command, schema *postgres.Schema) error {
	steps, err := schema.Status(cmd.Context())
	if err != nil {
		return m.failed(cmd.Context(), "status of %s: %w", err)
	}
	missing := 0
	for _, step := range steps {
		if step.Applied.IsZero() {
			missing++
		}
		if err := m.printStep(step); err != nil {
			return err
		}
	}
	if missing > 0 {
		m.note("%s to apply: semel migrate up", plural(missing, "step"))
		return errFound
	}
	return nil
}

func (m *migrateFlags) printStep(step pgstore.Migration) error {
	if m.asJSON {
		return m.printJSON(newStepLine(step))
	}
	when := "missing"
	if !step.Applied.IsZero() {
		when = displayTime(step.Applied)
	}
	_, err := fmt.Fprintf(m.stdout, "%4d  %-24s  %s\n", step.Version, when, step.Name)
	return err
}

func newStepLine(step pgstore.Migration) stepLine {
	line := stepLine{Version: step.Version, Name: step.Name}
	if !step.Applied.IsZero() {
		line.Applied = step.Applied.UTC().Format(time.RFC3339Nano)
	}
	return line
}

func (m *migrateFlags) sql(_ *cobra.Command, schema *postgres.Schema) error {
	script, err := schema.SQL()
	if err != nil {
		return err
	}
	_, err = m.stdout.Write([]byte(script))
	return err
}
