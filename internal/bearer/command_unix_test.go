//go:build unix

package bearer

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

func TestAProgramThatIsBeingWrittenIsTriedAgain(t *testing.T) {
	t.Parallel()
	program := script(t, "echo abc")
	writing, err := os.OpenFile(program, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = (Command{program}).Fetch(t.Context())
	if errors.Is(err, semel.ErrInvalidRequest) { // some systems start it
		t.Errorf("%v", err)
	}
	if err := writing.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestTheChildrenOfACommandThatHangsAreKilledToo(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "open")
	if err := syscall.Mkfifo(open, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		from, err := os.Open(open) // the child writes to it
		cancel()
		if err == nil {
			_, err = io.ReadAll(from)
		}
		ended <- err
	}()
	if _, err := (Command{script(t, `sleep 300 > "$1" & wait`), open}).Fetch(ctx); err == nil {
		t.Error("a command that hangs gives a token")
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("a child of the command still runs")
	}
}
