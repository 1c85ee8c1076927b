package dedupcmd_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestDedupCountsTheWindowByTimesInLines(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second, third := `{"at":"2026-01-01T10:00:00Z","id":"a"}`+"\n", `{"at":"2026-01-01T10:02:00Z","id":"a"}`+"\n", `{"at":"2026-01-01T14:00:00Z","id":"a"}`+"\n"
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), first+second+third)
	dups := filepath.Join(dir, "dups.jsonl")
	got := programtest.Run(t, "", "dedup", "--key", ".id", "--window", "5m", "--time", ".at", "--why", "--duplicates", dups, in)
	got.Check(t, term.ExitDone, "read 3  fresh 2  duplicates 1")
	if got.Stdout != first+third {
		t.Errorf("%+v", got)
	}
	data, err := os.ReadFile(dups)
	if want := `{"kept":"` + in + `:1","dropped":"` + in + `:2","differs":[".at"],"line":` + second[:len(second)-1] + "}\n"; err != nil || string(data) != want {
		t.Errorf("%s, %v, want %s", data, err, want)
	}
	for _, test := range []struct {
		unit, a, b, far string
	}{
		{"s", "5", "304", "305"}, {"ms", "5000", "304999", "305000"}, {"us", "5000000", "304999999.9", "3.05e8"}, {"ns", "5000000000", "304999999999", "305000000000"},
		{"", "1795834800", "1795835099000", "1795835100000000"}, {"rfc3339", `"2026-01-01T10:00:00Z"`, `"2026-01-01T11:04:59+01:00"`, `"2026-01-01T10:05:00.000Z"`},
	} {
		args := []string{"dedup", "--quiet", "--key", ".id", "--window", "5m", "--time", ".t"}
		if test.unit != "" {
			args = append(args, "--time-unit", test.unit)
		}
		line := func(at string) string { return `{"id":1,"t":` + at + "}\n" }
		if got := programtest.Run(t, line(test.a)+line(test.b)+line(test.far), args...); got.Stdout != line(test.a)+line(test.far) {
			t.Errorf("%s: %+v", test.unit, got)
		}
	}
	for _, test := range []struct {
		want string
		args []string
	}{
		{"--time counts the window by the time in a line: add --window", []string{"--time", ".at"}},
		{"--time-unit s is the unit of a time in the line: add --time PATH", []string{"--time-unit", "s"}},
		{`--time-unit "any": no unit of a time: write s, ms, us, ns or rfc3339`, []string{"--time", ".at", "--window", "1m", "--time-unit", "any"}},
		{`--time "": `, []string{"--time", "", "--window", "1m"}},
		{"--time and --store exclude each other: a store forgets keys by the clock", []string{"--time", ".at", "--window", "1m", "--store", filepath.Join(dir, "store")}},
		{"--why says why lines are duplicates: add --duplicates FILE", []string{"--why"}},
	} {
		programtest.Run(t, "", append([]string{"dedup", "--key", ".id", in}, test.args...)...).Check(t, term.ExitUsage, test.want)
	}
	programtest.Run(t, "", "dedup", "--key", ".id", "--window", "5m", "--time", ".at", "--time-unit", "s", in).Check(t, term.ExitFailed, `is no number of seconds since 1970 (--time-unit s)`, "--on-missing reject")
	if _, err := os.Stat(filepath.Join(dir, "store")); err == nil {
		t.Error("a refused run made a store")
	}
}

func TestDedupKeepsOnlyLinesWhoseKeyOccursOnce(t *testing.T) {
	t.Parallel()
	in := programtest.WriteFile(t, filepath.Join(t.TempDir(), "in.csv"), "id,v\n1,a\n2,b\n1,c\n")
	got := programtest.Run(t, "", "dedup", "--key", ".id", "--keep", "none", in)
	got.Check(t, term.ExitDone, "read 3  fresh 1  duplicates 2  mismatched 0")
	if got.Stdout != "id,v\n2,b\n" {
		t.Errorf("%+v", got)
	}
	programtest.Run(t, "x\n", "dedup", "--keep", "none").Check(t, term.ExitUsage, "--keep none reads its inputs twice, which standard input does not permit")
	programtest.Run(t, "", "dedup", "--keep", "none", "--on-mismatch", "pass", in).Check(t, term.ExitUsage, "no line is kept with which another could be compared")
}
