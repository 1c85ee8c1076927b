// Package cli is the user interface of the program semel: commands, flags,
// messages and exit statuses. The work is done in the packages below it.
package cli

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/dedup"
)

// Main runs the program with the arguments after its name and returns its exit
// status. It blocks until the verb is done. When ctx ends, the verb drains, and
// the status says that it was interrupted. Only data goes to stdout; messages go
// to stderr. env looks up environment variables. kinds are the kinds of sources,
// sinks and stores that a configuration can name.
func Main(ctx context.Context, kinds *config.Kinds, args []string, stdin io.Reader, stdout, stderr io.Writer, env func(name string) string) (status int) {
	a := &term.App{
		Kinds: kinds,
		Stdin: stdin, Stdout: term.PipeWriter{Writer: stdout}, Stderr: stderr, Env: env,
		Args: args, Patience: 30 * time.Second, Redact: func(text string) string { return text },
		Interruptible: func(r io.Reader) io.Reader { return dedup.Interruptible(ctx, r) },
	}
	a.LookAtTerminal()
	defer func() {
		if p := recover(); p != nil {
			a.Complain("semel", fmt.Sprintf("internal error: %v: please report this with the command that led to it", p))
			if env("SEMEL_DEBUG") != "" {
				fmt.Fprintf(stderr, "%s", debug.Stack())
			}
			status = term.ExitFailed
		}
	}()
	if len(args) > 0 && (args[0] == "--version" || args[0] == "-v") {
		args = slices.Concat([]string{"version"}, args[1:]) // as people ask most programs
		a.Args = args
	}
	root := NewCommand(a)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(a.Stdout)
	root.SetErr(stderr)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		unquoteUsages(root)
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = a.HelpErr
	}
	return a.Report(ctx, cmd.CommandPath(), err)
}
