package runcmd_test

import (
	"bufio"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel/internal/cli"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/kind"
	"github.com/semel-dev/semel/test/programtest"
)

// TestRunShowsItsWorkOnATerminal reads what a person sees: a line for each pipeline that
// is replaced, and the log above.
func TestRunShowsItsWorkOnATerminal(t *testing.T) {
	t.Parallel()
	file := programtest.CopyConfig(t, ", follow: true", "")
	programtest.WriteFile(t, file, programtest.ReadFile(t, file)+`
  second: { source: { file: { paths: [none.jsonl], follow: true, state: second } }, key: { id: .id }, store: keys, sink: { webhook: { url: "http://127.0.0.1:1/", allow_private: true } }, parked: { path: p } }
`)
	programtest.WriteFile(t, filepath.Join(filepath.Dir(file), "none.jsonl"), "")
	person, program := programtest.OpenTerminal(t, 80)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	ended := make(chan int, 1)
	go func() {
		ended <- cli.Main(ctx, kind.All(), []string{"run", file, "--admin", "off"}, strings.NewReader(""), &strings.Builder{}, program, programtest.NoEnv)
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
