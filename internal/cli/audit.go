package cli

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/user"
	"time"

	"github.com/semel-dev/semel"
)

// auditLine is one line of the audit log. A change has two lines with the same
// operation. The first states the intended change and is durable before the
// change. The second states its outcome. If the second line is missing, the
// operation was interrupted, and the key itself shows whether the change was
// made.
type auditLine struct {
	Time      string      `json:"time"`
	Operation string      `json:"operation"`
	Actor     string      `json:"actor,omitempty"`
	Host      string      `json:"host,omitempty"`
	Verb      string      `json:"verb,omitempty"`
	Before    *recordLine `json:"before,omitempty"` // names the key as well
	After     string      `json:"after,omitempty"`
	Reason    string      `json:"reason,omitempty"`
	Outcome   string      `json:"outcome,omitempty"` // "done" or "failed"
	Error     string      `json:"error,omitempty"`
}

// auditor is a store that keeps its audit log together with its keys, so that
// every process that shares the keys finds it.
type auditor interface {
	// Audit appends a line. It returns when the line is as durable as the store.
	Audit(ctx context.Context, line []byte) error
}

// audited makes a change to one key between two lines of the audit log.
func audited(ctx context.Context, log auditor, verb, reason string, before *semel.Record, after semel.State, change func() error) error {
	operation := rand.Text()
	known := newRecordLine(before)
	err := appendAudit(ctx, log, auditLine{
		Time: jsonTime(time.Now()), Operation: operation,
		Actor: actor(), Host: hostname(), Verb: verb,
		Before: &known, After: after.String(), Reason: reason,
	})
	if err != nil {
		return fmt.Errorf("audit log: nothing was changed: %w", err)
	}
	changeErr := change()
	outcome := auditLine{Time: jsonTime(time.Now()), Operation: operation, Outcome: "done"}
	if changeErr != nil {
		outcome.Outcome, outcome.Error = "failed", changeErr.Error()
	}
	if err := appendAudit(context.WithoutCancel(ctx), log, outcome); err != nil {
		changeErr = errors.Join(changeErr, fmt.Errorf("audit log: the change is there but its outcome is not: %w", err))
	}
	return changeErr
}

func appendAudit(ctx context.Context, log auditor, line auditLine) error {
	var text bytes.Buffer
	if err := writeJSONLine(&text, line); err != nil {
		return err
	}
	return log.Audit(ctx, bytes.TrimSuffix(text.Bytes(), []byte("\n")))
}

// actor returns the name of the user who runs the program, as far as the system
// knows.
func actor() string {
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
