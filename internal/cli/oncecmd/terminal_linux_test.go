package oncecmd_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/test/programtest"
)

// screen is a terminal with a session of its own.
type screen struct {
	*exec.Cmd
	file *os.File
	mu   sync.Mutex
	text bytes.Buffer
	over chan struct{}
}

// onTerminal runs a shell line in the foreground of a terminal.
func onTerminal(t *testing.T, dir, line string) *screen {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binaries := t.TempDir()
	if err := os.Symlink(program, binaries+"/semel"); err != nil {
		t.Fatal(err)
	}
	file, terminal := programtest.OpenTerminal(t, 80)
	s := &screen{Cmd: exec.CommandContext(t.Context(), "sh", "-c", line), file: file, over: make(chan struct{})}
	s.Dir, s.Stdin, s.Stdout, s.Stderr = dir, terminal, terminal, terminal
	s.Env = append(os.Environ(), programtest.Variable+"=1", "GORACE=atexit_sleep_ms=0", "PATH="+binaries+":"+os.Getenv("PATH"))
	s.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	// The tests may have been started to ignore Ctrl-C, as in the background of a shell. Then the
	// programs on the terminal would ignore it, too, unless this process takes it.
	taken := make(chan os.Signal, 1)
	signal.Notify(taken, os.Interrupt)
	defer signal.Stop(taken)
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close()
	go func() {
		defer close(s.over)
		for buf := make([]byte, 1024); ; {
			n, err := file.Read(buf)
			if err != nil {
				return // EIO once no process has the terminal
			}
			s.mu.Lock()
			s.text.Write(buf[:n])
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *screen) shows(t *testing.T, text string) {
	t.Helper()
	until(t, text+" on the terminal", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return strings.Contains(s.text.String(), text)
	})
}

func (s *screen) types(t *testing.T, text string) {
	t.Helper()
	if _, err := s.file.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// ends waits for the end of the shell and of its output.
func (s *screen) ends() {
	_ = s.Wait() // the screen has the status
	<-s.over
}

// The command reads from the terminal in the foreground, and Ctrl-C reaches it alone. It starts no
// program at that moment: a shell that waits for one ends only if the signal ended that one too.
func TestTheCommandHasTheTerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := onTerminal(t, dir, `semel once --key a --keep-output 0 -- sh -c 'test -t 0 && test -t 1 && echo tty; read -r line; echo "got $line"; read -r line'; echo "status $?"; read -r line; echo "then $line"`)
	s.shows(t, "tty")
	s.types(t, "typed\n")
	s.shows(t, "got typed")
	s.types(t, "\x03")
	s.shows(t, "exit status 130")
	s.shows(t, "status 130")
	s.types(t, "more\n") // the shell has the terminal again
	s.shows(t, "then more")
	s.ends()
}

// Ctrl-Z stops the command and the call, and the shell continues both in its foreground.
func TestAStoppedCommandContinuesInTheForeground(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := onTerminal(t, dir, `set -m; semel once --key a --lease 10m -- sh -c 'echo ready; read -r line; echo "got $line"'; echo "stopped $?"; fg; echo "status $?"`)
	s.shows(t, "ready")
	s.types(t, "\x1a")
	s.shows(t, "stopped 1") // 128 and the number of SIGTSTP
	s.types(t, "typed\n")
	s.shows(t, "got typed")
	s.shows(t, "status 0")
	s.ends()
}

// Ctrl-Z stops the call in a pipeline, where the command has no terminal. A command that continued
// would outlive its lease, which a stopped call does not extend. It starts no program while it
// waits: a shell whose child is stopped before it is the program is not stopped itself.
func TestACommandInAStoppedPipelineIsStopped(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := onTerminal(t, dir, `set -m; semel once --key a --lease 10m -- sh -c 'mkfifo go; echo $$ > running; echo ready; read -r _ < go; echo ran' | cat; echo "stopped $?"; read -r line; fg; echo "status $?"`)
	s.shows(t, "ready")
	command := numbers(t, dir+"/running", 1)[0]
	s.types(t, "\x1a")
	s.shows(t, "stopped 1")
	until(t, "stopped command", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", command))
		return err == nil && strings.Contains(string(stat), ") T ")
	})
	pipe, err := os.OpenFile(dir+"/go", os.O_RDWR, 0) // for both, so that it waits for no reader
	if err != nil {
		t.Fatal(err)
	}
	defer pipe.Close()
	if _, err := pipe.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	s.types(t, "\n")
	s.shows(t, "ran")
	s.shows(t, "status 0")
	s.ends()
}

// A command that cannot be executed leaves the terminal to the shell.
func TestACommandThatCannotStartReturnsTheTerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	programtest.WriteProgram(t, dir+"/bad", "\x7fELF is not enough")
	s := onTerminal(t, dir, `semel once --key a -- ./bad; echo "status $?"; read -r line; echo "then $line"`)
	s.shows(t, "status 126")
	s.types(t, "more\n")
	s.shows(t, "then more")
	s.ends()
}

// The reader of a pipe, such as a pager, reads from the terminal while the command runs.
func TestAPipelineKeepsTheTerminal(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := onTerminal(t, dir, `set -m; semel once --key a -- sh -c 'echo ready; until [ -e go ]; do sleep 0.05; done' | { read -r first; echo "$first"; read -r line < /dev/tty; echo "got $line"; touch go; }; echo "over"`)
	s.shows(t, "ready")
	s.types(t, "typed\n")
	s.shows(t, "got typed")
	s.shows(t, "over")
	s.ends()
}
