package term

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// example is a program with a few verbs.
type example struct {
	*App
	root           *cobra.Command
	stdout, stderr bytes.Buffer
	ran            []string // the verbs that ran
}

func newExample() *example {
	e := &example{App: &App{Redact: strings.Clone, Env: func(string) string { return "" }}}
	e.Stdout, e.Stderr = &e.stdout, &e.stderr
	a := e.App
	e.root = Group(a, &cobra.Command{Use: "semel VERB", Long: "The program.", Example: "semel copy a b"})
	e.root.CompletionOptions.DisableDefaultCmd = true
	e.root.SilenceErrors, e.root.SilenceUsage = true, true
	e.root.PersistentFlags().BoolVarP(&a.Quiet, "quiet", "q", false, "print errors only")
	e.root.SetFlagErrorFunc(a.FlagError)
	e.root.SetHelpFunc(func(cmd *cobra.Command, _ []string) { a.HelpErr = a.PrintHelp(cmd) })
	var (
		window time.Duration
		limit  int64
		from   []string
		store  string
		number int
	)
	copied := &cobra.Command{
		Use: "copy FILE", Short: "Copy a file with a description that is far too long for one line of a narrow terminal", Example: "semel copy a",
		Args: Arguments(1, 1, "FILE is missing", "one FILE"),
		RunE: a.Checked(func(_ *cobra.Command, args []string, wrong Problems) error {
			for _, name := range args {
				if name == "" {
					wrong.Addf("%s", EmptyInput)
				}
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			e.ran = append(e.ran, "copy")
			return nil
		}),
	}
	WindowVar(copied.Flags(), &window, "window", "7d", "`DUR` that keys are remembered")
	CountVar(copied.Flags(), &limit, "limit", "", "maximum `N`")
	copied.Flags().StringArrayVar(&from, "from", nil, "`NAME` of a source")
	copied.Flags().StringVarP(&store, "store", "s", "", "`DIR` of the store")
	copied.Flags().IntVar(&number, "number", 0, "`N`")
	CompleteDirs(copied, "store")
	CompleteValues(copied, "window", "forever")
	listed := &cobra.Command{Use: "ls", Short: "List", SuggestFor: []string{"list"}, Args: NoArguments, RunE: a.Plain(func(*cobra.Command, []string) error {
		e.ran = append(e.ran, "ls")
		return ErrFound
	})}
	keys := Group(a, &cobra.Command{Use: "keys VERB", Short: "Look at keys"})
	keys.AddCommand(listed)
	asked := &cobra.Command{Use: "why ID", Short: "Follow a key", SuggestFor: []string{"copy --trace"}, RunE: a.Plain(func(*cobra.Command, []string) error { return nil })}
	AddGroups(e.root, []VerbGroup{{Title: "Files", Verbs: []*cobra.Command{copied}}, {Title: "Keys", Verbs: []*cobra.Command{keys, asked}}})
	return e
}

// run runs a command line and returns its exit status.
func (e *example) run(t *testing.T, args ...string) int {
	t.Helper()
	e.Args = args
	e.root.SetArgs(args)
	cmd, err := e.root.ExecuteContextC(t.Context())
	if err == nil {
		err = e.HelpErr
	}
	return e.Report(t.Context(), cmd.CommandPath(), err)
}

// Not parallel with other tests, because it changes the directory.
func TestUsageErrorsAreAllReportedBeforeTheVerbRuns(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	for _, name := range []string{"data.jsonl", "c.yaml"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for line, want := range map[string][]string{
		"copi":                                 {`semel: unknown verb "copi": did you mean copy?`},
		"frobnicate":                           {`semel: unknown verb "frobnicate": semel --help lists the verbs`},
		"data.jsonl":                           {`semel: unknown verb "data.jsonl": did you mean semel dedup data.jsonl?`},
		"c.yaml":                               {`semel: unknown verb "c.yaml": did you mean semel run c.yaml?`},
		"keys list":                            {`semel keys: unknown verb "list": did you mean keys ls?`},
		"keys lz --quiet":                      {`semel keys: unknown verb "lz": did you mean keys ls?`},
		"keys lz --none":                       {`semel keys: unknown verb "lz": did you mean keys ls?`},
		"keys data.jsonl":                      {`semel keys: unknown verb "data.jsonl": semel keys --help lists the verbs`},
		"--quite":                              {"semel: unknown flag --quite: did you mean --quiet?"},
		"copy":                                 {"semel copy: FILE is missing"},
		"copy a b":                             {`semel copy: unexpected argument "b": this verb takes one FILE`},
		"keys ls more":                         {`semel keys ls: unexpected argument "more": this verb takes flags only`},
		"copy a --xyzzy":                       {"semel copy: unknown flag --xyzzy: semel copy --help lists the flags"},
		"copy a -x":                            {"semel copy: unknown flag -x: semel copy --help lists the flags"},
		"copy a --trace k":                     {"semel copy: unknown flag --trace: did you mean semel why?"},
		"copy a --store":                       {"semel copy: --store needs a value"},
		"copy a --store=":                      {`semel copy: --store "": the value is empty`},
		"copy a --from x --from=":              {`semel copy: --from "": the value is empty`},
		"copy a --number x":                    {`semel copy: --number "x": not a number`},
		"copy a --number 1e99":                 {`semel copy: --number "1e99": not a number`},
		"copy a --number 99999999999999999":    nil,
		"copy a --number 99999999999999999999": {`semel copy: --number "99999999999999999999": the number is out of range`},
		"copy a --quiet=maybe":                 {`semel copy: --quiet "maybe": write true or false`},
		"copy --windwo 1d --limit x --window= --none": {
			"semel copy: unknown flag --windwo: did you mean --window?", `semel copy: --limit "x": `, `semel copy: --window "": the value is empty`,
			"semel copy: unknown flag --none: semel copy --help lists the flags", "semel copy: FILE is missing",
		},
	} {
		e := newExample()
		status := e.run(t, strings.Fields(line)...)
		got := strings.Split(strings.TrimSuffix(e.stderr.String(), "\n"), "\n")
		if want == nil {
			if status != ExitDone || len(e.ran) != 1 {
				t.Errorf("semel %s: status %d, %q", line, status, got)
			}
			continue
		}
		if status != ExitUsage || e.stdout.Len() > 0 || len(e.ran) > 0 || len(got) != len(want) {
			t.Errorf("semel %s: status %d, stdout %q, stderr %q, ran %q", line, status, &e.stdout, got, e.ran)
			continue
		}
		for i := range want {
			if !strings.HasPrefix(got[i], want[i]) {
				t.Errorf("semel %s: %q, want %q", line, got[i], want[i])
			}
		}
	}
	e := newExample()
	if status := e.run(t, "copy", ""); status != ExitUsage || !strings.Contains(e.stderr.String(), EmptyInput) {
		t.Errorf("an empty name: %d, %s", status, &e.stderr)
	}
}

func TestVerbsRunWithTheirFlags(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]int{"copy a --window forever --limit 1e6 --from x --from y -q": ExitDone, "keys ls": ExitFound, "why x": ExitDone} {
		e := newExample()
		if status := e.run(t, strings.Fields(line)...); status != want || e.stderr.Len() > 0 {
			t.Errorf("semel %s: status %d, %s", line, status, &e.stderr)
		}
	}
}

func TestHelpBeginsWithExamplesAndListsVerbsByGroup(t *testing.T) {
	t.Parallel()
	e := newExample()
	if status := e.run(t); status != ExitDone {
		t.Fatalf("status %d: %s", status, &e.stderr)
	}
	text := e.stdout.String()
	at := -1
	for _, want := range []string{"Examples:\n  semel copy a b\n", "\nUsage: semel VERB [flags]\n\nThe program.\n", "\nFiles:\n  copy        Copy a file", "\nKeys:\n  keys        Look at keys\n  why         Follow a key\n", "\nFlags of every verb:\n", "-q, --quiet"} {
		i := strings.Index(text, want)
		if i < at {
			t.Errorf("%q is missing, or not in its place:\n%s", want, text)
		}
		at = i
	}
	e = newExample()
	e.run(t, "copy", "--help")
	for _, want := range []string{"\nUsage: semel copy FILE [flags]\n\nCopy a file", "--window DUR", "(default 7d)", "-s, --store DIR"} {
		if !strings.Contains(e.stdout.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &e.stdout)
		}
	}
	if got := wrapped("one two three four", 14, 20); got != "one two three four" {
		t.Errorf("a terminal of 20 columns gets %q", got)
	}
	if got := wrapped("one two three four", 14, 28); got != "one two three four" {
		t.Errorf("a terminal of 28 columns gets %q", got)
	}
	if got := wrapped("one two three four five six seven", 4, 30); got != "one two three four five\n    six seven" {
		t.Errorf("a terminal of 30 columns gets %q", got)
	}
}

func TestHelpThatCannotBeWrittenIsAnError(t *testing.T) {
	t.Parallel()
	e := newExample()
	e.Stdout = failing{os.ErrClosed}
	if status := e.run(t, "copy", "--help"); status != ExitFailed || !strings.Contains(e.stderr.String(), "file already closed") {
		t.Errorf("status %d: %s", status, &e.stderr)
	}
}

func TestShellsCompleteFlagsWithTheirValues(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{"copy --window": "forever\n:4\n", "copy --store": ":16\n"} {
		e := newExample()
		e.root.SetOut(&e.stdout)
		e.root.SetErr(&e.stderr)
		if e.run(t, append(append([]string{"__complete"}, strings.Fields(line)...), "")...); e.stdout.String() != want {
			t.Errorf("%s: %q, want %q", line, &e.stdout, want)
		}
	}
}
