// Package cli is the program semel as its user sees it: verbs, flags, messages
// and exit statuses. What the verbs do lives in the packages below it.
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

// The exit statuses, which scripts rely on.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitFound       = 3
	exitInterrupted = 130
)

// app is one run of the program: its streams and what the global flags say.
type app struct {
	kinds          *config.Kinds
	stdin          io.Reader
	stdout, stderr io.Writer
	env            func(name string) string
	args           []string
	columns        int // of the terminal that stderr is, or 0

	asJSON, quiet, noColor, noProgress bool

	// patience is how long a store's servers may take to answer first.
	patience time.Duration
	// redact hides the secrets of the configuration that was read.
	redact func(text string) string

	// interruptible returns a reader whose reads end when the program is to end.
	interruptible func(io.Reader) io.Reader
	// unread is why the configuration could not be read, if it could not.
	unread error
	// wrong is what the parser found wrong with the flags, for the verb to
	// report with what it finds itself.
	wrong problems
	// helpErr is what became of the help that --help asked for.
	helpErr error
}

// Main runs the program with the arguments that follow its name and returns
// its exit status. It blocks until the verb is done; when ctx ends the verb
// drains and the status says that it was interrupted. Messages go to stderr,
// data alone goes to stdout. env looks environment variables up. kinds are the
// kinds of sources, sinks and stores that a configuration can name.
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

// report tells an error to the user and returns the exit status it stands for.
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

// complain writes problems to stderr, each on a line of its own.
func (a *app) complain(path string, problems ...string) {
	name := path + ":"
	if a.colored() {
		name = "\x1b[1;31m" + name + "\x1b[0m"
	}
	for _, problem := range problems {
		fmt.Fprintf(a.stderr, "%s %s\n", name, oneLine(a.redact(plainText(problem))))
	}
}

// note writes a line for people to stderr, unless they asked for quiet. On a
// terminal it takes the place of a progress line, which follows again.
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

// oneLine writes control characters as escapes: names of files and keys are
// other people's text, and must neither break a line nor command a terminal.
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

// printJSON writes one value as one line of JSON to stdout.
func (a *app) printJSON(value any) error { return writeJSONLine(a.stdout, value) }

// writeJSONLine writes a value with one call, without the escapes that only
// HTML needs.
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

// terminalColumns returns the width of the terminal that w is, or 0.
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

// errFound says that a check found something, which it has printed.
var errFound = errors.New("something was found")

// errReaderGone says that who read our stdout has closed it, as head does when
// it has enough. The program then ends quietly and with status 0.
var errReaderGone error = readerGone{}

type readerGone struct{}

// Error implements error.
func (readerGone) Error() string { return "standard output was closed by its reader" }

// Unwrap tells those who write to it what it is.
func (readerGone) Unwrap() error { return syscall.EPIPE }

// pipeWriter is stdout with a broken pipe told apart from broken pipes
// elsewhere.
type pipeWriter struct{ w io.Writer }

func (p pipeWriter) Write(data []byte) (int, error) {
	n, err := p.w.Write(data)
	if errors.Is(err, syscall.EPIPE) {
		err = errReaderGone
	}
	return n, err
}
