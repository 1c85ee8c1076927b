package term

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// UsageError means that the command line or a configuration is invalid. Nothing
// was changed. The exit status is 2.
type UsageError struct {
	// Problems has one line for each fault: where it is, what is wrong, and what to
	// write instead.
	Problems []string
}

// Error implements error.
func (e *UsageError) Error() string { return strings.Join(e.Problems, "\n") }

// Usagef returns a UsageError with one problem.
func Usagef(format string, args ...any) error {
	return &UsageError{Problems: []string{fmt.Sprintf(format, args...)}}
}

// Problems collects faults, so that all of them are reported in one run.
type Problems []string

// Addf adds a fault.
func (p *Problems) Addf(format string, args ...any) {
	*p = append(*p, fmt.Sprintf(format, args...))
}

// Err returns nil if there are no problems.
func (p Problems) Err() error {
	if len(p) == 0 {
		return nil
	}
	return &UsageError{Problems: p}
}

// Checked turns a function into a command's run function. The function receives
// the flag errors found so far. It adds its own, and returns all of them before
// it changes anything.
func (a *App) Checked(run func(cmd *cobra.Command, args []string, wrong Problems) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		wrong := a.wrong
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if flag.Name != "scope" { // the scope of a store may be empty
				RefuseEmpty(cmd, flag.Name, &wrong)
			}
		})
		return run(cmd, args, wrong)
	}
}

// Plain is checked for a verb without checks of its own.
func (a *App) Plain(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return a.Checked(func(cmd *cobra.Command, args []string, wrong Problems) error {
		if err := wrong.Err(); err != nil {
			return err
		}
		return run(cmd, args)
	})
}

const (
	emptyValue = "the value is empty: is a variable not set? Give the flag a value, or leave it out"
	EmptyInput = "the name of an input is empty: is a variable not set? Name a file, or - for standard input"
)

// RefuseEmpty refuses a flag with an empty value. Ignoring the flag would do
// something other than requested.
func RefuseEmpty(cmd *cobra.Command, name string, p *Problems) {
	flag := cmd.Flags().Lookup(name)
	values := []string{flag.Value.String()}
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		values = list.GetSlice()
	}
	if flag.Changed && slices.Contains(values, "") {
		p.Addf("--%s \"\": %s", name, emptyValue)
	}
}
