package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/diagnose"
)

// unquoteUsages removes the quotes that mark value names from the flag
// descriptions in shells. Only the flag list in the help uses them.
func unquoteUsages(cmd *cobra.Command) {
	plain := func(flag *pflag.Flag) { flag.Usage = strings.ReplaceAll(flag.Usage, "`", "") }
	cmd.LocalFlags().VisitAll(plain)
	for _, child := range cmd.Commands() {
		unquoteUsages(child)
	}
}

func newCompletionCommand(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes verbs and flags in a shell",
		Example: `semel completion bash > semel.bash
semel completion zsh > _semel
semel completion fish > semel.fish`,
		Long: `Prints a completion script. Load it in the way of your shell. bash: source it, or
put it into the bash-completion directory. zsh: a file _semel in a directory of
$fpath. fish: ~/.config/fish/completions/semel.fish.`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: a.Plain(func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return term.Usagef("name one shell: bash, zsh or fish")
			}
			root := cmd.Root()
			switch shell := args[0]; shell {
			case "bash":
				return root.GenBashCompletionV2(a.Stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.Stdout)
			case "fish":
				return root.GenFishCompletion(a.Stdout, true)
			default:
				if near, ok := diagnose.Nearest(shell, cmd.ValidArgs); ok {
					return term.Usagef("unknown shell %q: did you mean %s?", shell, near)
				}
				return term.Usagef("unknown shell %q: bash, zsh and fish are known", shell)
			}
		}),
	}
}
