// Package migratecmd has the verb migrate, which creates and changes the tables of a store.
package migratecmd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/open"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/store/pgstore"
)

// migrateFlags are the flags that all migrate verbs share.
type migrateFlags struct {
	open.StoreFlags
	dsn dsnFlags
}

// New returns the verb migrate.
func New(a *term.App) *cobra.Command {
	m := &migrateFlags{StoreFlags: open.StoreFlags{App: a}}
	cmd := term.Group(a, &cobra.Command{
		Use:   "migrate VERB (--config FILE --store-name NAME | --dsn-env NAME)",
		Short: "Create the tables of a PostgreSQL store",
		Example: `semel migrate up --config semel.yaml --store-name db
semel migrate status --dsn-env DATABASE_URL
semel migrate sql --config semel.yaml --store-name db > schema.sql`,
		Long: `Creates the tables of a PostgreSQL store in numbered steps, and lists the steps.
Programs that use the store need no right to create tables.

A configuration names the store. For a program that uses the library, --dsn-env
names the environment variable with the address of the database, and --schema,
--prefix, --cleanup, --message-age, --partitions, --keep-ids and --keep-origin
have the values of pgstore.MigrateOptions.`,
	})
	m.AddConfig(cmd)
	m.dsn.add(cmd)
	cmd.AddCommand(
		m.verb(&cobra.Command{
			Use:   "up",
			Short: "Apply the missing steps",
			Example: `semel migrate up --config semel.yaml --store-name db
semel migrate up --dsn-env DATABASE_URL --schema public --prefix semel_`,
			Long: `Applies the missing steps in order, each in its own transaction. It is safe to run
it concurrently, and to kill it and run it again. It fails if the server does not
answer, or a lock is not free, within 30 seconds.`,
		}, m.up),
		m.verb(&cobra.Command{
			Use:   "status",
			Short: "List the steps, and when each was applied",
			Example: `semel migrate status --config semel.yaml --store-name db
semel migrate status --dsn-env DATABASE_URL --json`,
			Long: `Lists the steps that this program knows, and when each was applied. An applied step
whose table was renamed or dropped since says so. The exit status is 3 if a step or a
table is missing.`,
		}, m.status),
		m.verb(&cobra.Command{
			Use:   "sql",
			Short: "Print the steps as SQL",
			Example: `semel migrate sql --config semel.yaml --store-name db
semel migrate sql --dsn-env DATABASE_URL > schema.sql`,
			Long: `Prints all steps as a script for psql or another tool, without connecting. A step
that was applied before fails as a whole and changes nothing.`,
		}, m.sql),
	)
	return cmd
}

// verb completes a verb that works on the schema of the named store.
func (m *migrateFlags) verb(cmd *cobra.Command, run func(*cobra.Command, config.Tables) error) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 && m.File == "" && m.dsn.env == "" {
			return term.Usagef("unexpected argument %q: write --config %s", args[0], args[0])
		}
		return term.NoArguments(cmd, args)
	}
	cmd.RunE = m.Checked(func(cmd *cobra.Command, _ []string, wrong term.Problems) error {
		var tables config.Tables
		found := false
		switch flag := m.dsn.given(cmd); {
		case m.dsn.env != "":
			found = m.dsn.find(&m.StoreFlags, cmd.Name() == "sql", &wrong)
		case flag != "":
			wrong.Addf("--%s is for --dsn-env: in a configuration the store has this field", flag)
		case m.File == "" && m.Name == "":
			if !slices.ContainsFunc(wrong, func(text string) bool { return strings.Contains(text, "--config") }) {
				wrong.Addf("--config FILE is missing: name the configuration, and the store with --store-name NAME, or a database with --dsn-env NAME")
			}
		default:
			found = m.Find(&wrong)
		}
		if found {
			var err error
			if tables, err = m.Conf.Tables(m.Found.Name, m.Patience); err != nil {
				wrong.Addf("--store-name %v", err)
			}
		}
		if err := wrong.Err(); err != nil {
			return err
		}
		return run(cmd, tables)
	})
	return cmd
}

// stepLine is one step in JSON.
type stepLine struct {
	Version int    `json:"version"`
	Name    string `json:"name"`
	Applied string `json:"applied,omitempty"`
	Newer   bool   `json:"newer,omitempty"`
	// Missing is what the step has created and is not there.
	Missing []string `json:"missing,omitempty"`
}

func (m *migrateFlags) up(cmd *cobra.Command, tables config.Tables) error {
	applied, err := tables.Migrate(cmd.Context())
	for _, step := range applied {
		if m.JSON {
			if err := m.PrintJSON(newStepLine(step)); err != nil {
				return err
			}
			continue
		}
		if step.Version == 0 {
			m.Note("added %s to the table of keys", step.Name)
			continue
		}
		m.Note("applied %d: %s", step.Version, step.Name)
	}
	switch {
	case err != nil:
		return m.failed(cmd.Context(), "migrate %s: the applied steps stay; run the same command again to resume: %w", err)
	case len(applied) == 0:
		m.Note("nothing to apply: %s is up to date", m.Shown())
	}
	return nil
}

// failed adds the store, the error and a remedy to a message.
func (m *migrateFlags) failed(ctx context.Context, format string, err error) error {
	return fmt.Errorf(format, m.Shown(), term.InOneLine(open.Advise(ctx, m.Conf, m.Conf.Stack(m.Found.Name), err)))
}

func (m *migrateFlags) status(cmd *cobra.Command, tables config.Tables) error {
	steps, err := tables.Status(cmd.Context())
	if err != nil {
		return m.failed(cmd.Context(), "status of %s: %w", err)
	}
	missing, newer, lost := 0, 0, 0
	for _, step := range steps {
		lost += len(step.Missing)
		if step.Applied.IsZero() {
			missing++
		}
		if step.Newer {
			newer++
		}
		if err := m.printStep(step); err != nil {
			return err
		}
	}
	if newer > 0 {
		m.Note("a newer version of semel applied %s that this program does not know: %s", term.Plural(newer, "step"), config.UpgradeProgram)
	}
	if missing > 0 {
		m.Note("%s to apply: semel migrate up", term.Plural(missing, "step"))
	}
	if lost > 0 {
		m.Note("what applied steps have created was renamed or dropped since: %s", (&pgstore.MissingError{Version: 1}).Remedy())
	}
	if missing > 0 || lost > 0 {
		return term.ErrFound
	}
	return nil
}

func (m *migrateFlags) printStep(step config.Migration) error {
	if m.JSON {
		return m.PrintJSON(newStepLine(step))
	}
	when := "missing"
	if !step.Applied.IsZero() {
		when = term.DisplayTime(step.Applied)
	}
	lost := ""
	if step.Missing != nil {
		lost = ", without " + strings.Join(step.Missing, ", ")
	}
	_, err := fmt.Fprintf(m.Stdout, "%4d  %-24s  %s%s\n", step.Version, when, step.Name, lost)
	return err
}

func newStepLine(step config.Migration) stepLine {
	return stepLine{step.Version, step.Name, term.JSONTime(step.Applied), step.Newer, step.Missing}
}

func (m *migrateFlags) sql(_ *cobra.Command, tables config.Tables) error {
	script, err := tables.SQL()
	if err != nil {
		return err
	}
	_, err = m.Stdout.Write([]byte(script))
	return err
}
