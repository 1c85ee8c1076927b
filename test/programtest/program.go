// Package programtest runs the program semel in tests of its verbs: in the test's process,
// in a process of its own, in a shell, or on a terminal. It also has what the tests of
// several verbs need around the program.
//
// A package whose tests start processes has
//
//	func TestMain(m *testing.M) { programtest.Main(m) }
package programtest

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// Variable makes the test binary act as the program. Set it to 1 in the environment of a
// process that starts os.Executable.
const Variable = "SEMEL_TEST_AS_PROGRAM"

// Servers are the real servers that the tests of a package share.
var Servers servicestest.Pool

// Main runs the tests of a package, and stops the servers that they share. In a process
// with [Variable] it runs the program instead.
func Main(m *testing.M) {
	if os.Getenv(Variable) != "" {
		ctx, _ := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		os.Exit(cli.Main(ctx, kind.All(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.Getenv))
	}
	os.Exit(Servers.Run(m))
}

// Outcome is the result of a program run.
type Outcome struct {
	Status         int
	Stdout, Stderr string
}

// NoEnv is an environment without variables.
func NoEnv(string) string { return "" }

// Run runs the program with input on stdin and without environment variables.
func Run(t *testing.T, input string, args ...string) Outcome {
	t.Helper()
	return RunEnv(t, NoEnv, input, args...)
}

// RunEnv is Run with environment variables.
func RunEnv(t *testing.T, env func(name string) string, input string, args ...string) Outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	status := cli.Main(t.Context(), kind.All(), args, strings.NewReader(input), &stdout, &stderr, env)
	return Outcome{Status: status, Stdout: stdout.String(), Stderr: stderr.String()}
}

// Check compares a run with the expected status and messages. Each text must be
// on stderr. Without texts, stderr must be empty.
func (o Outcome) Check(t *testing.T, status int, stderr ...string) {
	t.Helper()
	if o.Status != status {
		t.Errorf("exit status %d, want %d; stderr: %s", o.Status, status, o.Stderr)
	}
	if len(stderr) == 0 && o.Stderr != "" {
		t.Errorf("unexpected stderr: %s", o.Stderr)
	}
	for _, text := range stderr {
		if !strings.Contains(o.Stderr, text) {
			t.Errorf("stderr lacks %q: %s", text, o.Stderr)
		}
	}
}

// WriterFunc is a faulty stdout or stderr.
type WriterFunc func([]byte) (int, error)

func (f WriterFunc) Write(p []byte) (int, error) { return f(p) }

// Root returns the root directory of the module.
func Root(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	t.Fatalf("no go.mod above the test: %v", err)
	return ""
}
