package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestEverythingThatIsWrongIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent")
	for _, test := range []struct {
		args []string
		want []string // the start of each line
	}{
		{
			[]string{"dedup", "--on-missing", "fial", "--on-mismatch", "foo", "--format", "xml", "--key", "a..b", "--window", "-3s", "--lossy=2", absent},
			[]string{
				`--window "-3s": `, `--lossy "2": `, `--format "xml": `, `--on-missing "fial": `, `--on-mismatch "foo": `,
				`--key "a..b": `, absent + ": there is no such file",
			},
		},
		{
			[]string{"dedup", "--kee", ".a", "-k", "a.b", "--format", "text", "--append", "--force", "--report", "-"},
			[]string{"unknown flag --kee: ", "--report -: ", "--append continues ", `--key "a.b": `},
		},
		{
			[]string{"dedup", "--window", "", "--store", "", "-o", "", "--report=", "--scope", "", "-k", "", "", absent},
			[]string{
				`--window "": the value is empty`, `--store "": the value is empty`, `--output "": the value is empty`, `--report "": the value is empty`,
				`--scope "": the value is empty`, `--key "": the value is empty`, "the name of an input is empty", absent + ": there is no such file",
			},
		},
		{
			[]string{"keys", "import", "--window", "7x", "--store", "", "--scope", "", "", absent},
			[]string{`--window "7x": `, `--store "": `, `--scope "": `, "the name of an input is empty", absent + ": there is no such file"},
		},
		{
			[]string{"keys", "resolve", "--as", "don", "--window", "0", "--store", absent},
			[]string{`--window "0": `, "the ID of the key is missing", `--as "don": `, "--reason TEXT is missing", "--store " + absent + ": there is no store"},
		},
		{[]string{"keys", "stats", "--no-such", "more"}, []string{"unknown flag --no-such: ", `unexpected argument "more"`, "--store DIR is missing"}},
		{[]string{"version", "--no-such", "more"}, []string{"unknown flag --no-such: ", `unexpected argument "more"`}},
		{[]string{"completion", "--no-such", "bash"}, []string{"unknown flag --no-such: "}},
		{[]string{"help", "--no-such"}, []string{"unknown flag --no-such: "}},
		{[]string{"keys", "import", "--store", "usage_test.go"}, []string{"--store usage_test.go: this is not a directory"}},
	} {
		verb := "semel " + strings.Join(test.args[:1+slices.Index([]string{"keys"}, test.args[0])+1], " ") + ": "
		got := programtest.Run(t, "", test.args...)
		if got.Status != term.ExitUsage || got.Stdout != "" {
			t.Errorf("%q: status %d, stdout %q", test.args, got.Status, got.Stdout)
		}
		lines := strings.Split(strings.TrimSuffix(got.Stderr, "\n"), "\n")
		for _, want := range test.want {
			i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, verb+want) })
			if i < 0 {
				t.Errorf("%q: no line begins with %q:\n%s", test.args, verb+want, got.Stderr)
				continue
			}
			lines = slices.Delete(lines, i, i+1)
		}
		if len(lines) > 0 {
			t.Errorf("%q: besides what is wrong:\n%s", test.args, strings.Join(lines, "\n"))
		}
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) > 0 {
		t.Errorf("something was touched: %v, %v", names, err)
	}
}

func TestHintsFitWhatWasWritten(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--window 100000w":      `--window "100000w": too long: write at most 15250w, or forever`,
		"--window 9999999999h":  `--window "9999999999h": too long: write at most 15250w, or forever`,
		"--window 15250w15250w": `--window "15250w15250w": too long: write at most 15250w, or forever`,
		"--expect 1e12":         `--expect "1e12": a filter can be made for 1 to 6.8e10 keys`,
		"--lossy 1e-30":         `--lossy "1e-30": not a rate: write a number from 1e-9 to 0.5`,
		"--key event_id":        `--key "event_id": did you mean .event_id?`,
		"--key lin":             `--key "lin": did you mean line?`,
		"--key a//b":            `--key "a//b": there is no such rule: use a path`,
	} {
		got := programtest.Run(t, "", append([]string{"dedup"}, strings.Fields(args)...)...)
		if got.Status != term.ExitUsage || !strings.HasPrefix(got.Stderr, "semel dedup: "+want) || strings.Count(got.Stderr, "\n") != 1 {
			t.Errorf("%s: status %d, %s", args, got.Status, got.Stderr)
		}
	}
}

func TestShellsCompleteTheValuesOfFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"dedup --on-missing":   "fail\nreject\npass\nhash\n:4\n",
		"dedup --on-mismatch":  "drop\nreject\npass\n:4\n",
		"dedup --format":       "auto\njsonl\ntext\ncsv\ntsv\n:4\n",
		"dedup --store":        ":16\n",
		"keys ls --state":      "claimed\ndone\nunknown\n:4\n",
		"keys resolve --as":    "done\nabsent\n:4\n",
		"keys show --store":    ":16\n",
		"keys rm id --reason":  ":4\n",
		"keys show":            ":4\n",
		"keys import --window": "forever\n:4\n",
	} {
		got := programtest.Run(t, "", append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		if got.Status != term.ExitDone || got.Stdout != want {
			t.Errorf("%s: status %d, %q, want %q", args, got.Status, got.Stdout, want)
		}
	}
	for _, args := range []string{"dedup --", "keys ls --", "keys resolve --"} {
		got := programtest.Run(t, "", append([]string{"__complete"}, strings.Fields(args)...)...)
		if !strings.Contains(got.Stdout, "--store\t") || strings.Contains(got.Stdout, "`") {
			t.Errorf("%s: %s", args, got.Stdout)
		}
	}
}

func TestMessagesAreInTheUsersWords(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"semel: the id in scope \"x\" is empty: invalid key":                         `the id in scope "x" is empty`,
		"open the store s: logstore: lengthen segment 1: no space left on device":    "open the store s: lengthen segment 1: no space left on device: make room and run the same command again",
		"the store s: invalid request: logstore: it is not empty":                    "the store s: it is not empty",
		"open a: too many open files":                                                "open a: too many open files: raise the limit (ulimit -n) and run the same command again",
		"a: no permission":                                                           "a: no permission: change the permissions, or run as another user",
		"a:7: the line is longer than 64 MiB":                                        "a:7: the line is longer than 64 MiB: is a line end missing, or a quote never closed?",
		"keys.jsonl:7: id: it is null; 1 keys are imported: importing again is safe": "keys.jsonl:7: id: it is null; 1 keys are imported: importing again is safe",
	} {
		if got := term.PlainText(text); got != want {
			t.Errorf("%q is told as %q, not %q", text, got, want)
		}
	}
}

func TestDedupReportIsJSONWhereAskedFor(t *testing.T) {
	t.Parallel()
	got := programtest.Run(t, "a\na\n", "dedup", "--json")
	var report map[string]any
	if err := json.Unmarshal([]byte(programtest.LastLine(got.Stderr)), &report); err != nil || report["read"] != 2.0 || report["duplicate"] != 1.0 || got.Stdout != "a\n" {
		t.Errorf("%+v, %v", got, err)
	}
	programtest.Run(t, "a\n", "dedup", "--json", "--quiet").Check(t, term.ExitDone)
}

func TestChangesOfKeysAreJSONWhereAskedFor(t *testing.T) {
	t.Parallel()
	dir := programtest.MixedStore(t)
	for args, want := range map[string][]string{
		"keys rm order-1 --reason x":                {`{"verb":"rm","before":{`, `"id":"order-1"`, `"state":"done"`, `"after":"absent"}`},
		"keys resolve order-2 --as done --reason x": {`{"verb":"resolve","before":{`, `"id":"order-2"`, `"state":"unknown"`, `"after":"done","window":"forever"}`},
	} {
		got := programtest.Run(t, "", append(strings.Fields(args), "--json", "--store", dir)...)
		got.Check(t, term.ExitDone)
		for _, text := range want {
			if !strings.Contains(got.Stdout, text) {
				t.Errorf("%s: %q lacks %s", args, got.Stdout, text)
			}
		}
	}
}

func TestAScopeThatIsNotReadableIsHintedAt(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "store")
	programtest.Run(t, "a\n", "dedup", "--store", dir).Check(t, term.ExitDone, "fresh 1")
	for _, verb := range []string{"ls", "export"} {
		programtest.Run(t, "", "keys", verb, "--scope", "default", "--store", dir).Check(t, term.ExitDone, "no listed key has the scope default. The store has 1 keys", "keys show")
		programtest.Run(t, "", "keys", verb, "--store", dir, "--quiet").Check(t, term.ExitDone)
	}
}

// Not parallel with other tests: see TestExamplesOfEveryHelpWorkAsPrinted.
func TestReportToStandardErrorAndItsSummaryBothStand(t *testing.T) {
	if _, err := os.Stat("/dev/stderr"); err != nil {
		t.Fatalf("standard error has no name here: %v", err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	command := exec.CommandContext(t.Context(), program, "dedup", "--report", "/dev/stderr")
	command.Env = append(os.Environ(), programtest.Variable+"=1")
	command.Stdin, command.Stderr = strings.NewReader("a\n"), log
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
	if text := programtest.ReadFile(t, log.Name()); !strings.HasPrefix(text, `{"read":1,`) || !strings.Contains(text, "}\nread 1  fresh 1") {
		t.Errorf("on stderr: %q", text)
	}
}
