package cli

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
)

// shell runs a command line with the program on its path.
func shell(t *testing.T, dir, line string) outcome {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binaries := t.TempDir()
	if err := os.Symlink(program, filepath.Join(binaries, "semel")); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	command := exec.CommandContext(t.Context(), "sh", "-e", "-c", line)
	command.Dir, command.Stdout, command.Stderr = dir, &stdout, &stderr
	command.Env = append(os.Environ(), "PATH="+binaries+string(os.PathListSeparator)+os.Getenv("PATH"), programVariable+"=1", "GORACE=atexit_sleep_ms=0")
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

func TestDedupSaysThatDroppedLinesDiffer(t *testing.T) {
	t.Parallel()
	const lines = "{\"id\":1}\n{\"id\":1,\"a\":1}\n{\"id\":1,\"a\":2}\n{\"id\":1}\n"
	dups := filepath.Join(t.TempDir(), "dups.jsonl")
	const differ = "semel dedup: 2 duplicates differ in content from the line that was kept: "
	o := run(t, lines, "dedup", "-k", ".id")
	o.check(t, term.ExitDone, differ+"--on-mismatch reject --rejected FILE keeps them\n")
	if !strings.HasPrefix(lastLine(o.stderr), "read 4  fresh 1  duplicates 3  mismatched 2  ") {
		t.Errorf("the summary is not the last line: %s", o.stderr)
	}
	run(t, lines, "dedup", "-k", ".id", "--duplicates", dups).check(t, term.ExitDone, differ+dups+" has them")
	for _, args := range [][]string{
		{"--on-mismatch", "reject", "--rejected", filepath.Join(t.TempDir(), "odd")}, {"--on-mismatch", "pass"}, {"--json"},
	} {
		if o := run(t, lines, append([]string{"dedup", "-k", ".id"}, args...)...); o.status != term.ExitDone || strings.Contains(o.stderr, "differ") {
			t.Errorf("%q: %+v", args, o)
		}
	}
}

func TestDedupCountsLinesWithoutAKeyInItsSummary(t *testing.T) {
	t.Parallel()
	o := run(t, "{\"id\":1}\n{}\n{}\n", "dedup", "-k", ".id", "--on-missing", "pass")
	o.check(t, term.ExitDone, "read 3  fresh 3  duplicates 0  mismatched 0  rejected 0  missing 2  in ")
	if last := lastLine(o.stderr); !summaryLine.MatchString(last) {
		t.Errorf("last line %q", last)
	}
}

// A run that stopped at a line is unfinished until its own command continues
// it, or another command has decided all its lines.
func TestDedupNamesUnfinishedRunsOfOtherCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "it's in.jsonl"), "{\"id\":1}\n{}\n{\"id\":2}\n")
	other := writeFile(t, filepath.Join(dir, "other.jsonl"), "{\"id\":3}\n")
	store := filepath.Join(dir, "store")
	start := []string{"dedup", "--key", ".id", "--store", store, "--window", "2d"}
	first := append(start, "--output", filepath.Join(dir, "out"), "--duplicates", filepath.Join(dir, "dups"), in)
	run(t, "", first...).check(t, term.ExitFailed, in+":2: .id is missing")

	o := run(t, "", append(start, "--output", filepath.Join(dir, "out2"), other)...)
	o.check(t, term.ExitDone, "a run of another command is unfinished: it stopped after "+in+":1, and this run does not continue it; to continue it, run: semel dedup ")
	_, line, _ := strings.Cut(o.stderr, "to continue it, run: ")
	line, _, _ = strings.Cut(line, "\n")
	shell(t, dir, line).check(t, term.ExitFailed, in+":2: .id is missing")
	writeFile(t, in, "{\"id\":1}\n{\"id\":4}\n{\"id\":2}\n")
	shell(t, dir, line).check(t, term.ExitDone, "continuing at "+in+":2", "read 3  fresh 3  ")
	if got := readFile(t, filepath.Join(dir, "out")); got != "{\"id\":1}\n{\"id\":4}\n{\"id\":2}\n" {
		t.Errorf("output %q", got)
	}
	if o := run(t, "", append(start, other)...); strings.Contains(o.stderr, "unfinished") {
		t.Errorf("the run is finished: %s", o.stderr)
	}
}

func TestDedupWithOtherFlagsSaysThatTheEarlierRunIsUnfinished(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n{}\n{\"id\":2}\n")
	start := []string{"dedup", "--key", ".id", "--store", filepath.Join(dir, "store"), "--output", filepath.Join(dir, "out"), in}
	run(t, "", start...).check(t, term.ExitFailed, in+":2: .id is missing")
	const note = "an earlier run of these inputs, with other flags, is unfinished"
	run(t, "", append(start, "--on-missing", "pass")...).check(t, term.ExitDone, note, "to continue it, run: semel dedup --key .id --store ", "read 3  fresh 2  ")
	if o := run(t, "", append(start, "--on-missing", "pass")...); strings.Contains(o.stderr, note) {
		t.Errorf("the second run decided all lines of the first: %s", o.stderr)
	}
}

func TestDedupSaysHowAChangedOutputOfEqualLengthDiffers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in := writeFile(t, filepath.Join(dir, "in.jsonl"), "{\"id\":1}\n")
	args := []string{"dedup", "--key", ".id", "--store", filepath.Join(dir, "store"), "--output", filepath.Join(dir, "out"), in}
	run(t, "", args...).check(t, term.ExitDone, "fresh 1")
	writeFile(t, filepath.Join(dir, "out"), "{\"id\":2}\n")
	run(t, "", args...).check(t, term.ExitUsage, "it still has 9 bytes, but other content")
}
