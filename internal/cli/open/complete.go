package open

import (
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/config"
)

// CompleteNames makes shells complete a flag with names in the configuration of --config.
func CompleteNames(a *term.App, cmd *cobra.Command, flag string, names func(*config.File) []string) {
	term.CompleteWith(cmd, flag, func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return namesIn(a, cmd.Flag("config").Value.String(), names), cobra.ShellCompDirectiveNoFileComp
	})
}

// NamesAfterFile completes the arguments of a verb: a FILE, and then up to most names in it, or any
// number if most is 0.
func NamesAfterFile(a *term.App, most int, names func(*config.File) []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		switch {
		case len(args) == 0:
			return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
		case most > 0 && len(args) > most:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		left := slices.DeleteFunc(namesIn(a, args[0], names), func(name string) bool { return slices.Contains(args[1:], name) })
		return left, cobra.ShellCompDirectiveNoFileComp
	}
}

// PipelinesAndStores returns the names of both, for a verb that takes either.
func PipelinesAndStores(f *config.File) []string { return append(f.PipelineNames(), f.StoreNames()...) }

// namesIn returns names in a configuration, and nothing if it cannot be read: a shell has no
// place for an error. The variables of the file need not be set.
func namesIn(a *term.App, name string, names func(*config.File) []string) []string {
	file, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer func() { _ = file.Close() }() // it was only read
	conf, err := a.Kinds.ReadWithPlaceholders(name, file, a.Env)
	if err != nil {
		return nil
	}
	return names(conf)
}
