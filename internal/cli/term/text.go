package term

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/jsonid"
	"github.com/semel-dev/semel/internal/schema"
)

// OneLine escapes control characters. File names and keys come from others. They
// must not break a line or control a terminal.
func OneLine(text string) string {
	if strings.IndexFunc(text, unicode.IsControl) < 0 {
		return text
	}
	var line strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			line.WriteString(`\n`)
		case unicode.IsControl(r):
			fmt.Fprintf(&line, `\x%02x`, r)
		default:
			line.WriteRune(r)
		}
	}
	return line.String()
}

// Shorten cuts a text for a table to this many characters, and says how long it was.
func Shorten(text string, most int) string {
	if len(text) <= most {
		return text
	}
	all := []rune(text)
	if len(all) <= most {
		return text
	}
	return fmt.Sprintf("%s… (%s characters)", string(all[:most]), FormatCount(int64(len(all))))
}

// PlainText removes package names from a message. It adds a remedy for problems
// that any part of the program can have.
func PlainText(text string) string {
	for _, name := range []string{"semel", "logstore", "filter", "key", "dedup", "vfs", "memstore", "table", "redisstore", "pgstore", "tiered"} {
		text = strings.ReplaceAll(strings.TrimPrefix(text, name+": "), ": "+name+": ", ": ")
	}
	for _, kind := range []error{semel.ErrInvalidRequest, semel.ErrInvalidKey} {
		text = strings.ReplaceAll(strings.TrimSuffix(text, ": "+kind.Error()), ": "+kind.Error()+": ", ": ")
	}
	for _, advice := range [][2]string{
		{"no space left on device", "make room and run the same command again"},
		{"no space left on the disk", "make room and run the same command again"},
		{"too many open files", "raise the limit (ulimit -n) and run the same command again"},
		{"permission denied", "change the permissions, or run as another user"},
		{"no permission", "change the permissions, or run as another user"},
		{": not a directory", "write another path"},
		{": too many levels of symbolic links", "write another path"},
		{": read-only file system", "write another path"},
		{"line is longer than 64 MiB", "is a line end missing, or a quote never closed?"},
	} {
		if strings.HasSuffix(text, advice[0]) {
			return text + ": " + advice[1]
		}
	}
	return text
}

// FileReason removes Go's operation name from a file error. The message already
// has the file name.
func FileReason(err error) string {
	switch err = schema.Cause(err); {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		return "no permission"
	case errors.Is(err, syscall.ENOTDIR):
		return "this is not a directory"
	}
	return err.Error()
}

// lineError puts a driver error, which may have several lines, on one line.
type lineError struct{ error }

// InOneLine returns an error that fits on one line, or nil.
func InOneLine(err error) error {
	if err == nil {
		return nil
	}
	return lineError{err}
}

// Error implements error.
func (e lineError) Error() string { return JoinLines(e.error.Error()) }

// JoinLines puts a text on one line.
func JoinLines(text string) string { return diagnose.Line(text) }

// Unwrap returns the original error with all its lines.
func (e lineError) Unwrap() error { return e.error }

// JSONTime formats a time for JSON, and no time as "".
func JSONTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// DisplayText shows any text on one terminal line. It quotes a text with characters that
// do not show.
func DisplayText(text string) string {
	for _, r := range text {
		if r == utf8.RuneError || !Shows(r) {
			return strconv.QuoteToASCII(text)
		}
	}
	return text
}

// Shows reports whether a character is seen where it is printed. Two texts that differ
// in others look the same.
func Shows(r rune) bool { return jsonid.Shows(r) }

// DisplayTime formats a time for people, and no time as "".
func DisplayTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02 15:04:05 MST")
}

// Plural formats a number of things: 1 message, 2 messages.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// ShellLine joins words to a command line. It quotes the words that a shell would
// change. Control characters and bytes that are no text become $'…', which the command
// line of a terminal takes as it is shown.
func ShellLine(words ...string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		switch quoted[i] = word; {
		case strings.ContainsFunc(word, func(r rune) bool { return unicode.IsControl(r) || r == utf8.RuneError }):
			quoted[i] = escaped(word)
		case word == "" || strings.Trim(word, shellSafe) != "":
			quoted[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
		}
	}
	return strings.Join(quoted, " ")
}

// escaped returns a word as $'…' in printable ASCII.
func escaped(word string) string {
	text := []byte("$'")
	for _, b := range []byte(word) {
		switch {
		case b == '\'' || b == '\\':
			text = append(text, '\\', b)
		case b < ' ' || b > '~':
			text = fmt.Appendf(text, `\%03o`, b)
		default:
			text = append(text, b)
		}
	}
	return string(append(text, '\''))
}

// shellSafe are characters that have no meaning for a shell.
const shellSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./:,@%+"
