package term

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestJoinedErrorsArePrintedOnSeparateLines(t *testing.T) {
	t.Parallel()
	a, b := errors.New("a\nforged"), errors.New("b")
	joined := errors.Join(a, fmt.Errorf("in c: %w", errors.Join(b, a)))
	for _, c := range []struct {
		err  error
		want []string
	}{
		{a, []string{"a\nforged"}},
		{joined, []string{"a\nforged", "in c: b", "a\nforged"}},
		{fmt.Errorf("x\ny: %w: z", joined), []string{"x\ny: a\nforged", "in c: b", "a\nforged: z"}},
		{fmt.Errorf("%w: %w", b, joined), []string{"b: a\nforged", "in c: b", "a\nforged"}},
		{InOneLine(joined), []string{"a; forged; in c: b"}},
	} {
		if got := errorLines(c.err); !slices.Equal(got, c.want) {
			t.Errorf("%q: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestErrorsHaveTheExitStatusOfTheirKind(t *testing.T) {
	t.Parallel()
	stopped, stop := context.WithCancelCause(t.Context())
	stop(errors.New("terminated"))
	for _, c := range []struct {
		ctx    context.Context
		err    error
		status int
		stderr string
	}{
		{t.Context(), nil, ExitDone, ""},
		{t.Context(), fmt.Errorf("write: %w", ErrReaderGone), ExitDone, ""},
		{t.Context(), ErrFound, ExitFound, ""},
		{t.Context(), fmt.Errorf("open: %w", Usagef("--key %q: did you mean .a?", "a")), ExitUsage, "semel run: --key \"a\": did you mean .a?\n"},
		{t.Context(), fs.ErrClosed, ExitFailed, "semel run: file already closed\n"},
		{t.Context(), errors.Join(errors.New("a"), errors.New("b\nforged")), ExitFailed, "semel run: a\nsemel run: b\\nforged\n"},
		{stopped, context.Cause(stopped), ExitInterrupted, "semel run: interrupted: run the same command again to resume\n"},
		{stopped, context.Canceled, ExitInterrupted, "semel run: interrupted: run the same command again to resume\n"},
		{stopped, fs.ErrClosed, ExitFailed, "semel run: file already closed\n"},
	} {
		var stderr bytes.Buffer
		a := &App{Stderr: &stderr, Redact: strings.Clone, Env: func(string) string { return "" }}
		if status := a.Report(c.ctx, "semel run", c.err); status != c.status || stderr.String() != c.stderr {
			t.Errorf("%v: status %d, %q; want %d, %q", c.err, status, &stderr, c.status, c.stderr)
		}
	}
}

// A pipe that never ends may hold the configuration; then the interruption is what
// reading it returns.
func TestInterruptedReadOfTheConfigurationIsNoUsageError(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancelCause(t.Context())
	stop(errors.New("terminated"))
	a := &App{Stderr: io.Discard, Redact: strings.Clone, Env: func(string) string { return "" }, Unread: fmt.Errorf("c.yaml: %w", context.Cause(ctx))}
	if status := a.Report(ctx, "semel run", Usagef("c.yaml: terminated")); status != ExitInterrupted {
		t.Errorf("status %d", status)
	}
}

func TestSecretsAndControlCharactersOfMessagesAreHidden(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	a := &App{Stderr: &stderr, Env: func(string) string { return "" }, Redact: func(text string) string { return strings.ReplaceAll(text, "canary", "***") }}
	a.Complain("semel", "canary\x1b[2J")
	a.Note("%s\nforged", "canary")
	if want := "semel: ***\\x1b[2J\n***\\nforged\n"; stderr.String() != want {
		t.Errorf("got %q, want %q", &stderr, want)
	}
	stderr.Reset()
	a.Columns = 80
	if a.Note("x"); stderr.String() != "\r\x1b[Kx\n" {
		t.Errorf("above a progress line: %q", &stderr)
	}
	stderr.Reset()
	a.Quiet = true
	if a.Note("x"); stderr.Len() > 0 {
		t.Errorf("although quiet: %q", &stderr)
	}
}

func TestNoConfirmationIsAskedWithoutATerminal(t *testing.T) {
	t.Parallel()
	var stderr bytes.Buffer
	a := &App{Stdin: strings.NewReader("y\n"), Stdout: PipeWriter{io.Discard}, Stderr: &stderr, Redact: strings.Clone}
	if yes, err := a.Confirm("really?"); yes || !errors.Is(err, ErrNoTerminal) || stderr.Len() > 0 {
		t.Errorf("%v, %v, %q", yes, err, &stderr)
	}
	if a.AwaitsInput() || a.OnTerminal() {
		t.Error("a reader or a writer in memory is taken for a terminal")
	}
}

func TestOnlyAClosedPipeIsAReaderThatHasLeft(t *testing.T) {
	t.Parallel()
	for _, failure := range []error{syscall.EPIPE, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.EPIPE}, syscall.ENOSPC} {
		_, err := PipeWriter{failing{failure}}.Write([]byte("x"))
		if gone := errors.Is(err, ErrReaderGone); gone != errors.Is(failure, syscall.EPIPE) || !errors.Is(err, failure) && !gone {
			t.Errorf("%v becomes %v", failure, err)
		}
	}
	if !errors.Is(ErrReaderGone, syscall.EPIPE) || ErrReaderGone.Error() == "" {
		t.Error("a writer that checks for EPIPE does not find it")
	}
}

// failing is a writer that fails.
type failing struct{ err error }

// Write implements io.Writer.
func (f failing) Write([]byte) (int, error) { return 0, f.err }

func TestJSONIsOneLineWithoutHTMLEscapes(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	a := &App{Stdout: &stdout}
	if err := a.PrintJSON(map[string]string{"a": "<b> & c"}); err != nil || stdout.String() != "{\"a\":\"<b> & c\"}\n" {
		t.Errorf("%q, %v", &stdout, err)
	}
	stdout.Reset()
	if err := a.PrintJSON(func() {}); err == nil || stdout.Len() > 0 {
		t.Errorf("a value that is not JSON: %q, %v", &stdout, err)
	}
}

func TestColorIsUsedOnlyOnTerminalsThatAllowIt(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		columns int
		noColor bool
		env     map[string]string
		want    bool
	}{
		{columns: 80, want: true},
		{columns: 0},
		{columns: 80, noColor: true},
		{columns: 80, env: map[string]string{"NO_COLOR": "1"}},
	} {
		var stderr bytes.Buffer
		a := &App{Redact: strings.Clone, Stderr: &stderr, Columns: c.columns, NoColor: c.noColor, Env: func(name string) string { return c.env[name] }}
		a.Complain("semel", "it broke")
		if got := strings.Contains(stderr.String(), "\x1b["); got != c.want {
			t.Errorf("%+v: %q", c, &stderr)
		}
	}
	a := &App{Stderr: io.Discard, Env: func(string) string { return "" }}
	if a.LookAtTerminal(); a.Terminal || a.Columns != 0 {
		t.Errorf("a writer that is no file is a terminal of %d columns", a.Columns)
	}
}
