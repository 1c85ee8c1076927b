//go:build unix

package dedup

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"
)

func TestReportIsWrittenThroughToAPipe(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if err := syscall.Mkfifo(b.path("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	type read struct {
		text string
		err  error
	}
	reads := make(chan read, 1)
	go func() {
		data, err := os.ReadFile(b.path("pipe"))
		reads <- read{string(data), err}
	}()
	b.must(Options{Format: Text, Inputs: []string{b.file("in", "a\n")}, Report: b.path("pipe")})
	info, err := os.Lstat(b.path("pipe"))
	if err != nil || info.Mode().Type() != fs.ModeNamedPipe {
		t.Fatalf("the pipe was replaced: %v, %v", info, err)
	}
	if got := <-reads; got.err != nil || !strings.Contains(got.text, `"read":1`) {
		t.Errorf("read %q, %v", got.text, got.err)
	}
}

func TestReportToAnOpenFileIsAppended(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/fd"); err != nil {
		t.Fatalf("open files have no names here: %v", err)
	}
	b := setup(t)
	log, err := os.OpenFile(b.file("log", "before\n"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	b.must(Options{Format: Text, Inputs: []string{b.file("in", "a\n")}, Report: fmt.Sprintf("/dev/fd/%d", log.Fd())})
	data, err := io.ReadAll(log)
	if err != nil || !strings.HasPrefix(string(data), "before\n{") || !strings.Contains(string(data), `"read":1`) {
		t.Errorf("the open file holds %q, %v", data, err)
	}
}
