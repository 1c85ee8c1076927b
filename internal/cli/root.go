package cli

import (
	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
)

// NewCommand builds the command tree for one run.
func NewCommand(a *term.App) *cobra.Command {
	root := term.Group(a, &cobra.Command{
		Use:   "semel VERB",
		Short: "Make messages take effect once",
		Long: `semel makes a message take effect once, although every reliable system
delivers it more than once.` + thisBuild,
		Example: `semel dedup --key .event_id events.jsonl > clean.jsonl
semel keys stats --store ./seen
semel dedup --help`,
	})
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true

	flags := root.PersistentFlags()
	flags.BoolVar(&a.JSON, "json", false, "print listings and reports as JSON")
	flags.BoolVarP(&a.Quiet, "quiet", "q", false, "print errors only")
	flags.BoolVar(&a.NoColor, "no-color", false, "print without colors (as does NO_COLOR in the environment)")
	flags.BoolVar(&a.NoProgress, "no-progress", false, "print no progress")

	term.AddGroups(root, verbs(a))
	root.SetHelpCommand(newHelpCommand(a))
	root.SetFlagErrorFunc(a.FlagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.HelpErr = a.PrintHelp(cmd) })
	return root
}

// withEnvFile adds --env-file to a verb that reads configurations.
func withEnvFile(a *term.App, cmd *cobra.Command) *cobra.Command {
	cmd.PersistentFlags().StringVar(&a.EnvFile, "env-file", "", "`FILE` with lines NAME=VALUE for variables that the environment does not set")
	return cmd
}

func newHelpCommand(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:     "help [VERB...]",
		Short:   "Explain a verb",
		Example: "semel help dedup\nsemel help keys show",
		RunE: a.Plain(func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return term.UnknownVerb(topic, rest[0])
			}
			return a.PrintHelp(topic)
		}),
	}
}
