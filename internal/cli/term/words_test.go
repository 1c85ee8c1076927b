package term_test

import (
	"testing"

	"github.com/semel-dev/semel/internal/cli/term"
)

func TestMessagesAreInTheUsersWords(t *testing.T) {
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
		if got := term.PlainText(text); got != want {
			t.Errorf("%q is told as %q, not %q", text, got, want)
		}
	}
}
