package cli_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
)

func TestMain(m *testing.M) { programtest.Main(m) }

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
		got := programtest.Run(t, "", strings.Fields(c.args)...)
		if got.Status != term.ExitUsage || got.Stderr != c.want+"\n" || got.Stdout != "" {
			t.Errorf("semel %s: status %d, stdout %q, stderr %q; want status 2 and stderr %q", c.args, got.Status, got.Stdout, got.Stderr, c.want)
		}
	}
}

func TestControlCharactersOfMessagesAreNotPrinted(t *testing.T) {
	t.Parallel()
	got := programtest.Run(t, "", "keys", "import", "no\x1b[2J\nsuch\u009b file", "--store", "x")
	if got.Status != term.ExitUsage || strings.ContainsAny(strings.TrimSuffix(got.Stderr, "\n"), "\x1b\n\u009b") || !strings.Contains(got.Stderr, `no\x1b[2J\nsuch\x9b file`) {
		t.Errorf("status %d, stderr %q", got.Status, got.Stderr)
	}
}

// A message is one line, whatever the names and contents of files are.
func TestFileNamesAndFieldsCannotForgeAMessage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	name := programtest.WriteFile(t, filepath.Join(dir, "a\nsemel dedup: forged: file"), "{\"id\":\"x\"}\n{\"id\n")
	for _, args := range [][]string{
		{"dedup", "--key", ".id", name},
		{"dedup", "--key", ".id", name + ".missing"},
		{"dedup", "--key", ".id", "--store", filepath.Join(name, "store"), name},
	} {
		got := programtest.Run(t, "", args...)
		if got.Status == term.ExitDone || strings.Count(got.Stderr, "\n") != 1 || !strings.Contains(got.Stderr, `a\nsemel dedup: forged: file`) {
			t.Errorf("semel %s: status %d, %s", args, got.Status, got.Stderr)
		}
	}
}

func TestAllInvalidFlagsAreReportedTogether(t *testing.T) {
	t.Parallel()
	got := programtest.Run(t, "", "keys", "import", "--windwo", "7d", "--window", "7x", "--store=s", "--quiet=maybe", "--no-such")
	got.Check(t, term.ExitUsage,
		"unknown flag --windwo: did you mean --window?\n",
		`--window "7x": not a duration: write it like 90s, 36h, 7d or 2w, or forever`+"\n",
		`--quiet "maybe": write true or false`+"\n",
		"unknown flag --no-such: ")
	if n := strings.Count(got.Stderr, "\n"); n != 4 {
		t.Errorf("%d lines, want 4: %s", n, got.Stderr)
	}
}

func TestHelpIsPrintedOnStdout(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "--help", "-h", "help", "help keys show", "keys", "keys show --help", "version -h"} {
		got := programtest.Run(t, "", strings.Fields(args)...)
		got.Check(t, term.ExitDone)
		if !strings.HasPrefix(got.Stdout, "Examples:\n  ") || !strings.Contains(got.Stdout, "\nUsage: semel ") {
			t.Errorf("semel %s: help does not begin with examples, or lacks its usage:\n%s", args, got.Stdout)
		}
	}
}

func TestVersionAsJSONNamesTheToolchain(t *testing.T) {
	t.Parallel()
	got := programtest.Run(t, "", "version", "--json")
	got.Check(t, term.ExitDone)
	var report map[string]any
	if err := json.Unmarshal([]byte(got.Stdout), &report); err != nil || report["version"] == "" || report["go"] == "" {
		t.Errorf("version --json: %s (%v)", got.Stdout, err)
	}
}

func TestVersionFlagsPrintTheVersion(t *testing.T) {
	t.Parallel()
	want := programtest.Run(t, "", "version")
	for _, flag := range []string{"--version", "-v"} {
		got := programtest.Run(t, "", flag)
		got.Check(t, term.ExitDone)
		if got.Stdout != want.Stdout || !strings.HasPrefix(got.Stdout, "semel ") {
			t.Errorf("%s prints %q, want %q", flag, got.Stdout, want.Stdout)
		}
	}
	if got := programtest.Run(t, "", "--version", "--json"); got.Status != term.ExitDone || !strings.HasPrefix(got.Stdout, `{"version":`) {
		t.Errorf("--version --json: %+v", got)
	}
}

func TestCompletionScriptsAreForTheirShells(t *testing.T) {
	t.Parallel()
	for shell, sign := range map[string]string{"bash": "complete -o", "zsh": "#compdef semel", "fish": "complete -c semel"} {
		got := programtest.Run(t, "", "completion", shell)
		got.Check(t, term.ExitDone)
		if !strings.Contains(got.Stdout, sign) {
			t.Errorf("the script for %s lacks %q", shell, sign)
		}
	}
	if got := programtest.Run(t, "", "__complete", "keys", "sh"); !strings.Contains(got.Stdout, "show\t") {
		t.Errorf("the verb show is not completed: %q", got.Stdout)
	}
}

func TestPanicIsOneLineUnlessDebugging(t *testing.T) {
	t.Parallel()
	broken := programtest.WriterFunc(func([]byte) (int, error) { panic("the screen fell off") })
	for _, debugging := range []string{"", "1"} {
		var stderr bytes.Buffer
		env := func(name string) string {
			if name == "SEMEL_DEBUG" {
				return debugging
			}
			return ""
		}
		status := cli.Main(t.Context(), kind.All(), []string{"version"}, strings.NewReader(""), broken, &stderr, env)
		lines := strings.Count(stderr.String(), "\n")
		if status != term.ExitFailed || !strings.HasPrefix(stderr.String(), "semel: internal error: the screen fell off: please report") || (lines == 1) != (debugging == "") {
			t.Errorf("SEMEL_DEBUG=%q: status %d, stderr %s", debugging, status, &stderr)
		}
	}
}

func TestClosedPipeEndsQuietly(t *testing.T) {
	t.Parallel()
	closed := programtest.WriterFunc(func([]byte) (int, error) {
		return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}
	})
	for _, args := range []string{"version", "--help", "completion bash"} {
		var stderr bytes.Buffer
		if status := cli.Main(t.Context(), kind.All(), strings.Fields(args), strings.NewReader(""), closed, &stderr, programtest.NoEnv); status != term.ExitDone || stderr.Len() > 0 {
			t.Errorf("semel %s: status %d, stderr %s", args, status, &stderr)
		}
	}
}

func TestFailedWriteOfStdoutIsAnError(t *testing.T) {
	t.Parallel()
	full := programtest.WriterFunc(func([]byte) (int, error) { return 0, syscall.ENOSPC })
	for _, args := range []string{"version", "--help", "dedup -h", "help keys", "keys", "completion zsh"} {
		var stderr bytes.Buffer
		if status := cli.Main(t.Context(), kind.All(), strings.Fields(args), strings.NewReader(""), full, &stderr, programtest.NoEnv); status != term.ExitFailed || !strings.Contains(stderr.String(), "no space left") {
			t.Errorf("semel %s: status %d, stderr %s", args, status, &stderr)
		}
	}
}
