package oncecmd_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/test/programtest"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// patience is how long a test waits for a state. It is long, because machines may be slow.
const patience = 90 * time.Second

// until waits until done.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !done(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %s: no %s", patience, what)
		}
	}
}

// running is a call in a process of its own.
type running struct {
	*exec.Cmd
	stdout, stderr bytes.Buffer
}

// start starts the verb in a directory.
func start(t *testing.T, dir string, args ...string) *running {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{Cmd: exec.CommandContext(t.Context(), program, append([]string{"once"}, args...)...)}
	r.Dir, r.Stdout, r.Stderr = dir, &r.stdout, &r.stderr
	r.Env = append(os.Environ(), programtest.Variable+"=1", "GORACE=atexit_sleep_ms=0")
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// end waits for the end of a call.
func (r *running) end() programtest.Outcome {
	_ = r.Wait() // the status says it
	return programtest.Outcome{Status: r.ProcessState.ExitCode(), Stdout: r.stdout.String(), Stderr: r.stderr.String()}
}

func once(t *testing.T, dir string, args ...string) programtest.Outcome {
	t.Helper()
	return start(t, dir, args...).end()
}

// gone reports whether no process with a number runs. A process that ended and was not yet
// waited for does not run.
func gone(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return true
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && bytes.Contains(stat, []byte(") Z "))
}

// kill kills a call with SIGKILL, and waits for its end.
func (r *running) kill(t *testing.T) {
	t.Helper()
	if err := r.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = r.Wait() // it was killed
}

// killWhileItRuns starts a call whose command does not end, and kills the call while the command
// runs. The flags end with "--".
func killWhileItRuns(t *testing.T, dir string, flags ...string) {
	t.Helper()
	killed := start(t, dir, append(flags, "sh", "-c", "echo $$ > running; sleep 1000")...)
	numbers(t, filepath.Join(dir, "running"), 1)
	killed.kill(t)
}

// numbers reads process ids from a file that a command writes.
func numbers(t *testing.T, path string, n int) (list []int) {
	t.Helper()
	until(t, "process ids in "+path, func() bool {
		text, _ := os.ReadFile(path)
		list = nil
		for _, word := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(word); err == nil {
				list = append(list, pid)
			}
		}
		return len(list) >= n && strings.HasSuffix(string(text), "\n")
	})
	return list
}

func TestACommandRunsOnceForAKey(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	command := []string{"--key", "a", "--", "sh", "-c", "echo out; echo $SEMEL_KEY $SEMEL_ATTEMPT >&2; echo $SEMEL_TOKEN > token"}
	got := once(t, dir, command...)
	got.Check(t, 0, "a 1\n", "semel once: a: ran in ", ", attempt 1, exit status 0\n")
	if token, err := strconv.ParseUint(strings.TrimSpace(programtest.ReadFile(t, filepath.Join(dir, "token"))), 10, 64); err != nil || token == 0 || got.Stdout != "out\n" {
		t.Errorf("token %d, %v; %+v", token, err, got)
	}
	got = once(t, dir, command...)
	got.Check(t, 0, "semel once: a: duplicate, exit status 0: ran before on ")
	if got.Stdout != "" || strings.Contains(got.Stderr, "a 1") {
		t.Errorf("a duplicate ran, or wrote its output: %+v", got)
	}
	if got = once(t, dir, append([]string{"--replay", "-q"}, command...)...); got != (programtest.Outcome{Stdout: "out\n"}) {
		t.Errorf("replay: %+v", got)
	}
	got = once(t, dir, append([]string{"--json"}, command...)...)
	var line struct {
		Key, Scope, Outcome string
		Status              int
	}
	if err := json.Unmarshal([]byte(got.Stderr), &line); err != nil || line.Key != "a" || line.Scope != "once" || line.Outcome != "duplicate" {
		t.Errorf("%+v, %v", got, err)
	}
	once(t, dir, "--key", "a", "--scope", "other", "--", "true").Check(t, 0, "a: ran in")
}

func TestTheStatusOfTheCommandIsTheResult(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fails := []string{"--", "sh", "-c", "echo x >> ran; exit 7"}
	once(t, dir, append([]string{"--key", "a"}, fails...)...).Check(t, 7, "a: failed in ", "exit status 7: a later call runs the command again")
	once(t, dir, append([]string{"--key", "a", "--on-failure", "keep"}, fails...)...).Check(t, 7, "a: ran in ", "attempt 1, exit status 7")
	once(t, dir, append([]string{"--key", "a"}, fails...)...).Check(t, 7, "a: duplicate, exit status 7")
	if ran := programtest.ReadFile(t, filepath.Join(dir, "ran")); ran != "x\nx\n" {
		t.Errorf("it ran %q", ran)
	}
	once(t, dir, "--key", "b", "--", "sh", "-c", "kill -TERM $$").Check(t, 143, "exit status 143")
	once(t, dir, "--key", "c", "--", "no-such-command").Check(t, 127, "semel once: no-such-command: executable file not found in $PATH: nothing ran")
	once(t, dir, "--key", "c", "--", "./no-such-command").Check(t, 127, "semel once: ./no-such-command: stat ./no-such-command: no such file or directory: nothing ran")
	once(t, dir, "--key", "c", "--", "./ran").Check(t, 126, "semel once: ./ran: permission denied")
	programtest.WriteProgram(t, filepath.Join(dir, "bad"), "\x7fELF is not enough")
	once(t, dir, "--key", "c", "--", "./bad").Check(t, 126, "exec format error: nothing ran")
	once(t, dir, "--key", "c", "--", "true").Check(t, 0, "c: ran in") // none of them has the key
}

// A command with much output keeps a part of it, and the reader of stdout may leave early.
func TestOutputIsPassedOnAndKeptInPart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	loud := []string{"--key", "loud", "--keep-output", "10", "--", "sh", "-c", "printf 0123456789abcdef"}
	if got := once(t, dir, loud...); got.Stdout != "0123456789abcdef" {
		t.Errorf("%+v", got)
	}
	got := once(t, dir, append([]string{"--replay"}, loud...)...)
	if got.Check(t, 0, "only the first 10 of 16 bytes of its output were kept"); got.Stdout != "0123456789" {
		t.Errorf("%+v", got)
	}
	got = programtest.Shell(t, dir, "(semel once --key yes -- yes || echo $? > status) | head -1")
	if status := programtest.ReadFile(t, filepath.Join(dir, "status")); status != "141\n" || got.Stdout != "y\n" {
		t.Errorf("status %s: %+v", status, got)
	}
	full := programtest.Shell(t, dir, "semel once --key full -- echo hi > /dev/full")
	full.Check(t, term.ExitFailed, "its output could not be written: write /dev/stdout: no space left on device")
	once(t, dir, "--key", "full", "--", "echo", "hi").Check(t, 0, "duplicate") // it ran
	programtest.Shell(t, dir, "echo typed | semel once --key in --keep-output 0 -q -- cat > copy")
	if text := programtest.ReadFile(t, filepath.Join(dir, "copy")); text != "typed\n" {
		t.Errorf("stdin: %q", text)
	}
	once(t, dir, "--key", "big", "--keep-output", "100MiB", "--", "true").Check(t, term.ExitUsage, "--keep-output: the store ./semel-once keeps results of up to ")
}

func TestWrongUsageRunsNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for args, want := range map[string]string{
		"-- touch ran": "--key KEY is missing",
		"--key a":      "the COMMAND is missing",
		"--key a --zone Europe/Vienna -- touch ran":                         "--zone is only for --every",
		"--key a --every 1h --zone Europe/Vienna -- touch ran":              "--zone is only for intervals of whole days",
		"--key a --every 1d --zone Mars -- touch ran":                       "write its name in the IANA database",
		"--key a --every 30d --window 7d -- touch ran":                      "--window is too short",
		"--key a --every 7d --window 7d --zone Europe/Vienna -- touch ran":  "and 1d",
		"--key a --every -1s -- touch ran":                                  "--every",
		"--key a --lease 0 -- touch ran":                                    "--lease: write at least 1ms",
		"--key a --on-failure forget -- touch ran":                          "--on-failure",
		"--key a --on-lease-expired maybe -- touch ran":                     "--on-lease-expired",
		"--key a --store x --config y -- touch ran":                         "--store and --config exclude each other",
		"--key a --config none.yaml -- touch ran":                           "none.yaml",
		"--key a --store-name x -- touch ran":                               "--config FILE is missing",
		"--key a --config memory.yaml --store-name m --wait -1s touch ran":  "--wait",
		"--key a --config memory.yaml --store-name m --every 1d, touch ran": "--every",
	} {
		programtest.WriteFile(t, filepath.Join(dir, "memory.yaml"), "stores: { m: { memory: {} } }\n")
		once(t, dir, strings.Fields(args)...).Check(t, term.ExitUsage, want)
	}
	once(t, dir, "--key", "a", "--config", "memory.yaml", "--", "touch", "ran").Check(t, term.ExitUsage, "m ")
	if _, err := os.Stat(filepath.Join(dir, "ran")); err == nil {
		t.Error("a command ran")
	}
}

// A call meets another one that runs, waits for it, and gets its status.
func TestACallWaitsForTheCallThatRuns(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir, "--key", "a", "--on-failure", "keep", "--", "sh", "-c", "echo $$ > running; until [ -e go ]; do sleep 0.05; done; exit 3")
	numbers(t, filepath.Join(dir, "running"), 1)
	once(t, dir, "--key", "a", "--", "touch", "again").Check(t, 75, "a: in flight, exit status 75: it is held by ")
	second := start(t, dir, "--key", "a", "--wait", "10m", "--", "touch", "again")
	programtest.WriteFile(t, filepath.Join(dir, "go"), "")
	first.end().Check(t, 3, "a: ran in")
	second.end().Check(t, 3, "a: duplicate, exit status 3")
	if _, err := os.Stat(filepath.Join(dir, "again")); err == nil {
		t.Error("the second command ran")
	}
}

// paste runs the command that follows a line on stderr.
func paste(t *testing.T, o programtest.Outcome, when string) programtest.Outcome {
	t.Helper()
	lines := bufio.NewScanner(strings.NewReader(o.Stderr))
	for lines.Scan() {
		if lines.Text() == when && lines.Scan() {
			return programtest.Shell(t, t.TempDir(), strings.TrimSpace(lines.Text())) // in any directory
		}
	}
	t.Fatalf("stderr lacks %q: %s", when, o.Stderr)
	return o
}

// A killed call leaves its key unknown. Nothing of its process group remains, and the commands
// that the next call prints settle the key.
func TestAKilledCallIsUnknownUntilItIsSettled(t *testing.T) {
	t.Parallel()
	for when, then := range map[string]string{"if the effect happened:": "duplicate", "if the effect did not happen:": "ran"} {
		t.Run(then, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			killed := start(t, dir, "--key", "it's a key", "--lease", "5s", "--", "sh", "-c", "trap '' TERM HUP; sleep 1000 & echo $$ $! > group; wait")
			group := numbers(t, filepath.Join(dir, "group"), 2)
			killed.kill(t)
			for _, pid := range group {
				until(t, fmt.Sprintf("end of process %d", pid), func() bool { return gone(pid) })
			}
			var got programtest.Outcome
			until(t, "end of the lease", func() bool {
				got = once(t, dir, "--key", "it's a key", "--", "touch", "again")
				return got.Status != 75
			})
			got.Check(t, 76, "the outcome of it's a key is unknown: it was last held by ")
			if _, err := os.Stat(filepath.Join(dir, "again")); err == nil {
				t.Error("the command ran again")
			}
			paste(t, got, when).Check(t, 0, "resolved it's a key as ")
			once(t, dir, "--key", "it's a key", "--", "true").Check(t, 0, "it's a key: "+then)
		})
	}
}

func TestAKilledCallRunsAgainUnderRetry(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	flags := []string{"--key", "a", "--lease", "5s", "--on-lease-expired", "retry", "--"}
	killWhileItRuns(t, dir, flags...)
	var got programtest.Outcome
	until(t, "end of the lease", func() bool {
		got = once(t, dir, append(flags, "sh", "-c", "echo attempt $SEMEL_ATTEMPT; exit 7")...)
		return got.Status != 75
	})
	if got.Check(t, 7, "a: failed in ", "attempt 2, exit status 7: a later call runs the command again"); got.Stdout != "attempt 2\n" {
		t.Errorf("%+v", got)
	}
	once(t, dir, append([]string{"--wait", "10m"}, append(flags, "true")...)...).Check(t, 0, "a: ran in ", "attempt 3, exit status 0")
}

// The rest of the process group ends with the command, and signals reach all of it.
func TestTheProcessGroupEndsWithTheCall(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	once(t, dir, "--key", "a", "--", "sh", "-c", "sleep 1000 & echo $! > group").Check(t, 0, "a: ran in")
	pid := numbers(t, filepath.Join(dir, "group"), 1)[0]
	until(t, "end of the child", func() bool { return gone(pid) })

	signalled := start(t, dir, "--key", "b", "--on-failure", "keep", "--", "sh", "-c", "trap 'echo got USR1' USR1; trap 'echo got TERM; exit 5' TERM; echo $$ > ready; while :; do sleep 0.05; done")
	numbers(t, filepath.Join(dir, "ready"), 1)
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGTERM} {
		if err := signalled.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	got := signalled.end()
	if got.Check(t, 5, "b: ran in "); !strings.HasSuffix(got.Stdout, "got TERM\n") {
		t.Errorf("%+v", got)
	}
	once(t, dir, "--key", "b", "--", "true").Check(t, 5, "b: duplicate, exit status 5")
}

// A signal ends a call that waits, and its key is free.
func TestASignalEndsTheWait(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := start(t, dir, "--key", "a", "--", "sh", "-c", "echo $$ > running; until [ -e go ]; do sleep 0.05; done")
	numbers(t, filepath.Join(dir, "running"), 1)
	waits := start(t, dir, "--key", "a", "--wait", "1h", "--", "touch", "again")
	// A process that has opened the store handles signals.
	until(t, "second call", func() bool {
		holder, _ := os.ReadFile(filepath.Join(dir, "semel-once", "LOCK"))
		return strings.Contains(string(holder), strconv.Itoa(waits.Process.Pid))
	})
	if err := waits.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if got := waits.end(); got.Status != 143 && got.Status != term.ExitInterrupted || !strings.Contains(got.Stderr, "a: interrupted, exit status ") {
		t.Errorf("%+v", got)
	}
	programtest.WriteFile(t, filepath.Join(dir, "go"), "")
	first.end().Check(t, 0, "a: ran in")
	if _, err := os.Stat(filepath.Join(dir, "again")); err == nil {
		t.Error("the second command ran")
	}
}

// An operator removes the key of a call that runs.
func TestALostLeaseEndsTheCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	loses := start(t, dir, "--key", "a", "--lease", "10s", "--", "sh", "-c", "trap 'echo ended > ended; exit 0' TERM; echo $$ > running; while :; do sleep 0.05; done")
	numbers(t, filepath.Join(dir, "running"), 1)
	programtest.Shell(t, dir, "semel keys rm a --reason test --scope once --store semel-once").Check(t, 0, "forgot a")
	loses.end().Check(t, 76, "the outcome of a is unknown: its lease was lost while the command ran, and the command was ended")
	if programtest.ReadFile(t, filepath.Join(dir, "ended")) != "ended\n" {
		t.Error("the command did not get SIGTERM")
	}
}

// A call is stopped for longer than its lease, as by Ctrl-Z or when its host sleeps.
func TestACallThatSleptThroughItsLeaseLeavesItsKeyUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), "stores: { r: { redis: { url: \""+programtest.Servers.Redis(t)+"\", prefix: \""+servicestest.Prefix()+"\" } } }\n")
	flags := []string{"--config", "c.yaml", "--key", "a", "--lease", "5s"}
	sleeps := start(t, dir, append(flags, "--", "sh", "-c", "trap 'exit 0' TERM; echo $$ > running; while :; do sleep 0.05; done")...)
	numbers(t, filepath.Join(dir, "running"), 1)
	if err := sleeps.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	again := append(flags, "--", "touch", "again")
	until(t, "end of the lease", func() bool { return once(t, dir, again...).Status == 76 })
	if err := sleeps.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	sleeps.end().Check(t, 76, "the outcome of a is unknown: its lease was lost")
	got := once(t, dir, append([]string{"--json"}, again...)...)
	if got.Status != 76 {
		t.Errorf("the key was given back: %+v", got)
	}
	var line struct {
		Commands []struct{ When, Command string }
	}
	if err := json.Unmarshal([]byte(got.Stderr), &line); err != nil || len(line.Commands) != 2 || line.Commands[0].When != "if the effect happened" {
		t.Errorf("%+v, %v", got, err)
	} else {
		programtest.Shell(t, t.TempDir(), line.Commands[0].Command).Check(t, 0, "resolved a as done")
	}
	if _, err := os.Stat(filepath.Join(dir, "again")); err == nil {
		t.Error("the command ran again")
	}
}

// A call under hold takes over from one under retry that died. Its failure does not free the key.
func TestAFailureAfterAnEarlierAttemptIsUnknown(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	killWhileItRuns(t, dir, "--key", "a", "--lease", "5s", "--on-lease-expired", "retry", "--")
	var got programtest.Outcome
	until(t, "end of the lease", func() bool {
		got = once(t, dir, "--key", "a", "--", "sh", "-c", "exit 7")
		return got.Status != 75
	})
	got.Check(t, 76, "the command ended with exit status 7, but this was attempt 2, and an earlier one may have taken effect")
	once(t, dir, "--key", "a", "--wait", "10m", "--", "touch", "again").Check(t, 76, "the outcome of a is unknown")
}

// The store goes away while the command runs, and comes back after the call.
func TestAStoreThatIsAwayAtTheEndLeavesTheOutcomeUnknown(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	dir := t.TempDir()
	programtest.WriteFile(t, filepath.Join(dir, "c.yaml"), "stores: { r: { redis: { url: \""+server.URL()+"\" } } }\n")
	flags := []string{"--config", "c.yaml", "--key", "a", "--lease", "8s"}
	call := start(t, dir, append(flags, "--", "sh", "-c", "echo $$ > running; until [ -e go ]; do sleep 0.05; done")...)
	numbers(t, filepath.Join(dir, "running"), 1)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	programtest.WriteFile(t, filepath.Join(dir, "go"), "")
	got := call.end()
	got.Check(t, 76, "the outcome of a is unknown: ")
	once(t, dir, append(flags, "--", "true")...).Check(t, 1, "the command did not run: ")
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "end of the lease", func() bool {
		return once(t, dir, append(flags, "--", "true")...).Status == 76
	})
	paste(t, got, "if the effect happened:").Check(t, 0, "resolved a as done")
	once(t, dir, append(flags, "--", "true")...).Check(t, 0, "a: duplicate, exit status 0")
}
