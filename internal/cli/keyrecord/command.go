package keyrecord

import (
	"io"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
	"github.com/semel-dev/semel/internal/jsonid"
)

// Command is a command line for a shell, and the case that it is for.
type Command struct{ Case, Line string }

// Commands returns what a person can do next with a key. store are the flags that
// name its store. There is no command for an absent key, and none for a key that
// is claimed.
func Commands(r *semel.Record, store []string) []Command {
	var list []Command
	add := func(when, verb string, flags ...string) {
		if line, ok := LineOf(r, "keys "+verb, slices.Concat(flags, store)...); ok {
			list = append(list, Command{when, line})
		}
	}
	switch r.State {
	case semel.Unknown:
		add("if the effect happened", "resolve", "--as", "done", "--reason", "the effect happened")
		add("if the effect did not happen", "resolve", "--as", "absent", "--reason", "the effect did not happen")
	case semel.Done:
		add("to process its message again", "rm", "--reason", "process it again")
	}
	return list
}

// LineOf returns the line of a command about the key of a record, with flags. It returns
// false if no line can name the key.
func LineOf(r *semel.Record, verb string, flags ...string) (string, bool) {
	line := append([]string{"semel"}, strings.Fields(verb)...)
	text, ok := jsonid.Format(r.Key.ID)
	ok = ok && !strings.Contains(r.Key.Scope, "\x00") // no command line has such a byte
	last := r.Key.ID
	switch {
	case !ok && r.Digest == semel.Digest{}:
		return "", false
	case !ok:
		line = append(line, "--digest", r.Digest.String())
		last = ""
	case DisplayID(last) != last:
		line, last = append(line, "--json-id"), string(text)
	}
	if ok && last[0] != '-' {
		line, last = append(line, last), ""
	}
	line = append(line, flags...)
	if ok {
		line = append(line, "--scope", r.Key.Scope)
	}
	if last != "" {
		line = append(line, "--", last) // otherwise it would be a flag
	}
	return term.ShellLine(line...), true
}

// WriteCommands prints commands for people, each below its case.
func WriteCommands(w io.Writer, list []Command) error {
	var text strings.Builder
	for _, c := range list {
		text.WriteString(c.Case + ":\n  " + term.OneLine(c.Line) + "\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// NoteCommands is WriteCommands to stderr, for commands below a listing.
func NoteCommands(a *term.App, list []Command) {
	for _, c := range list {
		a.Note("%s:", c.Case)
		a.Note("  %s", c.Line)
	}
}
