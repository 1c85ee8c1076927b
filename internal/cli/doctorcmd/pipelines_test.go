package doctorcmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestDoctorExaminesSourcesAndSinks(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, "", "")
	got := programtest.Run(t, "", "doctor", file, "copy", "--json")
	got.Check(t, term.ExitDone, "0 stores and 1 pipeline: 4 fine, 0 to note")
	if !strings.Contains(got.Stdout, `"pipeline":"copy","kind":"pipeline","severity":"fine","subject":"source.file.paths"`) {
		t.Errorf("%s", got.Stdout)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(file), "in.jsonl")); err != nil {
		t.Fatal(err)
	}
	programtest.Run(t, "", "doctor", file).Check(t, term.ExitFound, "1 store and 1 pipeline: ", "1 broken")
	programtest.Run(t, "", "doctor", file, "cpoy").Check(t, term.ExitUsage, "did you mean copy?")
}

func TestConfigurationErrorsAreUsageErrorsWithTheirPlace(t *testing.T) {
	t.Parallel()
	file := programtest.WriteFile(t, filepath.Join(t.TempDir(), "c.yaml"), "stores:\n  a: { memroy: {} }\n  b: { tiered: [a, c] }\n")
	want := "semel doctor: " + file + ":2:8: unknown field stores.a.memroy: did you mean memory?\n" +
		"semel doctor: " + file + ":3:20: stores.b.tiered: there is no store \"c\": did you mean a?\n"
	if got := programtest.Run(t, "", "doctor", file); got.Status != term.ExitUsage || !strings.HasPrefix(got.Stderr, want[:len(want)-len("did you mean a?\n")]) {
		t.Errorf("got %+v, want %s", got, want)
	}
}
