package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// programVariable makes this test binary act as the program, for tests that run
// it from a shell.
const programVariable = "SEMEL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGTERM)
		os.Exit(Main(ctx, kind.All(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
	}
	os.Exit(servers.Run(m))
}

// servers are the real servers that tests share.
var servers servicestest.Pool

// outcome is the result of a program run.
type outcome struct {
	status         int
	stdout, stderr string
}

func noEnv(string) string { return "" }

// run runs the program with input on stdin.
func run(t *testing.T, input string, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := Main(t.Context(), kind.All(), args, strings.NewReader(input), &stdout, &stderr, noEnv)
	return outcome{status, stdout.String(), stderr.String()}
}

// check compares a run with the expected status and messages. Each text must be
// on stderr. Without texts, stderr must be empty.
func (o outcome) check(t *testing.T, status int, stderr ...string) {
	t.Helper()
	if o.status != status {
		t.Errorf("exit status %d, want %d; stderr: %s", o.status, status, o.stderr)
	}
	if len(stderr) == 0 && o.stderr != "" {
		t.Errorf("unexpected stderr: %s", o.stderr)
	}
	for _, text := range stderr {
		if !strings.Contains(o.stderr, text) {
			t.Errorf("stderr lacks %q: %s", text, o.stderr)
		}
	}
}

func TestUsageErrorsAreOneLineWithASuggestion(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, want string }{
		{"dedpu", `semel: unknown verb "dedpu": did you mean dedup?`},
		{"dedpu --key .id --store x", `semel: unknown verb "dedpu": did you mean dedup?`},
		{"frobnicate", `semel: unknown verb "frobnicate": semel --help lists the verbs`},
		{"version --jsn", "semel version: unknown flag --jsn: did you mean --json?"},
		{"version --xyzzy", "semel version: unknown flag --xyzzy: semel version --help lists the flags"},
		{"version -x", "semel version: unknown flag -x: semel version --help lists the flags"},
		{"version --json=perhaps", `semel version: --json "perhaps": write true or false`},
		{"version more", `semel version: unexpected argument "more": this verb takes flags only`},
		{"--quite", "semel: unknown flag --quite: did you mean --quiet?"},
		{"completion", "semel completion: name one shell: bash, zsh or fish"},
		{"completion bsh", `semel completion: unknown shell "bsh": did you mean bash?`},
		{"completion powershell", `semel completion: unknown shell "powershell": bash, zsh and fish are known`},
		{"help dedpu", `semel help: unknown verb "dedpu": did you mean dedup?`},
		{"keys shw x", `semel keys: unknown verb "shw": did you mean keys show?`},
		{"keys list", `semel keys: unknown verb "list": did you mean keys ls?`},
		{"keys count --store x", `semel keys: unknown verb "count": did you mean keys stats?`},
		{"parked list", `semel parked: unknown verb "list": did you mean parked ls?`},
		{"keys shw x --scope y", `semel keys: unknown verb "shw": did you mean keys show?`},
		{"dedup --threads -1", `semel dedup: --threads "-1": not a count: write it like 1000000 or 1e6`},
		{"keys stats --store", "semel keys stats: --store needs a value"},
	} {
		got := run(t, "", strings.Fields(c.args)...)
		if got.status != term.ExitUsage || got.stderr != c.want+"\n" || got.stdout != "" {
			t.Errorf("semel %s: status %d, stdout %q, stderr %q; want status 2 and stderr %q", c.args, got.status, got.stdout, got.stderr, c.want)
		}
	}
}

func TestControlCharactersOfMessagesAreNotPrinted(t *testing.T) {
	t.Parallel()
	got := run(t, "", "keys", "import", "no\x1b[2J\nsuch\u009b file", "--store", "x")
	if got.status != term.ExitUsage || strings.ContainsAny(strings.TrimSuffix(got.stderr, "\n"), "\x1b\n\u009b") || !strings.Contains(got.stderr, `no\x1b[2J\nsuch\x9b file`) {
		t.Errorf("status %d, stderr %q", got.status, got.stderr)
	}
}

// A message is one line, whatever the names and contents of files are.
func TestNamesAndFieldsDoNotForgeMessages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := writeFile(t, filepath.Join(dir, "a\nsemel dedup: forged: file"), "{\"id\":\"x\"}\n{\"id\n")
	for _, args := range [][]string{
		{"dedup", "--key", ".id", name},
		{"dedup", "--key", ".id", name + ".missing"},
		{"dedup", "--key", ".id", "--store", filepath.Join(name, "store"), name},
	} {
		got := run(t, "", args...)
		if got.status == term.ExitDone || strings.Count(got.stderr, "\n") != 1 || !strings.Contains(got.stderr, `a\nsemel dedup: forged: file`) {
			t.Errorf("semel %s: status %d, %s", args, got.status, got.stderr)
		}
	}
}

func TestAllUsageErrorsAreReportedAtOnce(t *testing.T) {
	t.Parallel()
	got := run(t, "", "keys", "import", "--windwo", "7d", "--window", "7x", "--store=s", "--quiet=maybe", "--no-such")
	got.check(t, term.ExitUsage,
		"unknown flag --windwo: did you mean --window?\n",
		`--window "7x": not a duration: write it like 90s, 36h, 7d or 2w, or forever`+"\n",
		`--quiet "maybe": write true or false`+"\n",
		"unknown flag --no-such: ")
	if n := strings.Count(got.stderr, "\n"); n != 4 {
		t.Errorf("%d lines, want 4: %s", n, got.stderr)
	}
}

func TestHelpIsDataOnStdout(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "--help", "-h", "help", "help keys show", "keys", "keys show --help", "version -h"} {
		got := run(t, "", strings.Fields(args)...)
		got.check(t, term.ExitDone)
		if !strings.HasPrefix(got.stdout, "Examples:\n  ") || !strings.Contains(got.stdout, "\nUsage: semel ") {
			t.Errorf("semel %s: help does not begin with examples, or lacks its usage:\n%s", args, got.stdout)
		}
	}
}

func TestVersionNamesRevisionAndToolchain(t *testing.T) {
	t.Parallel()
	got := run(t, "", "version", "--json")
	got.check(t, term.ExitDone)
	var report map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || report["version"] == "" || report["go"] == "" {
		t.Errorf("version --json: %s (%v)", got.stdout, err)
	}
	info := &debug.BuildInfo{
		Main:     debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{{Key: "vcs.revision", Value: "abc123"}, {Key: "vcs.modified", Value: "true"}, {Key: "vcs.time", Value: "2026-01-02T03:04:05Z"}},
	}
	if text := versionOf(info).String(); !strings.HasPrefix(text, "semel v1.2.3 (abc123, modified) go") {
		t.Errorf("version: %q", text)
	}
	if text := versionOf(nil).String(); !strings.HasPrefix(text, "semel (devel) go") {
		t.Errorf("version without build information: %q", text)
	}
}

func TestCompletionScriptsAreForTheirShells(t *testing.T) {
	t.Parallel()
	for shell, sign := range map[string]string{"bash": "complete -o", "zsh": "#compdef semel", "fish": "complete -c semel"} {
		got := run(t, "", "completion", shell)
		got.check(t, term.ExitDone)
		if !strings.Contains(got.stdout, sign) {
			t.Errorf("the script for %s lacks %q", shell, sign)
		}
	}
	if got := run(t, "", "__complete", "keys", "sh"); !strings.Contains(got.stdout, "show\t") {
		t.Errorf("the verb show is not completed: %q", got.stdout)
	}
}

// writerFunc is a faulty stdout or stderr.
type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestPanicIsOneLineUnlessDebugging(t *testing.T) {
	t.Parallel()
	broken := writerFunc(func([]byte) (int, error) { panic("the screen fell off") })
	for _, debugging := range []string{"", "1"} {
		var stderr bytes.Buffer
		env := func(name string) string {
			if name == "SEMEL_DEBUG" {
				return debugging
			}
			return ""
		}
		status := Main(t.Context(), kind.All(), []string{"version"}, strings.NewReader(""), broken, &stderr, env)
		lines := strings.Count(stderr.String(), "\n")
		if status != term.ExitFailed || !strings.HasPrefix(stderr.String(), "semel: internal error: the screen fell off: please report") || (lines == 1) != (debugging == "") {
			t.Errorf("SEMEL_DEBUG=%q: status %d, stderr %s", debugging, status, &stderr)
		}
	}
}

func TestClosedPipeEndsQuietly(t *testing.T) {
	t.Parallel()
	closed := writerFunc(func([]byte) (int, error) {
		return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
	})
	for _, args := range []string{"version", "--help", "completion bash"} {
		var stderr bytes.Buffer
		if status := Main(t.Context(), kind.All(), strings.Fields(args), strings.NewReader(""), closed, &stderr, noEnv); status != term.ExitDone || stderr.Len() > 0 {
			t.Errorf("semel %s: status %d, stderr %s", args, status, &stderr)
		}
	}
}

func TestFailedWriteOfStdoutIsAnError(t *testing.T) {
	t.Parallel()
	full := writerFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	for _, args := range []string{"version", "--help", "dedup -h", "help keys", "keys", "completion zsh"} {
		var stderr bytes.Buffer
		if status := Main(t.Context(), kind.All(), strings.Fields(args), strings.NewReader(""), full, &stderr, noEnv); status != term.ExitFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("semel %s: status %d, stderr %s", args, status, &stderr)
		}
	}
}

func TestColorIsForTerminalsThatWantIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		columns int
		noColor bool
		env     map[string]string
		want    bool
	}{
		{columns: 80, want: true},
		{columns: 0},
		{columns: 80, noColor: true},
		{columns: 80, env: map[string]string{"NO_COLOR": "1"}},
	} {
		var stderr bytes.Buffer
		a := &term.App{Kinds: kind.All(), Redact: strings.Clone, Stderr: &stderr, Columns: c.columns, NoColor: c.noColor, Env: func(name string) string { return c.env[name] }}
		a.Complain("semel", "it broke")
		if got := strings.Contains(stderr.String(), "\x1b["); got != c.want {
			t.Errorf("%+v: %q", c, &stderr)
		}
	}
	a := &term.App{Stderr: io.Discard, Env: noEnv}
	if a.LookAtTerminal(); a.Terminal || a.Columns != 0 {
		t.Errorf("a writer that is no file is a terminal of %d columns", a.Columns)
	}
}
