//go:build unix

package open_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
)

func TestConfigurationIsReadFromAPipeAndTheWaitCanBeInterrupted(t *testing.T) {
	t.Parallel()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	start := func(ctx context.Context) (ended chan programtest.Outcome) {
		ended = make(chan programtest.Outcome, 1)
		go func() {
			var stdout, stderr bytes.Buffer
			status := cli.Main(ctx, kind.All(), []string{"doctor", pipe}, strings.NewReader(""), &stdout, &stderr, programtest.NoEnv)
			ended <- programtest.Outcome{Status: status, Stdout: stdout.String(), Stderr: stderr.String()}
		}()
		return ended
	}
	want := func(ended chan programtest.Outcome, status int, stderr string) {
		t.Helper()
		select {
		case got := <-ended:
			got.Check(t, status, stderr)
		case <-time.After(time.Minute):
			t.Fatal("the program does not end")
		}
	}

	ended := start(t.Context())
	writer, err := os.OpenFile(pipe, os.O_WRONLY, 0) // open once there is a reader
	if err != nil {
		t.Fatal(err)
	}
	if _, err := writer.WriteString("stores: { mem: { memory: {} } }"); err != nil {
		t.Fatal(err)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
	want(ended, term.ExitDone, "1 store: ")

	ctx, cancel := context.WithCancel(t.Context())
	ended = start(ctx)
	if writer, err = os.OpenFile(pipe, os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	cancel()
	want(ended, term.ExitInterrupted, "interrupted: run the same command again")

	ended = start(ctx) // no process ever writes
	want(ended, term.ExitInterrupted, "interrupted: run the same command again")
}
