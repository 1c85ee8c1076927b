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
)

// thisBuild is the part of the help that says what this build has; here that is everything.
const thisBuild = ""

// verbs returns the verbs of the program.
func verbs(a *term.App) []*cobra.Command {
	return []*cobra.Command{
		dedupcmd.New(a),
		withEnvFile(a, pipelinecmd.NewRun(a)),
		withEnvFile(a, proxycmd.New(a)),
		withEnvFile(a, pipelinecmd.NewOutbox(a)),
		withEnvFile(a, servercmd.NewStatus(a)),
		withEnvFile(a, parkedcmd.New(a)),
		withEnvFile(a, pipelinecmd.NewDryRun(a)),
		withEnvFile(a, pipelinecmd.NewTest(a)),
		withEnvFile(a, keyscmd.New(a)),
		auditcmd.New(a),
		withEnvFile(a, servercmd.NewKafka(a)),
		pipelinecmd.NewInit(a),
		withEnvFile(a, pipelinecmd.NewLint(a)),
		withEnvFile(a, pipelinecmd.NewExplain(a)),
		withEnvFile(a, pipelinecmd.NewTrace(a)),
		withEnvFile(a, servercmd.NewDoctor(a)),
		withEnvFile(a, servercmd.NewMigrate(a)),
		pipelinecmd.NewSchema(a),
		verifycmd.New(a),
	}
}
