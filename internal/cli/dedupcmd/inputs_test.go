package dedupcmd_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestDedupSaysThatDroppedLinesDiffer(t *testing.T) {
	t.Parallel()
	const lines = "{\"id\":1}\n{\"id\":1,\"a\":1}\n{\"id\":1,\"a\":2}\n{\"id\":1}\n"
	dups := filepath.Join(t.TempDir(), "dups.jsonl")
	const differ = "semel dedup: 2 duplicates differ in content from the line that was kept: "
	o := programtest.Run(t, lines, "dedup", "-k", ".id")
	o.Check(t, term.ExitDone, differ+"--on-mismatch reject --rejected FILE keeps them\n")
	if !strings.HasPrefix(lastLine(o.Stderr), "read 4  fresh 1  duplicates 3  mismatched 2  ") {
		t.Errorf("the summary is not the last line: %s", o.Stderr)
	}
	programtest.Run(t, lines, "dedup", "-k", ".id", "--duplicates", dups).Check(t, term.ExitDone, differ+dups+" has them")
	for _, args := range [][]string{
		{"--on-mismatch", "reject", "--rejected", filepath.Join(t.TempDir(), "odd")}, {"--on-mismatch", "pass"}, {"--on-mismatch", "drop"}, {"--json"},
	} {
		if o := programtest.Run(t, lines, append([]string{"dedup", "-k", ".id"}, args...)...); o.Status != term.ExitDone || strings.Contains(o.Stderr, "differ") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestDedupSaysWhichClockAWindowCountsBy(t *testing.T) {
	t.Parallel()
	alarms := filepath.Join(t.TempDir(), "alarms.jsonl")
	programtest.WriteFile(t, alarms, "{\"at\":\"10:00\",\"id\":1}\n{\"at\":\"14:00\",\"id\":1}\n")
	const note = "--window 5m counts by the clock of the runs, not by a time in the lines"
	programtest.Run(t, "", "dedup", "-k", ".id", "--window", "5m", alarms).Check(t, term.ExitDone, note)
	programtest.Run(t, "", "dedup", "-k", ".id", "--window", "5m", "--store", filepath.Join(t.TempDir(), "s"), alarms).Check(t, term.ExitDone, note)
	for _, args := range [][]string{{alarms}, {"--window", "5m"}, {"--window", "5m", "-q", alarms}} {
		if o := programtest.Run(t, "{\"id\":1}\n{\"id\":1}\n", append([]string{"dedup", "-k", ".id"}, args...)...); o.Status != term.ExitDone || strings.Contains(o.Stderr, "clock") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestDedupCountsLinesWithoutAKeyInItsSummary(t *testing.T) {
	t.Parallel()
	o := programtest.Run(t, "{\"id\":1}\n{}\n{}\n", "dedup", "-k", ".id", "--on-missing", "pass")
	o.Check(t, term.ExitDone, "read 3  fresh 3  duplicates 0  mismatched 0  rejected 0  missing 2  in ")
	if last := lastLine(o.Stderr); !summaryLine.MatchString(last) {
		t.Errorf("last line %q", last)
	}
}

// A run that stopped at a line is unfinished until its own command continues
// it, or another command has decided all its lines.
func TestDedupNamesUnfinishedRunsOfOtherCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "it's in.jsonl"), "{\"id\":1}\n{}\n{\"id\":2}\n")
	other := programtest.WriteFile(t, filepath.Join(dir, "other.jsonl"), "{\"id\":3}\n")
	store := filepath.Join(dir, "store")
	start := []string{"dedup", "--key", ".id", "--store", store, "--window", "2d"}
	first := append(start, "--output", filepath.Join(dir, "out"), "--duplicates", filepath.Join(dir, "dups"), in)
	programtest.Run(t, "", first...).Check(t, term.ExitFailed, in+":2: .id is missing")

	o := programtest.Run(t, "", append(start, "--output", filepath.Join(dir, "out2"), other)...)
	o.Check(t, term.ExitDone, "a run of another command is unfinished: it stopped after "+in+":1, and this run does not continue it; to continue it, run: semel dedup ")
	_, line, _ := strings.Cut(o.Stderr, "to continue it, run: ")
	line, _, _ = strings.Cut(line, "\n")
	programtest.Shell(t, dir, line).Check(t, term.ExitFailed, in+":2: .id is missing")
	programtest.WriteFile(t, in, "{\"id\":1}\n{\"id\":4}\n{\"id\":2}\n")
	programtest.Shell(t, dir, line).Check(t, term.ExitDone, "continuing at "+in+":2", "read 3  fresh 3  ")
	if got := programtest.ReadFile(t, filepath.Join(dir, "out")); got != "{\"id\":1}\n{\"id\":4}\n{\"id\":2}\n" {
		t.Errorf("output %q", got)
	}
	if o := programtest.Run(t, "", append(start, other)...); strings.Contains(o.Stderr, "unfinished") {
		t.Errorf("the run is finished: %s", o.Stderr)
	}
}

func TestDedupWithOtherFlagsSaysThatTheEarlierRunIsUnfinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{}\n{\"id\":2}\n")
	start := []string{"dedup", "--key", ".id", "--store", filepath.Join(dir, "store"), "--output", filepath.Join(dir, "out"), in}
	programtest.Run(t, "", start...).Check(t, term.ExitFailed, in+":2: .id is missing")
	const note = "an earlier run of these inputs, with other flags, is unfinished"
	programtest.Run(t, "", append(start, "--on-missing", "pass")...).Check(t, term.ExitDone, note, "to continue it, run: semel dedup --key .id --store ", "read 3  fresh 2  ")
	if o := programtest.Run(t, "", append(start, "--on-missing", "pass")...); strings.Contains(o.Stderr, note) {
		t.Errorf("the second run decided all lines of the first: %s", o.Stderr)
	}
}

func TestDedupSaysHowAChangedOutputOfEqualLengthDiffers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	args := []string{"dedup", "--key", ".id", "--store", filepath.Join(dir, "store"), "--output", filepath.Join(dir, "out"), in}
	programtest.Run(t, "", args...).Check(t, term.ExitDone, "fresh 1")
	programtest.WriteFile(t, filepath.Join(dir, "out"), "{\"id\":2}\n")
	programtest.Run(t, "", args...).Check(t, term.ExitUsage, "it still has 9 bytes, but other content")
}

// The first record says most about a wrong command.
func TestDedupNamesTheLikelyCauseAtTheFirstRecord(t *testing.T) {
	t.Parallel()
	const events = `{"event_id":1,"user":{"id":2,"name":3},"odd.name":4}` + "\n"
	const array = "looks like one JSON array: add --format json"
	for _, test := range []struct {
		input  string
		args   []string
		status int
		want   string
	}{
		{events, []string{"-k", ".evnt_id"}, term.ExitFailed, "standard input:1: .evnt_id is missing: it has event_id, user, odd.name: did you mean .event_id?\n"},
		{events, []string{"-k", ".event_id", "-k", ".user.idd"}, term.ExitFailed, ".user.idd is missing: .user has id, name: did you mean .user.id?\n"},
		{events, []string{"-k", ".usr.id"}, term.ExitFailed, ".usr.id is missing: it has event_id, user, odd.name: did you mean .user?\n"},
		{`{"list":[{"a b":1}]}`, []string{"-k", ".list[0].ab"}, term.ExitFailed, `.list[0] has a b: did you mean .list[0]["a b"]?` + "\n"},
		{events, []string{"-k", ".oddname"}, term.ExitFailed, `did you mean .["odd.name"]?` + "\n"},
		{events, []string{"-k", ".customer"}, term.ExitFailed, ".customer is missing: it has event_id, user, odd.name: fix the line, or choose --on-missing"},
		{events, []string{"-k", ".event_id.x"}, term.ExitFailed, ".event_id.x is missing: .event_id is not an object: fix the line"},
		{"{" + strings.Repeat(`"x":1,`, 12) + `"y":1}`, []string{"-k", ".customer"}, term.ExitFailed, "it has x, x, x, x, x, x, x, x, x, x, and 3 more: fix"},
		{"{\"id\":1}\n{\"idd\":1}\n", []string{"-k", ".id"}, term.ExitFailed, "standard input:2: .id is missing: fix the line, or choose"},
		{"[{\"id\":1},\n{\"id\":2}]\n", []string{"-k", ".id"}, term.ExitFailed, array},
		{"[{\"id\":1},{\"id\":2}]", []string{"-k", ".id"}, term.ExitFailed, array},
		{"{\n  \"id\": 1\n}\n", []string{"-k", ".id"}, term.ExitFailed, "looks like JSON that spans lines: add --format json, which"},
		{"{\"id\":1}{\"id\":2}\n", []string{"-k", ".id"}, term.ExitFailed, "the line has two documents: add --format json"},
		{"{\"id\":1},\n{\"id\":2}\n", []string{"-k", ".id"}, term.ExitFailed, "the line is an element of an array that spans lines: add --format json if the input has the whole array, or remove the commas with sed 's/,$//'"},
		{"[[{\"id\":1}]]", []string{"--format", "json", "-k", ".id"}, term.ExitFailed, "pass the input through jq -c '.[][]'"},
		{"\x00\x00\x00\x00\x2a\x06o-1\n", []string{"-k", ".id"}, term.ExitFailed, "as Avro, Protobuf and JSON of a schema registry do"},
		{"\x08\x96\x01\x12\x04test\n", []string{"-k", ".id"}, term.ExitFailed, "as Avro, Protobuf and other binary formats do"},
		{"{\"id\":1}\n\ufeff{\"id\":2}\n", []string{"-k", ".id"}, term.ExitFailed, "input:2: not valid JSON: expected a value at byte 1 of the line: the line begins with a byte order mark"},
		{"{\"id\":1}\n{\"id\":NaN}\n", []string{"-k", ".id"}, term.ExitFailed, "the line has NaN at byte 6, and JSON has no such number"},
		{"{'id': 1}\n", []string{"-k", ".id"}, term.ExitFailed, "the line is what Python prints (' at byte 1), and not JSON: write it with json.dumps"},
		{"{\"id\":1}\x00\n", []string{"-k", ".id"}, term.ExitFailed, "the line has a NUL at byte 8"},
		{"PAR1\x15\x04\n", []string{"-k", ".id"}, term.ExitFailed, "the line is Parquet"},
		{"{\x00\"\x00i\x00d\x00", []string{"-k", ".id"}, term.ExitFailed, "the line is in UTF-16"},
		{"\"{\\\"id\\\":1}\"\n", []string{"-k", ".id"}, term.ExitFailed, "the line is JSON in a text"},
		{"[1,\n2 3]", []string{"--format", "json"}, term.ExitFailed, "neither a comma nor ] follows an element of the array at byte 6"},
		{events, []string{"-k", "$.event_id"}, term.ExitUsage, `--key "$.event_id": write .event_id` + "\n"},
		{"id;v\n1;2\n", []string{"--format", "csv", "-k", ".id"}, term.ExitUsage, "the header is one column, id;v: if ';' separates the fields, add --delimiter ';'"},
		{"id;v\n1;2\n", []string{"--delimiter", ";", "-k", ".idd"}, term.ExitUsage, "the header has id, v: did you mean .id?"},
		{"1;2\n", []string{"--format", "csv", "--no-header", "-k", ".2"}, term.ExitFailed, "the record has one column, .1: if ';' separates"},
		{"1,2\n", []string{"--format", "csv", "--no-header", "-k", ".3"}, term.ExitFailed, "the record has the columns .1 to .2: fix the line"},
		{"1,2\n", []string{"--format", "csv", "--no-header", "-k", ".id"}, term.ExitUsage, "without a header the columns are .1, .2 and so on"},
		{"", []string{"--no-header", "-k", ".id"}, term.ExitUsage, "--no-header is for CSV and TSV"},
		{"", []string{"--format", "tsv", "--delimiter", ";", "-k", ".id"}, term.ExitUsage, "--delimiter is for CSV, and the format is tsv"},
		{"", []string{"--delimiter", ";;"}, term.ExitUsage, "not a delimiter: write one ASCII character"},
		{"", []string{"--delimiter", "\""}, term.ExitUsage, "cannot separate fields"},
	} {
		o := programtest.Run(t, test.input, append([]string{"dedup"}, test.args...)...)
		if o.Check(t, test.status, test.want); strings.Count(o.Stderr, "\n") != 1 {
			t.Errorf("%q: %+v", test.args, o)
		}
	}
}

func TestDedupReadsCSVAsItIs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	semicolons := programtest.WriteFile(t, filepath.Join(dir, "a.csv"), "id;v\n1;x\n\"1\";x\n2;y\n")
	bare := programtest.WriteFile(t, filepath.Join(dir, "b.tsv"), "1\tx\n2\tx\n1\tx\n")
	for _, test := range []struct {
		want string
		args []string
	}{
		{"id;v\n1;x\n2;y\n", []string{"--delimiter", ";", "-k", ".id", semicolons}},
		{"id;v\n1;x\n\"1\";x\n2;y\n", []string{"--delimiter", ";", "--no-header", "-k", "line", semicolons}},
		{"1\tx\n2\tx\n", []string{"--no-header", "-k", ".1", bare}},
		{"1\tx\n2\tx\n", []string{"--no-header", "-k", ".1", "--delimiter", "tab", bare}},
		{"1\tx\n", []string{"--no-header", "-k", ".2", "--delimiter", `\t`, "--format", "csv", bare}},
	} {
		o := programtest.Run(t, "", append([]string{"dedup", "--quiet"}, test.args...)...)
		if o.Check(t, term.ExitDone); o.Stdout != test.want {
			t.Errorf("%q: got %q, want %q", test.args, o.Stdout, test.want)
		}
	}
}

// The delimiter and the header belong to the command that resumes a run.
func TestDedupContinuesCSVWithoutAHeader(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in"), "1;x\n\n;x\n")
	args := []string{"dedup", "--delimiter", ";", "--no-header", "--key", ".1", "--store", filepath.Join(dir, "store"), "--output", filepath.Join(dir, "out"), in}
	programtest.Run(t, "", args...).Check(t, term.ExitFailed, in+":3: .1 is empty")
	programtest.Run(t, "", append(args, "--on-missing", "hash")...).Check(t, term.ExitDone, "run: semel dedup --key .1 --format csv --delimiter ';' --no-header --store ")
	programtest.WriteFile(t, in, "1;x\n\n2;x\n1;x\n")
	programtest.Run(t, "", args...).Check(t, term.ExitDone, "continuing at "+in+":3", "read 3  fresh 2  duplicates 1  ")
	if got := programtest.ReadFile(t, filepath.Join(dir, "out")); got != "1;x\n;x\n2;x\n" {
		t.Errorf("output %q", got)
	}
}

func TestDedupCompressesItsFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{\"id\":2}\n{\"id\":1}\n")
	more := programtest.WriteFile(t, filepath.Join(dir, "more.jsonl"), "{\"id\":2}\n{\"id\":3}\n")
	for _, store := range []bool{false, true} {
		start := []string{"dedup", "--key", ".id"}
		name := "memory"
		if store {
			name = "store"
			start = append(start, "--store", filepath.Join(dir, "store"))
		}
		out, dups := filepath.Join(dir, name+".jsonl.gz"), filepath.Join(dir, name+".zst")
		o := programtest.Run(t, "", append(start, "--output", out, "--duplicates", dups, "--json", in)...)
		o.Check(t, term.ExitDone, `"bytes_out":18,`)
		if store {
			programtest.Run(t, "", append(start, "--output", out, more)...).Check(t, term.ExitDone, "fresh 1  duplicates 1")
		} else {
			programtest.Run(t, "", append(start, "--output", out, more)...).Check(t, term.ExitUsage, "--append")
			programtest.Run(t, "", append(start, "--output", out, "--append", more)...).Check(t, term.ExitDone, "fresh 2")
		}
		want := "{\"id\":1}\n{\"id\":2}\n{\"id\":3}\n"
		if !store {
			want = "{\"id\":1}\n{\"id\":2}\n{\"id\":2}\n{\"id\":3}\n"
		}
		if got := programtest.Shell(t, dir, "gzip -dc "+out); got.Stdout != want {
			t.Errorf("%s: %+v", out, got)
		}
		// The program reads it as it reads any compressed input.
		if got := programtest.Run(t, "", "dedup", "--quiet", dups); got.Stdout != "{\"id\":1}\n" {
			t.Errorf("%s: %+v", dups, got)
		}
	}
}

func TestDedupRefusesCompressedFilesThatItCannotContinue(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	text := programtest.WriteFile(t, filepath.Join(dir, "text.gz"), "text\n")
	cut := programtest.WriteFile(t, filepath.Join(dir, "cut.gz"), string(programtest.Gzip(t, "{\"id\":2}\n")[:20]))
	open := programtest.WriteFile(t, filepath.Join(dir, "open.gz"), string(programtest.Gzip(t, "{\"id\":2}")))
	store := filepath.Join(dir, "store")
	for _, test := range []struct {
		want string
		args []string
	}{
		{"--output " + text + ": the content is not gzip data, although the name says so", []string{"--append", "-o", text, in}},
		{"--output " + cut + ": nothing can be appended, because the gzip data ends early", []string{"--append", "-o", cut, in}},
		{"--output " + open + ": nothing can be appended, because the last line has no line end", []string{"--append", "-o", open, in}},
		{"x.bz2: semel does not write this compression: write .gz or .zst", []string{"-o", filepath.Join(dir, "x.bz2")}},
		{"--duplicates " + filepath.Join(dir, "x.XZ") + ": semel does not write", []string{"--duplicates", filepath.Join(dir, "x.XZ")}},
		{"with --store, compressed files need inputs and an --output that are files", []string{"--store", store, "-o", filepath.Join(dir, "new.gz")}},
		{"--rejected " + filepath.Join(dir, "new.gz") + ": with --store, compressed files need", []string{"--store", store, "--rejected", filepath.Join(dir, "new.gz"), in}},
	} {
		programtest.Run(t, "{}\n", append([]string{"dedup", "-k", ".id"}, test.args...)...).Check(t, term.ExitUsage, test.want)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 4 {
		t.Errorf("a refused run touched something: %v, %v", names, err)
	}
}

func TestDedupKeepsTheLastLineOfEachKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	day1 := programtest.WriteFile(t, filepath.Join(dir, "day-1.jsonl"), "{\"id\":1,\"v\":1}\n{\"id\":2,\"v\":1}\n{\"id\":1,\"v\":2}\n")
	day2 := programtest.WriteFile(t, filepath.Join(dir, "day-2.jsonl"), "{\"id\":3,\"v\":1}\n{\"id\":1,\"v\":2}\n")
	const kept = "{\"id\":2,\"v\":1}\n{\"id\":3,\"v\":1}\n{\"id\":1,\"v\":2}\n"
	o := programtest.Run(t, "", "dedup", "--key", ".id", "--keep", "last", day1, day2)
	o.Check(t, term.ExitDone, "1 duplicate differs in content from the line that was kept", "read 5  fresh 3  duplicates 2  mismatched 1  ")
	if o.Stdout != kept {
		t.Errorf("got %q, want %q", o.Stdout, kept)
	}
	out := filepath.Join(dir, "out.zst")
	programtest.Run(t, "", "dedup", "--quiet", "--key", ".id", "--keep", "last", "--output", out, day1, day2).Check(t, term.ExitDone)
	if got := programtest.Run(t, "", "dedup", "--quiet", out); got.Stdout != kept {
		t.Errorf("compressed: %+v", got)
	}
	programtest.Run(t, "", "dedup", "--key", ".idd", "--keep", "last", day1).Check(t, term.ExitFailed, day1+":1: .idd is missing: it has id, v: did you mean .id?")
	for _, test := range []struct {
		want string
		args []string
	}{
		{"--keep last and --store exclude each other", []string{"--store", filepath.Join(dir, "store"), day1}},
		{"--keep last and --window exclude each other", []string{"--window", "1h", day1}},
		{"--keep last and --lossy exclude each other", []string{"--lossy", "1%", "--expect", "10", day1}},
		{"standard input does not permit: name files", []string{"-"}},
		{"standard input does not permit: name files", nil},
		{os.DevNull + " is not a regular file: copy it to one first", []string{day1, os.DevNull}},
	} {
		programtest.Run(t, "x", append([]string{"dedup", "--key", ".id", "--keep", "last"}, test.args...)...).Check(t, term.ExitUsage, test.want)
	}
	programtest.Run(t, "", "dedup", "--keep", "newest", day1).Check(t, term.ExitUsage, `--keep "newest": write one of first, last`)
}

// The command that continues a run works as it is printed, also in a scope of
// another key rule.
func TestDedupNamesAnUnfinishedRunInASharedScope(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{}\n")
	start := []string{"dedup", "--quiet", "--store", filepath.Join(dir, "store")}
	programtest.Run(t, "{\"a\":1}\n", append(start, "--key", ".a")...).Check(t, term.ExitDone)
	programtest.Run(t, "", append(start, "--key", ".id", "--same-scope", "--output", filepath.Join(dir, "out"), in)...).Check(t, term.ExitFailed, in+":2: .id is missing")
	o := programtest.Run(t, "{\"a\":1}\n", "dedup", "--store", filepath.Join(dir, "store"), "--key", ".a")
	_, line, _ := strings.Cut(o.Stderr, "to continue it, run: ")
	line, _, _ = strings.Cut(line, "\n")
	programtest.Shell(t, dir, line).Check(t, term.ExitFailed, in+":2: .id is missing")
}

func TestACompressedFileWithoutContentDoesNotStopTheNextRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := programtest.WriteFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	for _, name := range []string{"out.gz", "out.zst"} {
		out := filepath.Join(dir, name)
		programtest.Run(t, "", "dedup", "-k", ".idd", "-o", out, in).Check(t, term.ExitFailed, "did you mean .id?")
		programtest.Run(t, "", "dedup", "-k", ".id", "-o", out, in).Check(t, term.ExitDone, "fresh 1")
		programtest.Run(t, "", "dedup", "-k", ".id", "-o", out, in).Check(t, term.ExitUsage, "bytes: add --force to overwrite the file, also if they are from an interrupted run")
	}
}
