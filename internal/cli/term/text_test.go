package term

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestErrorsOmitInternalPackageNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"semel: the id in scope \"x\" is empty: invalid key":                         `the id in scope "x" is empty`,
		"open the store s: logstore: lengthen segment 1: no space left on device":    "open the store s: lengthen segment 1: no space left on device: make room and run the same command again",
		"the store s: invalid request: logstore: it is not empty":                    "the store s: it is not empty",
		"open a: too many open files":                                                "open a: too many open files: raise the limit (ulimit -n) and run the same command again",
		"a: no permission":                                                           "a: no permission: change the permissions, or run as another user",
		"a:7: the line is longer than 64 MiB":                                        "a:7: the line is longer than 64 MiB: is a line end missing, or a quote never closed?",
		"keys.jsonl:7: id: it is null; 1 keys are imported: importing again is safe": "keys.jsonl:7: id: it is null; 1 keys are imported: importing again is safe",
	} {
		if got := PlainText(text); got != want {
			t.Errorf("%q is told as %q, not %q", text, got, want)
		}
	}
}

func TestForeignTextIsEscapedOnOneLine(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		OneLine("plain ß😀"):                     "plain ß😀",
		OneLine("a\nb\x1b[2J\u009b"):            `a\nb\x1b[2J\x9b`,
		DisplayText("plain ß😀"):                 "plain ß😀",
		DisplayText("a\u202eb"):                 `"a\u202eb"`,
		DisplayText("\xff"):                     `"\xff"`,
		DisplayText("a\u2800"):                  `"a\u2800"`,
		JoinLines("a\n\tb\n"):                   "a; b",
		Shorten("short", 5):                     "short",
		Shorten("ßßßßß", 5):                     "ßßßßß",
		Shorten(strings.Repeat("ß", 1200), 3):   "ßßß… (1,200 characters)",
		ShellLine("semel", "keys", "rm", "a b"): "semel keys rm 'a b'",
		ShellLine("", "it's", "$x"):             `'' 'it'\''s' '$x'`,
		ShellLine("a\n'\\\xff"):                 `$'a\012\'\\\377'`,
		Plural(1, "message"):                    "1 message",
		Plural(2, "message"):                    "2 messages",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestErrorsOfFilesHaveReasonsWithoutTheirOperation(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want string
	}{
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOENT}, "there is no such file"},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}, "no permission"},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.ENOTDIR}, "this is not a directory"},
		{&fs.PathError{Op: "open", Path: "x", Err: syscall.EIO}, "input/output error"},
	} {
		if got := FileReason(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

func TestErrorPutOnOneLineKeepsItsCause(t *testing.T) {
	t.Parallel()
	err := InOneLine(fmt.Errorf("ERROR:\n  no table: %w", fs.ErrNotExist))
	if err.Error() != "ERROR: no table: file does not exist" || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if InOneLine(nil) != nil {
		t.Error("no error becomes one")
	}
}

func TestTimesAreInUTCAndAreEmptyIfUnset(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.FixedZone("", 3600))
	if got := JSONTime(at) + " " + DisplayTime(at); got != "2026-01-02T02:04:05.000006Z 2026-01-02 02:04:05 UTC" {
		t.Errorf("%s", got)
	}
	if got := JSONTime(time.Time{}) + DisplayTime(time.Time{}); got != "" {
		t.Errorf("no time is %q", got)
	}
}
