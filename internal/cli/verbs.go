//go:build !files

package cli

import (
	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/auditcmd"
	"github.com/semel-dev/semel/internal/cli/dedupcmd"
	"github.com/semel-dev/semel/internal/cli/keyscmd"
	"github.com/semel-dev/semel/internal/cli/parkedcmd"
	"github.com/semel-dev/semel/internal/cli/pipelinecmd"
	"github.com/semel-dev/semel/internal/cli/proxycmd"
	"github.com/semel-dev/semel/internal/cli/servercmd"
	"github.com/semel-dev/semel/internal/cli/term"
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
		{Title: "Pipelines", Verbs: []*cobra.Command{
			pipelinecmd.NewInit(a),
			withEnvFile(a, pipelinecmd.NewLint(a)),
			withEnvFile(a, pipelinecmd.NewExplain(a)),
			withEnvFile(a, pipelinecmd.NewTest(a)),
			withEnvFile(a, pipelinecmd.NewDryRun(a)),
			withEnvFile(a, servercmd.NewDoctor(a)),
			withEnvFile(a, servercmd.NewMigrate(a)),
			withEnvFile(a, pipelinecmd.NewRun(a)),
			withEnvFile(a, servercmd.NewStatus(a)),
		}},
		{Title: "HTTP", Verbs: []*cobra.Command{
			withEnvFile(a, proxycmd.New(a)),
			verifycmd.New(a),
		}},
		{Title: "Keys and messages", Verbs: []*cobra.Command{
			withEnvFile(a, keyscmd.New(a)),
			withEnvFile(a, parkedcmd.New(a)),
			withEnvFile(a, whycmd.New(a)),
			auditcmd.New(a),
		}},
		{Title: "Servers", Verbs: []*cobra.Command{
			withEnvFile(a, pipelinecmd.NewOutbox(a)),
			withEnvFile(a, servercmd.NewKafka(a)),
		}},
		{Title: "This program", Verbs: []*cobra.Command{
			newCompletionCommand(a),
			pipelinecmd.NewSchema(a),
			newVersionCommand(a),
		}},
	}
}
