package keyrecord

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/cli/term"
)

// auditLine is one line of the audit log. A change has two lines with the same
// operation. The first states the intended change and is durable before the
// change. The second states its outcome. If the second line is missing, the
// operation was interrupted, and the key itself shows whether the change was
// made.
type auditLine struct {
	Time      string `json:"time"`
	Operation string `json:"operation"`
	Actor     string `json:"actor,omitempty"`
	Host      string `json:"host,omitempty"`
	Verb      string `json:"verb,omitempty"`
	Before    *Line  `json:"before,omitempty"` // names the key as well
	After     string `json:"after,omitempty"`
	Message   string `json:"message,omitempty"` // that is parked
	Reason    string `json:"reason,omitempty"`
	Outcome   string `json:"outcome,omitempty"` // OutcomeFailed, or the outcome given to Audited
	Error     string `json:"error,omitempty"`
}

// Log is a store that keeps its audit log together with its keys, so that every process with the
// keys finds the log.
type Log interface {
	// Audit appends a line. It returns when the line is as durable as the store.
	Audit(ctx context.Context, line []byte) error
}

// By is who changes a key by hand, and why.
type By struct {
	Actor, Reason string
	// Message is the parked message for which the key is changed, or "".
	Message string
}

// Me returns the user who runs the program, with a reason.
func Me(reason string) By { return By{Actor: Actor(), Reason: reason} }

// The outcomes of changes.
const (
	OutcomeDone   = "done"
	OutcomeFailed = "failed"
	// OutcomeQueued: a running pipeline does the rest, and may park the message again.
	OutcomeQueued = "queued"
	// OutcomeWritten: the message is in its topic again, and the running pipeline reads it there.
	OutcomeWritten = "written back"
)

// Audited makes a change to one key between two lines of the audit log. The second says outcome
// if the change succeeds.
func Audited(ctx context.Context, log Log, verb string, by By, before *semel.Record, after semel.State, outcome string, change func() error) error {
	operation := rand.Text()
	known := NewLine(before)
	err := appendAudit(ctx, log, auditLine{
		Time: term.JSONTime(time.Now()), Operation: operation,
		Actor: by.Actor, Host: hostname(), Verb: verb,
		Before: &known, After: after.String(), Message: by.Message, Reason: by.Reason,
	})
	if err != nil {
		return fmt.Errorf("audit log: nothing was changed: %w", err)
	}
	changeErr := change()
	line := auditLine{Time: term.JSONTime(time.Now()), Operation: operation, Outcome: outcome}
	if changeErr != nil {
		line.Outcome, line.Error = OutcomeFailed, changeErr.Error()
	}
	if err := appendAudit(context.WithoutCancel(ctx), log, line); err != nil {
		changeErr = errors.Join(changeErr, fmt.Errorf("audit log: the change was made, but its outcome could not be logged: %w", err))
	}
	return changeErr
}

func appendAudit(ctx context.Context, log Log, line auditLine) error {
	var text bytes.Buffer
	if err := term.WriteJSONLine(&text, line); err != nil {
		return err
	}
	return log.Audit(ctx, bytes.TrimSuffix(text.Bytes(), []byte("\n")))
}

// Actor returns the name of the user who runs the program, as far as the system
// knows.
func Actor() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return fmt.Sprintf("uid %d", os.Getuid())
}

func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return name
}

// AddReason adds --reason to a verb that changes keys or messages.
func AddReason(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "`TEXT` that says why, for the audit log")
	term.CompleteValues(cmd, "reason")
}

// CheckReason refuses an empty reason.
func CheckReason(reason string, p *term.Problems) {
	if strings.TrimSpace(reason) == "" {
		p.Addf("--reason TEXT is missing: say why, for the audit log")
	}
}
