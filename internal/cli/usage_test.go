package cli_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestErrorsOfFlagsAndOfTheVerbAreReportedTogether(t *testing.T) {
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

func TestShellsCompleteTheValuesOfFlags(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"dedup --on-missing":   "fail\nreject\npass\nhash\n:4\n",
		"dedup --on-mismatch":  "drop\nreject\npass\n:4\n",
		"dedup --format":       "auto\njsonl\njson\ntext\ncsv\ntsv\n:4\n",
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
	dir := t.TempDir()
	file := programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), `
stores: { keys: { embedded: { path: "${env:NONE}" } }, db: { postgres: { dsn: "${env:NONE}" } } }
pipelines:
  orders: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out } } }
  clicks: { source: { file: { paths: [in] } }, key: { id: .id }, store: keys, sink: { file: { path: out2 } } }
`)
	for args, want := range map[string]string{
		"run":                                   "yaml\nyml\n:8\n",
		"run FILE":                              "orders\nclicks\n:4\n",
		"run FILE orders":                       "clicks\n:4\n",
		"explain FILE orders":                   ":4\n",
		"doctor FILE":                           "orders\nclicks\nkeys\ndb\n:4\n",
		"parked ls --config FILE --pipeline":    "orders\nclicks\n:4\n",
		"keys ls --config FILE --store-name":    "keys\ndb\n:4\n",
		"why k --config FILE --store-name":      "keys\ndb\n:4\n",
		"keys ls --config none --store-name":    ":4\n",
		"parked show --config FILE":             ":4\n", // its variables are not set
		"migrate up --config FILE --store-name": "keys\ndb\n:4\n",
	} {
		words := append(append([]string{"__complete"}, strings.Fields(strings.ReplaceAll(args, "FILE", file))...), "")
		if got := programtest.Run(t, "", words...); got.Status != term.ExitDone || got.Stdout != want {
			t.Errorf("%s: %+v, want %q", args, got, want)
		}
	}
	for _, args := range []string{"dedup --", "keys ls --", "keys resolve --"} {
		got := programtest.Run(t, "", append([]string{"__complete"}, strings.Fields(args)...)...)
		if !strings.Contains(got.Stdout, "--store\t") || strings.Contains(got.Stdout, "`") {
			t.Errorf("%s: %s", args, got.Stdout)
		}
	}
}
