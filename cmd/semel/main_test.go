//go:build unix

package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// programVariable makes this test binary act as the program.
const programVariable = "SEMEL_TEST_AS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) != "" {
		os.Exit(run())
	}
	os.Exit(m.Run())
}

func asProgram(t *testing.T, args ...string) (command *exec.Cmd, stderr *bytes.Buffer) {
	t.Helper()
	stderr = new(bytes.Buffer)
	command = exec.CommandContext(t.Context(), os.Args[0], args...)
	command.Env = append(os.Environ(), programVariable+"=1", "GORACE=atexit_sleep_ms=0")
	command.Stderr = stderr
	return command, stderr
}

// status waits for the program and returns its exit status, or the signal that
// ended it as a negative number.
func status(t *testing.T, command *exec.Cmd) int {
	t.Helper()
	err := command.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if state := command.ProcessState.Sys().(syscall.WaitStatus); state.Signaled() {
		return -int(state.Signal())
	}
	return command.ProcessState.ExitCode()
}

// startImport starts an import that waits for more input. It returns when the
// store is open.
func startImport(t *testing.T) (command *exec.Cmd, stdin io.Closer, stderr *bytes.Buffer) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "store")
	command, stderr = asProgram(t, "keys", "import", "--store", dir)
	stdin, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "STORE")); err == nil {
			return command, stdin, stderr
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the store was not opened")
		}
	}
}

func TestFirstSignalDrains(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		command, stdin, stderr := startImport(t)
		if err := command.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		if got := status(t, command); got != 130 || !bytes.Contains(stderr.Bytes(), []byte("interrupted")) {
			t.Errorf("%v: status %d, stderr %s", signal, got, stderr)
		}
		_ = stdin.Close() // the program closed its end
	}
}

func TestClosedStdoutIsNoError(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	command, stderr := asProgram(t, "completion", "bash")
	command.Stdout = writer
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	if got := status(t, command); got != 0 || stderr.Len() > 0 {
		t.Errorf("status %d, stderr %s", got, stderr)
	}
}
