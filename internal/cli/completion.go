package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semel-dev/semel/internal/schema"
)

// completeValues makes shells complete a flag with these values and no files.
func completeValues(cmd *cobra.Command, flag string, values ...string) {
	complete(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// completeDirs makes shells complete a flag with directories.
func completeDirs(cmd *cobra.Command, flag string) {
	complete(cmd, flag, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
}

// complete panics if the flag does not exist. Every run would show this.
func complete(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(fmt.Sprintf("completion of --%s: %v", flag, err))
	}
}

// unquoteUsages removes the quotes that mark value names from the flag
// descriptions in shells. Only the flag list in the help uses them.
func unquoteUsages(cmd *cobra.Command) {
	plain := func(flag *pflag.Flag) { flag.Usage = strings.ReplaceAll(flag.Usage, "`", "") }
	cmd.LocalFlags().VisitAll(plain)
	for _, child := range cmd.Commands() {
		unquoteUsages(child)
	}
}

func newCompletionCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a script that completes verbs and flags in a shell",
		Example: `semel completion bash > semel.bash
semel completion zsh > _semel
semel completion fish > semel.fish`,
		Long: `Prints a completion script. Load it where your shell looks for such scripts:
bash: source it, or put it into the bash-completion directory; zsh: a directory
of $fpath, named _semel; fish: ~/.config/fish/completions/semel.fish.`,
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: a.plain(func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name one shell: bash, zsh or fish")
			}
			root := cmd.Root()
			switch shell := args[0]; shell {
			case "bash":
				return root.GenBashCompletionV2(a.stdout, true)
			case "zsh":
				return root.GenZshCompletion(a.stdout)
			case "fish":
				return root.GenFishCompletion(a.stdout, true)
			default:
				if near, ok := schema.Nearest(shell, cmd.ValidArgs); ok {
					return usagef("unknown shell %q: did you mean %s?", shell, near)
				}
				return usagef("unknown shell %q: bash, zsh and fish are known", shell)
			}
		}),
	}
}
