package term

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semel-dev/semel/internal/schema"
)

// parsedValue is a flag whose text is read by a function.
type parsedValue[T any] struct {
	target *T
	text   string
	kind   string
	parse  func(text string) (T, error)
}

func (v *parsedValue[T]) String() string { return v.text }
func (v *parsedValue[T]) Type() string   { return v.kind }

func (v *parsedValue[T]) Set(text string) error {
	value, err := v.parse(text)
	if err != nil {
		return err
	}
	*v.target, v.text = value, text
	return nil
}

// WindowVar adds a flag for a window: a duration above 0, or "forever", which is
// semel.Forever. initial is its default as a user writes it.
func WindowVar(flags *pflag.FlagSet, target *time.Duration, name, initial, usage string) {
	AddParsed(flags, target, name, initial, "DUR", usage, schema.ParseWindow)
}

// CountVar adds a flag for a count.
func CountVar(flags *pflag.FlagSet, target *int64, name, initial, usage string) {
	AddParsed(flags, target, name, initial, "N", usage, schema.ParseCount)
}

// AddParsed panics if the default does not parse. Every run would show this.
func AddParsed[T any](flags *pflag.FlagSet, target *T, name, initial, kind, usage string, parse func(string) (T, error)) {
	value := &parsedValue[T]{target: target, kind: kind, parse: parse}
	if initial != "" {
		if err := value.Set(initial); err != nil {
			panic(fmt.Sprintf("default of --%s: %v", name, err))
		}
	}
	flags.Var(value, name, usage)
}

// CompleteValues makes shells complete a flag with these values and no files.
func CompleteValues(cmd *cobra.Command, flag string, values ...string) {
	CompleteWith(cmd, flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// CompleteDirs makes shells complete a flag with directories.
func CompleteDirs(cmd *cobra.Command, flag string) {
	CompleteWith(cmd, flag, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs))
}

// CompleteWith makes shells complete a flag with the values of a function. It panics if the flag
// does not exist. Every run would show this.
func CompleteWith(cmd *cobra.Command, flag string, values cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, values); err != nil {
		panic(fmt.Sprintf("completion of --%s: %v", flag, err))
	}
}
