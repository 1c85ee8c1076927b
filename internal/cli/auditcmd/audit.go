// Package auditcmd is the verb audit.
package auditcmd

import (
	"encoding/hex"
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
	File   string `json:"file"`
	Lines  int    `json:"lines"`
	Older  int    `json:"older"`
	Torn   int    `json:"torn"`
	Hash   string `json:"hash,omitempty"`
	Intact bool   `json:"intact"`
	Line   int    `json:"line,omitempty"`
	Found  string `json:"found,omitempty"`
}

// New returns the verb audit.
func New(a *term.App) *cobra.Command {
	cmd := term.Group(a, &cobra.Command{
		Use:   "audit VERB",
		Short: "Check audit logs for changed lines",
		Example: `semel audit verify ./ledger
semel audit verify --help`,
	})
	cmd.AddCommand(newVerify(a))
	return cmd
}

func newVerify(a *term.App) *cobra.Command {
	var hash string
	cmd := &cobra.Command{
		Use:   "verify FILE|DIR...",
		Short: "Find the first line of an audit log that was changed, removed or inserted",
		Example: `semel audit verify ./ledger
semel audit verify semel-parked/audit.jsonl --json`,
		Long: `Checks the hash chain of audit logs: the audit.jsonl in the directory of an embedded
store, and the one in a directory of parked messages. It names the first line that
was changed, removed or inserted. Lines that an older program wrote before the first
line with a hash are counted. A log without any hash is unproven.

A person who can write the file can also compute all hashes again, or remove the
last lines. So keep the last hash that this verb prints at another place, and pass it
with --contains the next time.

The exit status is 3 if a log was changed or is unproven. It is also 3 if the last line
was cut short, unless --contains finds its hash.`,
		Args: term.Arguments(1, -1, "FILE is missing: name an audit log, or the directory that has it", ""),
		RunE: a.Checked(func(_ *cobra.Command, args []string, wrong term.Problems) error {
			if sum, err := hex.DecodeString(hash); hash != "" && (err != nil || len(sum) != 32) {
				wrong.Addf("--contains %s: expected a hash of 64 hexadecimal digits, as this verb prints it", hash)
			}
			if hash != "" && len(args) > 1 {
				wrong.Addf("--contains is for one log: name one FILE")
			}
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
				if err := verify(a, name, hash); errors.Is(err, term.ErrFound) {
					found = err
				} else if err != nil {
					return err
				}
			}
			return found
		}),
	}
	cmd.Flags().StringVar(&hash, "contains", "", "fail unless the log has the line with this `HASH`, which an earlier run printed")
	term.CompleteValues(cmd, "contains")
	return cmd
}

// verify prints what it found in one log. The error is term.ErrFound if the log was
// changed, or if nothing shows that it was not.
func verify(a *term.App, name, hash string) error {
	file, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read
	report, err := auditlog.Verify(file, hash)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	switch {
	case report.Fault > 0 || report.Contains:
	case hash != "":
		report.Found = "the line with the hash " + hash + " is gone: lines were removed from the end, or all hashes were computed again"
	case report.Last == "":
		report.Found = "unproven: no line has a hash: the log was emptied or its hashes were removed, or an older program wrote all of it"
	case report.Cut:
		report.Fault, report.Found = report.Lines, "it was cut short, by a crash or by hand: pass the last hash that you keep with --contains"
	}
	intact := report.Found == ""
	if a.JSON {
		err = a.PrintJSON(Line{name, report.Lines, report.Older, report.Torn, report.Last, intact, report.Fault, report.Found})
	} else if intact {
		_, err = fmt.Fprintf(a.Stdout, "%s: intact: %s\n", name, report)
	} else if report.Fault > 0 {
		_, err = fmt.Fprintf(a.Stdout, "%s:%d: %s\n", name, report.Fault, report.Found)
	} else {
		_, err = fmt.Fprintf(a.Stdout, "%s: %s\n", name, report.Found)
	}
	if err == nil && !intact {
		err = term.ErrFound
	}
	return err
}
