// Package cli is the user interface of the program semel: commands, flags,
// messages and exit statuses. The work is done in the packages below it.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/semel-dev/semel/internal/config"
	"github.com/semel-dev/semel/internal/dedup"
)

// Exit statuses. Scripts rely on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitFound       = 3
	exitInterrupted = 130
)

// app is one run of the program: its streams and its global flags.
type app struct {
	kinds          *config.Kinds
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(name string) string
	args           []string
	columns        int // of the terminal that stderr is connected to, or 0

	asJSON, quiet, noColor, noProgress bool

	// patience is the maximum wait for the first answer of a store's servers.
	patience time.Duration
	// redact hides the secrets of the configuration.
	redact func(text string) string

	// interruptible returns a reader whose reads end when the program must end.
	interruptible func(io.Reader) io.Reader
	// unread is the error of reading the configuration, or nil.
	unread error
	// wrong holds the flag errors of the parser. The verb reports them with its
	// own.
	wrong problems
	// helpErr is the error of printing the help for --help.
	helpErr error
}

// Main runs the program with the arguments after its name and returns its exit
// status. It blocks until the verb is done. When ctx ends, the verb drains, and
// the status says that it was interrupted. Only data goes to stdout; messages go
// to stderr. env looks up environment variables. kinds are the kinds of sources,
// sinks and stores that a configuration can name.
func Main(ctx context.Context, kinds *config.Kinds, args []string, stdin io.Reader, stdout, stderr io.Writer, env func(name string) string) (status int) {
	a := &app{
		kinds: kinds,
		stdin: stdin, stdout: pipeWriter{stdout}, stderr: stderr, env: env,
		args: args, columns: terminalColumns(stderr), patience: 30 * time.Second, redact: func(text string) string { return text },
		interruptible: func(r io.Reader) io.Reader { return dedup.Interruptible(ctx, r) },
	}
	defer func() {
		if p := recover(); p != nil {
			a.complain("semel", fmt.Sprintf("internal error: %v: please report this with the command that led to it", p))
			if env("SEMEL_DEBUG") != "" {
				fmt.Fprintf(stderr, "%s", debug.Stack())
			}
			status = exitFailed
		}
	}()
	root := newRootCommand(a)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(a.stdout)
	root.SetErr(stderr)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) {
		unquoteUsages(root)
	}
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		err = a.helpErr
	}
	return a.report(ctx, cmd.CommandPath(), err)
}

// report prints an error and returns its exit status.
func (a *app) report(ctx context.Context, path string, err error) int {
	var usage *UsageError
	switch {
	case err == nil, errors.Is(err, errReaderGone):
		return exitDone
	case ctx.Err() != nil && errors.Is(a.unread, context.Cause(ctx)):
		return a.interrupted(path)
	case errors.As(err, &usage):
		a.complain(path, usage.Problems...)
		return exitUsage
	case errors.Is(err, errFound):
		return exitFound
	case ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.Cause(ctx))):
		return a.interrupted(path)
	}
	a.complain(path, strings.Split(err.Error(), "\n")...)
	return exitFailed
}

func (a *app) interrupted(path string) int {
	a.complain(path, "interrupted: run the same command again to go on")
	return exitInterrupted
}

// complain writes problems to stderr, one per line.
func (a *app) complain(path string, problems ...string) {
	name := path + ":"
	if a.colored() {
		name = "\x1b[1;31m" + name + "\x1b[0m"
	}
	for _, problem := range problems {
		fmt.Fprintf(a.stderr, "%s %s\n", name, oneLine(a.redact(plainText(problem))))
	}
}

// note writes a message to stderr, unless --quiet is set. On a terminal it
// replaces the progress line, which is then written again.
func (a *app) note(format string, args ...any) {
	if a.quiet {
		return
	}
	start := ""
	if a.columns > 0 {
		start = "\r\x1b[K"
	}
	fmt.Fprintf(a.stderr, "%s%s\n", start, oneLine(a.redact(fmt.Sprintf(format, args...))))
}

// oneLine escapes control characters. File names and keys come from others. They
// must not break a line or control a terminal.
func oneLine(text string) string {
	if strings.IndexFunc(text, unicode.IsControl) < 0 {
		return text
	}
	var line strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) {
			fmt.Fprintf(&line, `\x%02x`, r)
		} else {
			line.WriteRune(r)
		}
	}
	return line.String()
}

// printJSON writes one value as a line of JSON to stdout.
func (a *app) printJSON(value any) error { return writeJSONLine(a.stdout, value) }

// writeJSONLine writes a value in one call, without the escapes that only HTML
// needs.
func writeJSONLine(w io.Writer, value any) error {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return err
	}
	_, err := w.Write(line.Bytes())
	return err
}

func (a *app) colored() bool {
	return a.columns > 0 && !a.noColor && a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"
}

// terminalColumns returns the width of the terminal that w writes to, or 0.
func terminalColumns(w io.Writer) int {
	file, ok := w.(*os.File)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(file.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// errFound means that a check found something. The findings are already printed.
var errFound = errors.New("something was found")

// errReaderGone means that the reader of stdout has closed it, as head does when
// it has enough. The program then ends silently with status 0.
var errReaderGone error = readerGone{}

type readerGone struct{}

// Error implements error.
func (readerGone) Error() string { return "standard output was closed by its reader" }

// Unwrap returns EPIPE for the writers that check for it.
func (readerGone) Unwrap() error { return syscall.EPIPE }

// pipeWriter is stdout. It distinguishes a broken pipe on stdout from others.
type pipeWriter struct{ w io.Writer }

func (p pipeWriter) Write(data []byte) (int, error) {
	n, err := p.w.Write(data)
	if errors.Is(err, syscall.EPIPE) {
		err = errReaderGone
	}
	return n, err
}
