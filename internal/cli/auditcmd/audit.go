// Package auditcmd is the verb audit.
package auditcmd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel/internal/auditlog"
	"github.com/semel-dev/semel/internal/cli/term"
)

// Line is the report about one log in JSON.
type Line struct {
	File     string             `json:"file"`
	Lines    int                `json:"lines"`
	Findings []auditlog.Finding `json:"findings,omitempty"`
}

// New returns the verb audit.
func New(a *term.App) *cobra.Command {
	cmd := term.Group(a, &cobra.Command{
		Use:   "audit VERB",
		Short: "Check audit logs for damaged lines and interrupted changes",
		Example: `semel audit verify ./ledger
semel audit verify --help`,
	})
	cmd.AddCommand(newVerify(a))
	return cmd
}

func newVerify(a *term.App) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE|DIR...",
		Short: "Find damaged lines of an audit log, and changes without an outcome",
		Example: `semel audit verify ./ledger
semel audit verify semel-parked/audit.jsonl --json`,
		Long: `Reads audit logs: the audit.jsonl in the directory of an embedded store, and the one in
a directory of parked messages. It names each line that is not whole, and each change
whose outcome is missing, because its command was interrupted.

It cannot find what a person changed who can write the file. Send the lines to another
system as they are written, if that matters.

The exit status is 3 if something was found.`,
		Args: term.Arguments(1, -1, "FILE is missing: name an audit log, or the directory that has it", ""),
		RunE: a.Checked(func(_ *cobra.Command, args []string, wrong term.Problems) error {
			var names []string
			for _, name := range args {
				if info, err := os.Stat(name); err == nil && info.IsDir() {
					name = filepath.Join(name, "audit.jsonl")
				}
				if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
					wrong.Addf("%s: there is no audit log: it is written with the first change by hand", name)
				}
				names = append(names, name)
			}
			if err := wrong.Err(); err != nil {
				return err
			}
			var found error
			for _, name := range names {
				if err := verify(a, name); errors.Is(err, term.ErrFound) {
					found = err
				} else if err != nil {
					return err
				}
			}
			return found
		}),
	}
}

// verify prints what it found in one log. The error is term.ErrFound if that is anything.
func verify(a *term.App, name string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	lines, findings, err := auditlog.Verify(file)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	switch {
	case a.JSON:
		err = a.PrintJSON(Line{name, lines, findings})
	case len(findings) == 0:
		_, err = fmt.Fprintf(a.Stdout, "%s: whole: %d lines\n", name, lines)
	}
	for _, f := range findings {
		if err == nil && !a.JSON {
			_, err = fmt.Fprintf(a.Stdout, "%s:%d: %s\n", name, f.Line, f.Found)
		}
	}
	if err == nil && len(findings) > 0 {
		err = term.ErrFound
	}
	return err
}
