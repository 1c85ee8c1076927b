// Package term is the terminal of the verbs: the streams and global flags of one
// run, exit statuses, usage errors, flag values, help, and text for people.
package term

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"

	"github.com/semel-dev/semel/internal/config"
)

// Exit statuses. Scripts rely on them.
const (
	ExitDone        = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitFound       = 3
	ExitInterrupted = 130
)

// Status is an error that ends the program with an exit status of its verb. The verb has
// said why.
type Status int

// Error implements error.
func (s Status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// App is one run of the program: its streams and its global flags.
type App struct {
	Kinds          *config.Kinds
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Env            func(name string) string
	Args           []string
	// Terminal is set if stderr is a terminal. Columns is its width, or 0 if it
	// has none or takes no control characters.
	Terminal bool
	Columns  int

	JSON, Quiet, NoColor, NoProgress bool

	// EnvFile names a file with variables for configurations. NoEnv makes variables
	// that are not set stand for themselves.
	EnvFile string
	NoEnv   bool

	// Patience is the maximum wait for the first answer of a store's servers.
	Patience time.Duration
	// Redact hides the secrets of the configuration.
	Redact func(text string) string

	// Interruptible returns a reader whose reads end when the program must end.
	Interruptible func(io.Reader) io.Reader
	// Unread is the error of reading the configuration, or nil.
	Unread error
	// wrong holds the flag errors of the parser. The verb reports them with its
	// own.
	wrong Problems
	// HelpErr is the error of printing the help for --help.
	HelpErr error
}

// Report prints an error and returns its exit status.
func (a *App) Report(ctx context.Context, path string, err error) int {
	var (
		usage  *UsageError
		status Status
	)
	switch {
	case errors.As(err, &status):
		return int(status)
	case err == nil, errors.Is(err, ErrReaderGone):
		return ExitDone
	case ctx.Err() != nil && errors.Is(a.Unread, context.Cause(ctx)):
		return a.interrupted(path, nil)
	case errors.As(err, &usage):
		a.Complain(path, usage.Problems...)
		return ExitUsage
	case errors.Is(err, ErrFound):
		return ExitFound
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))):
		return a.interrupted(path, err)
	}
	a.Complain(path, errorLines(err)...)
	return ExitFailed
}

// errorLines returns the text of an error with a line for each error that was joined in
// it. A line end in the text of one, such as in the name of a file, stays in its line, so
// that it cannot look like a message.
func errorLines(err error) []string {
	var parts []error
	switch outer := err.(type) {
	case interface{ Unwrap() []error }:
		parts = outer.Unwrap()
	case interface{ Unwrap() error }:
		parts = []error{outer.Unwrap()}
	}
	lines, rest := []string{""}, err.Error()
	for _, part := range parts {
		if part == nil {
			continue
		}
		before, after, ok := strings.Cut(rest, part.Error())
		if !ok {
			continue
		}
		if before == "\n" && len(parts) > 1 {
			lines, before = append(lines, ""), ""
		}
		inner := errorLines(part)
		lines[len(lines)-1] += before + inner[0]
		lines, rest = append(lines, inner[1:]...), after
	}
	lines[len(lines)-1] += rest
	return lines
}

func (a *App) interrupted(path string, err error) int {
	text := "interrupted: run the same command again to resume"
	if own, ok := errors.AsType[*InterruptedError](err); ok {
		text = own.Text
	}
	a.Complain(path, text)
	return ExitInterrupted
}

// InterruptedError is the error of an interrupted verb that the same command would not
// resume.
type InterruptedError struct {
	// Text says what was done, and describes the effect of the same command.
	Text string
	// Err is the cause of the interruption.
	Err error
}

// Error implements error.
func (e *InterruptedError) Error() string { return e.Text }

// Unwrap returns the cause.
func (e *InterruptedError) Unwrap() error { return e.Err }

// Complain writes problems to stderr, one per line.
func (a *App) Complain(path string, problems ...string) {
	name := path + ":"
	if a.colored() {
		name = "\x1b[1;31m" + name + "\x1b[0m"
	}
	for _, problem := range problems {
		fmt.Fprintf(a.Stderr, "%s %s\n", name, OneLine(a.Redact(PlainText(problem))))
	}
}

// Note writes a message to stderr, unless --quiet is set. On a terminal it
// replaces the progress line, which is then written again.
func (a *App) Note(format string, args ...any) {
	if a.Quiet {
		return
	}
	start := ""
	if a.Columns > 0 && !a.NoProgress {
		start = "\r\x1b[K"
	}
	fmt.Fprintf(a.Stderr, "%s%s\n", start, OneLine(a.Redact(fmt.Sprintf(format, args...))))
}

// ErrNoTerminal means that there is no terminal to ask a question on.
var ErrNoTerminal = errors.New("there is no terminal to ask on")

// Confirm asks a question on the terminal, and reports whether the answer is yes. It
// blocks until a line is typed. It returns ErrNoTerminal unless the program reads
// from a terminal and writes its messages to one.
func (a *App) Confirm(question string) (bool, error) {
	if !isTerminal(a.Stdin) || !isTerminal(a.Stderr) {
		return false, ErrNoTerminal
	}
	fmt.Fprintf(a.Stderr, "%s [y/N] ", OneLine(a.Redact(question)))
	line, err := bufio.NewReader(a.Interruptible(a.Stdin)).ReadString('\n')
	if err != nil && err != io.EOF {
		return false, err
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return answer == "y" || answer == "yes", nil
}

// PrintJSON writes one value as a line of JSON to stdout.
func (a *App) PrintJSON(value any) error { return WriteJSONLine(a.Stdout, value) }

// WriteJSONLine writes a value in one call, without the escapes that only HTML
// needs.
func WriteJSONLine(w io.Writer, value any) error {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(line.Bytes())
	return err
}

func (a *App) colored() bool {
	return a.Columns > 0 && !a.NoColor && a.Env("NO_COLOR") == ""
}

// LookAtTerminal sets Terminal and Columns for Stderr.
func (a *App) LookAtTerminal() {
	a.Terminal, a.Columns = isTerminal(a.Stderr), a.columns(a.Stderr)
}

// columns returns the width of a stream that is a terminal and takes control
// characters, or 0.
func (a *App) columns(stream any) int {
	if !isTerminal(stream) || a.Env("TERM") == "dumb" {
		return 0
	}
	columns, _, err := term.GetSize(int(stream.(*os.File).Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// AwaitsInput reports whether stdin is a terminal, so that a read waits for what
// a person types.
func (a *App) AwaitsInput() bool { return isTerminal(a.Stdin) }

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

// OnTerminal reports whether stdout is a terminal that takes control characters.
func (a *App) OnTerminal() bool {
	out, ok := a.Stdout.(PipeWriter)
	return ok && a.columns(out.Writer) > 0
}

// ErrFound means that a check found something. The findings are already printed.
var ErrFound = errors.New("something was found")

// ErrReaderGone means that the reader of stdout has closed it, as head does when
// it has enough. The program then ends silently with status 0.
var ErrReaderGone error = readerGone{}

type readerGone struct{}

// Error implements error.
func (readerGone) Error() string { return "standard output was closed by its reader" }

// Unwrap returns EPIPE for the writers that check for it.
func (readerGone) Unwrap() error { return syscall.EPIPE }

// PipeWriter is stdout. It distinguishes a broken pipe on stdout from others.
type PipeWriter struct{ io.Writer }

// Write implements io.Writer.
func (p PipeWriter) Write(data []byte) (int, error) {
	n, err := p.Writer.Write(data)
	if errors.Is(err, syscall.EPIPE) {
		err = ErrReaderGone
	}
	return n, err
}
