//go:build files

package cli

import (
	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/auditcmd"
	"github.com/semel-dev/semel/internal/cli/dedupcmd"
	"github.com/semel-dev/semel/internal/cli/keyscmd"
	"github.com/semel-dev/semel/internal/cli/oncecmd"
	"github.com/semel-dev/semel/internal/cli/term"
)

// thisBuild is the part of the help that says what this build has.
const thisBuild = "\n\nThis build has the verbs for files only. Build all verbs with go install ./cmd/semel."

// verbs returns the verbs that need no server. A build of them compiles no client of a
// broker or a database, so a first build takes a third of the time.
func verbs(a *term.App) []term.VerbGroup {
	var missing []*cobra.Command
	for _, name := range []string{"run", "proxy", "outbox", "status", "ui", "parked", "dry-run", "test", "kafka", "init", "lint", "explain", "doctor", "migrate", "schema", "verify", "why"} {
		missing = append(missing, &cobra.Command{
			Use:                name,
			Long:               "This build has the verbs for files only, and " + name + " is not one of them.\nBuild all verbs with go install ./cmd/semel.",
			Hidden:             true,
			DisableFlagParsing: true,
			RunE: func(*cobra.Command, []string) error {
				return term.Usagef("this build has the verbs for files only, and %s is not one of them. Build all verbs with go install ./cmd/semel", name)
			},
		})
	}
	return []term.VerbGroup{
		{Title: "Files", Verbs: []*cobra.Command{dedupcmd.New(a)}},
		{Title: "Commands", Verbs: []*cobra.Command{withEnvFile(a, oncecmd.New(a))}},
		{Title: "Keys and messages", Verbs: []*cobra.Command{withEnvFile(a, keyscmd.New(a)), auditcmd.New(a)}},
		{Title: "This program", Verbs: append(missing, newCompletionCommand(a), newVersionCommand(a))},
	}
}
