//go:build !files

package cli

import (
	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/auditcmd"
	"github.com/semel-dev/semel/internal/cli/configcmd"
	"github.com/semel-dev/semel/internal/cli/dedupcmd"
	"github.com/semel-dev/semel/internal/cli/doctorcmd"
	"github.com/semel-dev/semel/internal/cli/kafkacmd"
	"github.com/semel-dev/semel/internal/cli/keyscmd"
	"github.com/semel-dev/semel/internal/cli/migratecmd"
	"github.com/semel-dev/semel/internal/cli/oncecmd"
	"github.com/semel-dev/semel/internal/cli/parkedcmd"
	"github.com/semel-dev/semel/internal/cli/proxycmd"
	"github.com/semel-dev/semel/internal/cli/runcmd"
	"github.com/semel-dev/semel/internal/cli/servecmd"
	"github.com/semel-dev/semel/internal/cli/statuscmd"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/cli/trialcmd"
	"github.com/semel-dev/semel/internal/cli/uicmd"
	"github.com/semel-dev/semel/internal/cli/verifycmd"
	"github.com/semel-dev/semel/internal/cli/whycmd"
)

// thisBuild is the part of the help that says what this build has; here that is everything.
const thisBuild = ""

// verbs returns the verbs of the program.
func verbs(a *term.App) []term.VerbGroup {
	return []term.VerbGroup{
		{Title: "Files", Verbs: []*cobra.Command{
			dedupcmd.New(a),
		}},
		{Title: "Commands", Verbs: []*cobra.Command{withEnvFile(a, oncecmd.New(a))}},
		{Title: "Pipelines", Verbs: []*cobra.Command{
			configcmd.NewInit(a),
			withEnvFile(a, configcmd.NewLint(a)),
			withEnvFile(a, configcmd.NewExplain(a)),
			withEnvFile(a, trialcmd.NewTest(a)),
			withEnvFile(a, trialcmd.NewDryRun(a)),
			withEnvFile(a, doctorcmd.New(a)),
			withEnvFile(a, migratecmd.New(a)),
			withEnvFile(a, runcmd.NewRun(a)),
			withEnvFile(a, statuscmd.New(a)),
			withEnvFile(a, uicmd.New(a)),
		}},
		{Title: "HTTP", Verbs: []*cobra.Command{
			withEnvFile(a, proxycmd.New(a)),
			withEnvFile(a, servecmd.New(a)),
			verifycmd.New(a),
		}},
		{Title: "Keys and messages", Verbs: []*cobra.Command{
			withEnvFile(a, keyscmd.New(a)),
			withEnvFile(a, parkedcmd.New(a)),
			withEnvFile(a, whycmd.New(a)),
			auditcmd.New(a),
		}},
		{Title: "Servers", Verbs: []*cobra.Command{
			withEnvFile(a, runcmd.NewOutbox(a)),
			withEnvFile(a, kafkacmd.New(a)),
		}},
		{Title: "This program", Verbs: []*cobra.Command{
			newCompletionCommand(a),
			configcmd.NewSchema(a),
			newVersionCommand(a),
		}},
	}
}
