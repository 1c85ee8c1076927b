package term

import (
	"cmp"
	"fmt"
	"slices"
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

// VerbGroup is a part of a list of verbs, in the order in which people meet them.
type VerbGroup struct {
	Title string
	Verbs []*cobra.Command
}

// rank is the annotation of a verb that has its place in its group.
const rank = "rank"

// AddGroups adds verbs to a command, whose help lists them by group.
func AddGroups(cmd *cobra.Command, groups []VerbGroup) {
	for _, g := range groups {
		cmd.AddGroup(&cobra.Group{ID: g.Title, Title: g.Title})
		for i, verb := range g.Verbs {
			verb.GroupID, verb.Annotations = g.Title, map[string]string{rank: fmt.Sprintf("%02d", i)}
		}
		cmd.AddCommand(g.Verbs...)
	}
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
	width := cmp.Or(a.columns(a.Stdout), 100)
	section("Verbs:", verbList(cmd, "", width))
	for _, g := range cmd.Groups() {
		section(g.Title+":", verbList(cmd, g.ID, width))
	}
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
	section("Flags:", own.FlagUsagesWrapped(width))
	section("Flags of every verb:", global.FlagUsagesWrapped(width))
	_, err := a.Stdout.Write([]byte(text.String()))
	return err
}

// verbList lists the verbs of a group, or those without one.
func verbList(cmd *cobra.Command, group string, width int) string {
	const indent = 14
	verbs := slices.DeleteFunc(slices.Clone(cmd.Commands()), func(verb *cobra.Command) bool {
		return !verb.IsAvailableCommand() || verb.GroupID != group
	})
	slices.SortStableFunc(verbs, func(a, b *cobra.Command) int { return cmp.Compare(a.Annotations[rank], b.Annotations[rank]) })
	var list strings.Builder
	for _, verb := range verbs {
		name := "  " + verb.Name()
		list.WriteString(name + strings.Repeat(" ", max(1, indent-len(name))) + wrapped(verb.Short, indent, width) + "\n")
	}
	return list.String()
}

// wrapped breaks a text into lines of a width, of which the first begins behind indent.
func wrapped(text string, indent, width int) string {
	var out strings.Builder
	used := indent
	for i, word := range strings.Fields(text) {
		switch {
		case i > 0 && used+1+len(word) > max(width, indent+20):
			out.WriteString("\n" + strings.Repeat(" ", indent))
			used = indent
		case i > 0:
			out.WriteString(" ")
			used++
		}
		out.WriteString(word)
		used += len(word)
	}
	return out.String()
}
