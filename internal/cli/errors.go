package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/schema"
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

// usagef returns a UsageError with one problem.
func usagef(format string, args ...any) error {
	return &UsageError{Problems: []string{fmt.Sprintf(format, args...)}}
}

// problems collects faults, so that all of them are reported in one run.
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

// checked turns a function into a command's run function. The function receives
// the flag errors found so far. It adds its own, and returns all of them before
// it changes anything.
func (a *app) checked(run func(cmd *cobra.Command, args []string, wrong problems) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		wrong := a.wrong
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if flag.Name != "scope" { // the scope of a store may be empty
				refuseEmpty(cmd, flag.Name, &wrong)
			}
		})
		return run(cmd, args, wrong)
	}
}

// plain is checked for a verb without checks of its own.
func (a *app) plain(run func(cmd *cobra.Command, args []string) error) func(*cobra.Command, []string) error {
	return a.checked(func(cmd *cobra.Command, args []string, wrong problems) error {
		if err := wrong.err(); err != nil {
			return err
		}
		return run(cmd, args)
	})
}

const (
	emptyValue = "the value is empty: is a variable not set? Give the flag a value, or leave it out"
	emptyInput = "the name of an input is empty: is a variable not set? Name a file, or - for standard input"
)

// refuseEmpty refuses a flag with an empty value. Ignoring the flag would do
// something other than requested.
func refuseEmpty(cmd *cobra.Command, name string, p *problems) {
	flag := cmd.Flags().Lookup(name)
	values := []string{flag.Value.String()}
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		values = list.GetSlice()
	}
	if flag.Changed && slices.Contains(values, "") {
		p.addf("--%s \"\": %s", name, emptyValue)
	}
}

// flagError continues parsing after the first invalid argument. It removes the
// argument and parses the rest. Then the verb checks the valid flags, so that the
// user sees all errors in one run.
func (a *app) flagError(cmd *cobra.Command, err error) error {
	_, args, findErr := cmd.Root().Find(a.args)
	if findErr != nil {
		return err
	}
	if verb, ok := firstWord(args); ok && cmd.HasAvailableSubCommands() {
		return unknownVerb(cmd, verb)
	}
	var found problems
	all := cmd.Flags()
	for err != nil {
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
		var unknown *pflag.NotExistError
		switch {
		case end == len(args):
		case errors.As(err, &value) && args[end] == value.GetValue():
			end++ // --flag VALUE, not --flag=VALUE
		case errors.As(err, &unknown) && args[i] == "--"+unknown.GetSpecifiedName():
			if near := nearFlag(cmd, unknown.GetSpecifiedName()); near != nil && near.NoOptDefVal == "" {
				end++ // that flag takes a value, so the misspelled flag has one too
			}
		}
		args = slices.Delete(slices.Clone(args), i, end)
		forgetLists(all)
		err = all.Parse(args)
	}
	a.wrong = found
	var usage *UsageError
	if errors.As(cmd.ValidateArgs(all.Args()), &usage) {
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
		return text, isShort(name)
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		return fmt.Sprintf("unknown flag --%s: %s", name, flagSuggestion(cmd, name)), isLong(name)
	case errors.As(err, &value):
		flag := value.GetFlag()
		cause := plainCause(value.Unwrap())
		if value.GetValue() == "" {
			cause = emptyValue
		}
		text = fmt.Sprintf("--%s %q: %s", flag.Name, value.GetValue(), cause)
		return text, either(isLong(flag.Name), isShort(flag.Shorthand))
	case errors.As(err, &missing):
		flag := missing.GetFlag()
		return fmt.Sprintf("--%s needs a value", flag.Name), either(isLong(flag.Name), isShort(flag.Shorthand))
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

// plainText removes package names from a message. It adds a remedy for problems
// that any part of the program can have.
func plainText(text string) string {
	for _, name := range []string{"semel", "logstore", "filter", "key", "dedup", "vfs", "memstore", "table", "redisstore", "pgstore", "tiered"} {
		text = strings.ReplaceAll(strings.TrimPrefix(text, name+": "), ": "+name+": ", ": ")
	}
	for _, kind := range []error{semel.ErrInvalidRequest, semel.ErrInvalidKey} {
		text = strings.ReplaceAll(strings.TrimSuffix(text, ": "+kind.Error()), ": "+kind.Error()+": ", ": ")
	}
	for _, advice := range [][2]string{
		{"no space left on device", "make room and run the same command again"},
		{"no space left on the disk", "make room and run the same command again"},
		{"too many open files", "raise the limit (ulimit -n) and run the same command again"},
		{"permission denied", "change the permissions, or run as another user"},
		{"no permission", "change the permissions, or run as another user"},
		{": not a directory", "write another path"},
		{": too many levels of symbolic links", "write another path"},
		{": read-only file system", "write another path"},
		{"line is longer than 64 MiB", "is a line end missing, or a quote never closed?"},
	} {
		if strings.HasSuffix(text, advice[0]) {
			return text + ": " + advice[1]
		}
	}
	return text
}

// fileReason removes Go's operation name from a file error. The message already
// has the file name.
func fileReason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		return "no permission"
	case errors.Is(err, syscall.ENOTDIR):
		return "this is not a directory"
	}
	return err.Error()
}

func flagSuggestion(cmd *cobra.Command, name string) string {
	if near := nearFlag(cmd, name); near != nil {
		return "did you mean --" + near.Name + "?"
	}
	return fmt.Sprintf("semel %s--help lists the flags", verbOf(cmd))
}

// nearFlag returns the closest existing flag, or nil.
func nearFlag(cmd *cobra.Command, name string) *pflag.Flag {
	var names []string
	cmd.Flags().VisitAll(func(flag *pflag.Flag) {
		if !flag.Hidden {
			names = append(names, flag.Name)
		}
	})
	near, _ := schema.Nearest(name, names)
	return cmd.Flags().Lookup(near)
}

// unknownVerb reports a verb that cmd does not have.
func unknownVerb(cmd *cobra.Command, verb string) error {
	var names []string
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			names = append(names, child.Name())
		}
	}
	if near, ok := schema.Nearest(verb, names); ok {
		return usagef("unknown verb %q: did you mean %s%s?", verb, verbOf(cmd), near)
	}
	return usagef("unknown verb %q: semel %s--help lists the verbs", verb, verbOf(cmd))
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
