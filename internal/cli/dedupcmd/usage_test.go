package dedupcmd_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
)

func TestDedupSuggestsTheFlagValueThatWasMeant(t *testing.T) {
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

func TestDedupReportIsJSONWhereAskedFor(t *testing.T) {
	t.Parallel()
	got := programtest.Run(t, "a\na\n", "dedup", "--json")
	var report map[string]any
	if err := json.Unmarshal([]byte(lastLine(got.Stderr)), &report); err != nil || report["read"] != 2.0 || report["duplicate"] != 1.0 || got.Stdout != "a\n" {
		t.Errorf("%+v, %v", got, err)
	}
	programtest.Run(t, "a\n", "dedup", "--json", "--quiet").Check(t, term.ExitDone)
}

// Not parallel with other tests: see TestExamplesOfEveryHelpWorkAsPrinted.
func TestAReportOnStandardErrorIsFollowedByTheSummary(t *testing.T) {
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
