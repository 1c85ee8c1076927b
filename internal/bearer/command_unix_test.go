//go:build unix

package bearer

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func TestTheChildrenOfACommandThatHangsAreKilledToo(t *testing.T) {
	t.Parallel()
	open := filepath.Join(t.TempDir(), "open")
	if err := syscall.Mkfifo(open, 0o600); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		from, err := os.Open(open) // the child writes to it
		if err == nil {
			_, err = io.ReadAll(from)
		}
		ended <- err
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
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
