package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// UsageError says that the command line or a configuration is wrong. Nothing
// was touched; the exit status is 2.
type UsageError struct {
	// Problems has one line for each thing that is wrong: where, what, and
	// what to write instead.
	Problems []string
}

// Error implements error.
func (e *UsageError) Error() string { return strings.Join(e.Problems, "\n") }

// usagef returns a UsageError with one problem.
func usagef(format string, args ...any) error {
	return &UsageError{Problems: []string{fmt.Sprintf(format, args...)}}
}

// problems gathers what is wrong, so that all of it is reported at once.
type problems []string

func (p *problems) addf(format string, args ...any) {
	*p = append(*p, fmt.Sprintf(format, args...))
}

// err returns nil if there are no problems.
func (p problems) err() error {
	if len(p) == 0 {
		return nil
	}
	return &UsageError{Problems: p}
}

// flagError turns the parser's error into a UsageError. The parser stops at the
// first bad argument; flagError takes that one away and parses on, so that the
// user hears of all of them at once.
func (a *app) flagError(cmd *cobra.Command, err error) error {
	_, args, findErr := cmd.Root().Find(a.args)
	if findErr != nil {
		return err
	}
	if verb, ok := firstWord(args); ok && cmd.HasAvailableSubCommands() {
		return unknownVerb(cmd, verb)
	}
	var found problems
	for err != nil && !errors.Is(err, pflag.ErrHelp) {
		text, bad := describeFlagError(cmd, err)
		if !slices.Contains(found, text) {
			found.addf("%s", text)
		}
		i := slices.IndexFunc(args, bad)
		if i < 0 {
			break
		}
		end := i + 1
		var value *pflag.InvalidValueError
		if errors.As(err, &value) && end < len(args) && args[end] == value.GetValue() {
			end++ // --flag VALUE, not --flag=VALUE
		}
		args = slices.Delete(slices.Clone(args), i, end)
		err = cmd.Flags().Parse(args)
	}
	return found.err()
}

// describeFlagError returns the problem in the user's words, and a test for the
// argument that caused it.
func describeFlagError(cmd *cobra.Command, err error) (text string, bad func(arg string) bool) {
	var (
		unknown *pflag.NotExistError
		value   *pflag.InvalidValueError
		missing *pflag.ValueRequiredError
	)
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		name := unknown.GetSpecifiedName()
		text = fmt.Sprintf("unknown flag -%s: semel %s--help lists the flags", name, verbOf(cmd))
		return text, isShort(name)
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		return fmt.Sprintf("unknown flag --%s: %s", name, flagSuggestion(cmd, name)), isLong(name)
	case errors.As(err, &value):
		flag := value.GetFlag()
		text = fmt.Sprintf("--%s %q: %s", flag.Name, value.GetValue(), plainCause(value.Unwrap()))
		return text, either(isLong(flag.Name), isShort(flag.Shorthand))
	case errors.As(err, &missing):
		flag := missing.GetFlag()
		return fmt.Sprintf("--%s needs a value", flag.Name), either(isLong(flag.Name), isShort(flag.Shorthand))
	}
	return err.Error(), func(string) bool { return false }
}

// plainCause says what is wrong with a value without naming Go's functions.
func plainCause(err error) string {
	var number *strconv.NumError
	switch {
	case !errors.As(err, &number):
		return err.Error()
	case number.Func == "ParseBool":
		return "write true or false"
	case errors.Is(err, strconv.ErrRange):
		return "the number is out of range"
	}
	return "not a number"
}

func flagSuggestion(cmd *cobra.Command, name string) string {
	var names []string
	visit := func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	}
	cmd.Flags().VisitAll(visit)
	if near, ok := nearest(name, names); ok {
		return "did you mean --" + near + "?"
	}
	return fmt.Sprintf("semel %s--help lists the flags", verbOf(cmd))
}

// unknownVerb reports a verb that cmd does not have.
func unknownVerb(cmd *cobra.Command, verb string) error {
	var names []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	if near, ok := nearest(verb, names); ok {
		return usagef("unknown verb %q: did you mean %s%s?", verb, verbOf(cmd), near)
	}
	return usagef("unknown verb %q: semel %s--help lists the verbs", verb, verbOf(cmd))
}

// verbOf returns the words of a command after the program's name, each with a
// space behind it.
func verbOf(cmd *cobra.Command) string {
	_, verb, _ := strings.Cut(cmd.CommandPath()+" ", " ")
	return verb
}

func firstWord(args []string) (string, bool) {
	i := slices.IndexFunc(args, func(arg string) bool { return !strings.HasPrefix(arg, "-") })
	if i < 0 {
		return "", false
	}
	return args[i], true
}

func isLong(name string) func(string) bool {
	return func(arg string) bool { return arg == "--"+name || strings.HasPrefix(arg, "--"+name+"=") }
}

func isShort(name string) func(string) bool {
	return func(arg string) bool {
		return name != "" && strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.Contains(arg, name)
	}
}

func either(a, b func(string) bool) func(string) bool {
	return func(arg string) bool { return a(arg) || b(arg) }
}
