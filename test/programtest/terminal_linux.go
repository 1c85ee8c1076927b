package programtest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// OpenTerminal returns both ends of a pseudo terminal.
func OpenTerminal(t *testing.T, columns uint16) (screen, terminal *os.File) {
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

// OnTerminal runs the program with stderr, and stdin if typed is not "", on a
// terminal, and returns what the terminal shows.
func OnTerminal(t *testing.T, columns uint16, kind, typed string, args ...string) string {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	screen, terminal := OpenTerminal(t, columns)
	command := exec.CommandContext(t.Context(), program, args...)
	command.Env = append(os.Environ(), Variable+"=1", "TERM="+kind, "GORACE=atexit_sleep_ms=0")
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
