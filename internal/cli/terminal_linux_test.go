package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
)

// openTerminal returns both ends of a pseudo terminal.
func openTerminal(t *testing.T, columns uint16) (screen, terminal *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: columns}); err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return screen, terminal
}

// onTerminal runs the program with stderr, and stdin if typed is not "", on a
// terminal, and returns what the terminal shows.
func onTerminal(t *testing.T, columns uint16, kind, typed string, args ...string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	screen, terminal := openTerminal(t, columns)
	command := exec.CommandContext(t.Context(), program, args...)
	command.Env = append(os.Environ(), programVariable+"=1", "TERM="+kind, "GORACE=atexit_sleep_ms=0")
	command.Stderr = terminal
	if typed != "" {
		command.Stdin = terminal
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	if _, err := screen.WriteString(typed); err != nil {
		t.Fatal(err)
	}
	var shown bytes.Buffer
	_, err = shown.ReadFrom(screen) // ends with EIO when the program has closed the terminal
	if err != nil && !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	if err := command.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, &shown)
	}
	return shown.String()
}

func TestTerminalsGetControlCharactersOnlyIfTheyUnderstandThem(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		columns uint16
		kind    string
		flag    string
		want    bool
	}{
		{80, "xterm", "--threads=1", true},
		{0, "xterm", "--threads=1", false},
		{80, "dumb", "--threads=1", false},
		{80, "xterm", "--no-progress", false},
	} {
		shown := onTerminal(t, test.columns, test.kind, "", "dedup", test.flag, "../../examples/events.jsonl")
		if got := strings.Contains(shown, "\x1b"); got != test.want || !strings.Contains(shown, "read 12  fresh ") {
			t.Errorf("%+v: %q", test, shown)
		}
	}
}

func TestDedupSaysThatItReadsTheTerminal(t *testing.T) {
	t.Parallel()
	const ctrlD = "\x04"
	const note = "semel dedup: reading lines from this terminal: end them with Ctrl-D"
	for _, args := range [][]string{{"dedup"}, {"dedup", "-"}} {
		if shown := onTerminal(t, 80, "dumb", "a\na\n"+ctrlD, args...); !strings.Contains(shown, note) || !strings.Contains(shown, "read 2  fresh 1  ") {
			t.Errorf("%q: %q", args, shown)
		}
	}
	for _, args := range [][]string{{"dedup", "../../examples/events.jsonl"}, {"dedup", "--quiet"}} {
		if shown := onTerminal(t, 80, "dumb", ctrlD, args...); strings.Contains(shown, note) {
			t.Errorf("%q: %q", args, shown)
		}
	}
}

// TestRunShowsItsWorkOnATerminal reads what a person sees: a line for each pipeline that
// is replaced, and the log above.
func TestRunShowsItsWorkOnATerminal(t *testing.T) {
	t.Parallel()
	file := copyConfig(t, ", follow: true", "")
	writeFile(t, file, readFile(t, file)+`
  second: { source: { file: { paths: [none.jsonl], follow: true, state: second } }, key: { id: .id }, store: keys, sink: { webhook: { url: "http://127.0.0.1:1/", allow_private: true } }, parked: { path: p } }
`)
	writeFile(t, filepath.Join(filepath.Dir(file), "none.jsonl"), "")
	person, program := openTerminal(t, 80)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		ended <- Main(ctx, kind.All(), []string{"run", file, "--admin", "off"}, strings.NewReader(""), &strings.Builder{}, program, noEnv)
		fmt.Fprintln(program, "\nTHE END")
	}()
	lines := regexp.MustCompile(`copy    \d+/s  fresh 67 %  lag 0 B  parked 0  ready\r?\nsecond  0/s  lag 0 B  parked 0  ready`)
	var seen strings.Builder
	shown := false
	for in := bufio.NewReader(person); !strings.Contains(seen.String(), "THE END"); {
		b, err := in.ReadByte()
		if err != nil {
			t.Fatalf("%v after %q", err, &seen)
		}
		if seen.WriteByte(b); !shown && b == 'y' && lines.MatchString(seen.String()) {
			shown = true
			cancel()
		}
	}
	text := seen.String()
	if status := <-ended; status != term.ExitDone || !shown {
		t.Errorf("status %d, shown %v: %q", status, shown, text)
	}
	if !strings.Contains(text, "ready\r\x1b[1A\x1b[J") {
		t.Errorf("the lines are not replaced: %q", text)
	}
	rest := text[strings.LastIndex(text, "\x1b[J"):]
	if strings.Contains(rest, "parked 0  ready") {
		t.Errorf("the lines stay: %q", rest)
	}
	if strings.Contains(text, "msg=progress") || !strings.Contains(text, "msg=ended pipeline=copy read=3 fresh=2 duplicate=1 parked=0") {
		t.Errorf("the log: %q", text)
	}
}
