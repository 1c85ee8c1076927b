package cli

import (
	"github.com/spf13/cobra"
)

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
				if near, ok := nearest(shell, cmd.ValidArgs); ok {
					return usagef("unknown shell %q: did you mean %s?", shell, near)
				}
				return usagef("unknown shell %q: bash, zsh and fish are known", shell)
			}
		}),
	}
}
