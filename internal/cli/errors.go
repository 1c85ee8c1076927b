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

// checked makes of a function what a command runs. The function is given what
// is wrong with the flags already. It adds to that what it finds itself, and
// returns all of it before it touches anything.
func (a *app) checked(run func(cmd *cobra.Command, args []string, wrong problems) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		wrong := a.wrong
		cmd.Flags().Visit(func(flag *pflag.Flag) {
			if flag.Name != "scope" { // in a store a scope may be empty
				refuseEmpty(cmd, flag.Name, &wrong)
			}
		})
		return run(cmd, args, wrong)
	}
}

// plain is checked for a verb that has nothing to add.
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

// refuseEmpty refuses an empty value of a flag that was given: to take it for
// no flag would do something else than was asked for.
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

// flagError goes on where the parser stopped, at the first bad argument: it
// takes that one away and parses on, and then has the verb check what was
// right, so that the user hears of everything at once.
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
				end++ // that flag takes a value, so the typo has one
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

// forgetLists empties the flags that add up, before the arguments are parsed
// again.
func forgetLists(flags *pflag.FlagSet) {
	flags.VisitAll(func(flag *pflag.Flag) {
		if list, ok := flag.Value.(pflag.SliceValue); ok {
			_ = list.Replace(nil) // a list of texts takes any
		}
	})
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

// plainText takes the words out of a message that name packages, and adds what
// to do about troubles that all parts of the program can have.
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

// fileReason takes Go's words for the operation out of an error of a file, whose
// name stands in the message already.
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

// nearFlag returns the flag that was probably meant, or nil.
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
