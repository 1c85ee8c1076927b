package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// newRootCommand builds the command tree for one run.
func newRootCommand(a *app) *cobra.Command {
	root := newGroup(a, &cobra.Command{
		Use:   "semel VERB",
		Short: "Make messages take effect once",
		Long: `semel makes a message take effect once, although every reliable system
delivers it more than once.`,
		Example: `semel dedup --key .event_id events.jsonl > clean.jsonl
semel keys stats --store ./seen
semel dedup --help`,
	})
	root.SilenceErrors = true
	root.SilenceUsage = true
	root.CompletionOptions.DisableDefaultCmd = true

	flags := root.PersistentFlags()
	flags.BoolVar(&a.asJSON, "json", false, "print listings and reports as JSON")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print errors only")
	flags.BoolVar(&a.noColor, "no-color", false, "print without colors (as does NO_COLOR in the environment)")
	flags.BoolVar(&a.noProgress, "no-progress", false, "print no progress")

	root.AddCommand(
		newDedupCommand(a),
		newRunCommand(a),
		newParkedCommand(a),
		newDryRunCommand(a),
		newKeysCommand(a),
		newKafkaCommand(a),
		newInitCommand(a),
		newLintCommand(a),
		newExplainCommand(a),
		newDoctorCommand(a),
		newMigrateCommand(a),
		newSchemaCommand(a),
		newVersionCommand(a),
		newCompletionCommand(a),
	)
	root.SetHelpCommand(newHelpCommand(a))
	root.SetFlagErrorFunc(a.flagError)
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.helpErr = a.printHelp(cmd) })
	return root
}

// newGroup completes a command that only contains other verbs.
func newGroup(a *app, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = a.plain(func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return unknownVerb(cmd, args[0])
		}
		return a.printHelp(cmd)
	})
	return cmd
}

// noArguments refuses arguments to a verb that takes none.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q: this verb takes flags only", args[0])
	}
	return nil
}

func newHelpCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "help [VERB...]",
		Short:   "Explain a verb",
		Example: "semel help dedup\nsemel help keys show",
		RunE: a.plain(func(cmd *cobra.Command, args []string) error {
			topic, rest, err := cmd.Root().Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return unknownVerb(topic, rest[0])
			}
			return a.printHelp(topic)
		}),
	}
}

// printHelp prints a verb's help. Examples come first, because they answer most
// questions.
func (a *app) printHelp(cmd *cobra.Command) error {
	var text strings.Builder
	section := func(title, body string) {
		if body = strings.Trim(body, "\n"); body != "" {
			text.WriteString("\n" + title + "\n" + body + "\n")
		}
	}
	if cmd.Example != "" {
		text.WriteString("Examples:\n  " + strings.ReplaceAll(cmd.Example, "\n", "\n  ") + "\n")
	}
	long := cmd.Long
	if long == "" {
		long = cmd.Short + "."
	}
	text.WriteString("\nUsage: " + cmd.UseLine() + "\n\n" + long + "\n")
	section("Verbs:", verbList(cmd))
	global := cmd.Root().PersistentFlags()
	own := pflag.NewFlagSet(cmd.Name(), pflag.ContinueOnError)
	own.SortFlags = cmd.Flags().SortFlags
	cmd.InitDefaultHelpFlag()
	for _, flags := range []*pflag.FlagSet{cmd.InheritedFlags(), cmd.LocalFlags()} {
		flags.VisitAll(func(flag *pflag.Flag) {
			if global.Lookup(flag.Name) == nil {
				own.AddFlag(flag)
			}
		})
	}
	section("Flags:", flagList(own))
	section("Flags of every verb:", flagList(global))
	_, err := a.stdout.Write([]byte(text.String()))
	return err
}

func verbList(cmd *cobra.Command) string {
	var list strings.Builder
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			list.WriteString("  " + child.Name() + strings.Repeat(" ", max(1, 12-len(child.Name()))) + child.Short + "\n")
		}
	}
	return list.String()
}

func flagList(flags *pflag.FlagSet) string { return flags.FlagUsagesWrapped(100) }
