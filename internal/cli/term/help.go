package term

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Group completes a command that only contains other verbs.
func Group(a *App, cmd *cobra.Command) *cobra.Command {
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = a.Plain(func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return UnknownVerb(cmd, args[0])
		}
		return a.PrintHelp(cmd)
	})
	return cmd
}

// NoArguments refuses arguments to a verb that takes none.
func NoArguments(cmd *cobra.Command, args []string) error {
	return Arguments(0, 0, "", "flags only")(cmd, args)
}

// Arguments refuses fewer than least arguments with the message missing, and more
// than most. A negative most is no limit. takes names the arguments of the verb.
func Arguments(least, most int, missing, takes string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usagef("%s", missing)
		case most >= 0 && len(args) > most:
			return Usagef("unexpected argument %q: this verb takes %s", args[most], takes)
		}
		return nil
	}
}

// MissingFile is the message for a verb that needs a configuration.
const MissingFile = "FILE is missing: name the configuration"

// PrintHelp prints a verb's help. Examples come first, because they answer most
// questions.
func (a *App) PrintHelp(cmd *cobra.Command) error {
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
	_, err := a.Stdout.Write([]byte(text.String()))
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
