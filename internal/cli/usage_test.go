package cli

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEverythingThatIsWrongIsReportedAtOnce(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	absent := filepath.Join(dir, "absent")
	for _, test := range []struct {
		args []string
		want []string // the beginning of each line
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
			[]string{"unknown flag --kee: ", "--report -: ", "--append goes on ", `--key "a.b": `},
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
	} {
		verb := "semel " + strings.Join(test.args[:1+slices.Index([]string{"keys"}, test.args[0])+1], " ") + ": "
		got := run(t, "", test.args...)
		if got.status != exitUsage || got.stdout != "" {
			t.Errorf("%q: status %d, stdout %q", test.args, got.status, got.stdout)
		}
		lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
		for _, want := range test.want {
			i := slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, verb+want) })
			if i < 0 {
				t.Errorf("%q: no line begins with %q:\n%s", test.args, verb+want, got.stderr)
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
		"--key event_id":        `--key "event_id": did you mean .event_id?`,
		"--key lin":             `--key "lin": did you mean line?`,
		"--key a//b":            `--key "a//b": there is no such rule: use a path`,
	} {
		got := run(t, "", append([]string{"dedup"}, strings.Fields(args)...)...)
		if got.status != exitUsage || !strings.HasPrefix(got.stderr, "semel dedup: "+want) || strings.Count(got.stderr, "\n") != 1 {
			t.Errorf("%s: status %d, %s", args, got.status, got.stderr)
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
		got := run(t, "", append(append([]string{"__complete"}, strings.Fields(args)...), "")...)
		if got.status != exitDone || got.stdout != want {
			t.Errorf("%s: status %d, %q, want %q", args, got.status, got.stdout, want)
		}
	}
	for _, args := range []string{"dedup --", "keys ls --", "keys resolve --"} {
		got := run(t, "", append([]string{"__complete"}, strings.Fields(args)...)...)
		if !strings.Contains(got.stdout, "--store\t") || strings.Contains(got.stdout, "`") {
			t.Errorf("%s: %s", args, got.stdout)
		}
	}
}
