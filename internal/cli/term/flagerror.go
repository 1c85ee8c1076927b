package term

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semel-dev/semel/internal/diagnose"
)

// FlagError continues parsing after the first invalid argument. It removes the
// argument and parses the rest. Then the verb checks the valid flags, so that the
// user sees all errors in one run.
func (a *App) FlagError(cmd *cobra.Command, err error) error {
	_, args, findErr := cmd.Root().Find(a.Args)
	if findErr != nil {
		return err
	}
	if verb, ok := firstWord(args); ok && cmd.HasAvailableSubCommands() {
		return UnknownVerb(cmd, verb)
	}
	var found Problems
	all := cmd.Flags()
	for err != nil {
		text, bad := describeFlagError(cmd, err)
		if !slices.Contains(found, text) {
			found.Addf("%s", text)
		}
		i := slices.IndexFunc(args, bad)
		if i < 0 {
			break
		}
		end := i + 1
		var value *pflag.InvalidValueError
		var unknown *pflag.NotExistError
		switch {
		case end == len(args):
		case errors.As(err, &value) && args[end] == value.GetValue():
			end++ // --flag VALUE, not --flag=VALUE
		case errors.As(err, &unknown) && args[i] == "--"+unknown.GetSpecifiedName():
			near := nearFlag(cmd, unknown.GetSpecifiedName())
			if near != nil && near.NoOptDefVal == "" || verbWith(cmd, unknown.GetSpecifiedName()) != "" {
				end++ // that flag takes a value, so the misspelled flag has one too
			}
		}
		args = slices.Delete(slices.Clone(args), i, end)
		forgetLists(all)
		err = all.Parse(args)
	}
	a.wrong = found
	if usage, ok := errors.AsType[*UsageError](cmd.ValidateArgs(all.Args())); ok {
		a.wrong = append(a.wrong, usage.Problems...)
	}
	return cmd.RunE(cmd, all.Args())
}

// forgetLists empties the flags that accumulate values, before the arguments are
// parsed again.
func forgetLists(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			_ = list.Replace(nil) // a list of texts accepts anything
		}
	})
}

// describeFlagError returns the problem in the user's terms, and a test for the
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
		return text, isFlag("", name)
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		return fmt.Sprintf("unknown flag --%s: %s", name, flagSuggestion(cmd, name)), isFlag(name, "")
	case errors.As(err, &value):
		flag := value.GetFlag()
		cause := plainCause(value.Unwrap())
		if value.GetValue() == "" {
			cause = emptyValue
		}
		text = fmt.Sprintf("--%s %q: %s", flag.Name, value.GetValue(), cause)
		return text, isFlag(flag.Name, flag.Shorthand)
	case errors.As(err, &missing):
		flag := missing.GetFlag()
		return fmt.Sprintf("--%s needs a value", flag.Name), isFlag(flag.Name, flag.Shorthand)
	}
	return err.Error(), func(string) bool { return false }
}

// plainCause describes an invalid value without the names of Go functions.
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
	if verb := verbWith(cmd, name); verb != "" {
		return "did you mean semel " + verb + "?"
	}
	if near := nearFlag(cmd, name); near != nil {
		return "did you mean --" + near.Name + "?"
	}
	return fmt.Sprintf("semel %s--help lists the flags", verbOf(cmd))
}

// verbWith returns the verb that does what a flag of cmd would do, as its SuggestFor says,
// or "".
func verbWith(cmd *cobra.Command, flag string) string {
	for _, verb := range cmd.Root().Commands() {
		if slices.Contains(verb.SuggestFor, verbOf(cmd)+"--"+flag) {
			return verb.Name()
		}
	}
	return ""
}

// nearFlag returns the closest existing flag, or nil.
func nearFlag(cmd *cobra.Command, name string) *pflag.Flag {
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	near, _ := diagnose.Nearest(name, names)
	return cmd.Flags().Lookup(near)
}

// UnknownVerb reports a verb that cmd does not have.
func UnknownVerb(cmd *cobra.Command, verb string) error {
	var names []string
	for _, child := range cmd.Commands() {
		if slices.Contains(child.SuggestFor, verb) {
			return Usagef("unknown verb %q: did you mean %s%s?", verb, verbOf(cmd), child.Name())
		}
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	if near, ok := diagnose.Nearest(verb, names); ok {
		return Usagef("unknown verb %q: did you mean %s%s?", verb, verbOf(cmd), near)
	}
	if info, err := os.Stat(verb); err == nil && info.Mode().IsRegular() && !cmd.HasParent() {
		command := "dedup"
		if slices.Contains([]string{".yaml", ".yml"}, filepath.Ext(verb)) {
			command = "run"
		}
		return Usagef("unknown verb %q: did you mean %s?", verb, ShellLine("semel", command, verb))
	}
	return Usagef("unknown verb %q: semel %s--help lists the verbs", verb, verbOf(cmd))
}

// verbOf returns the words of a command after the program's name, each followed
// by a space.
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

// isFlag returns a test for arguments that set a flag by one of its names.
func isFlag(long, short string) func(string) bool {
	return func(arg string) bool {
		name, _, _ := strings.Cut(arg, "=")
		return long != "" && name == "--"+long ||
			short != "" && strings.HasPrefix(arg, "-") && !strings.HasPrefix(arg, "--") && strings.Contains(arg, short)
	}
}
