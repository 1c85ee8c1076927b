package cli

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/vfs"
)

// auditName is the file in a store's directory that says who changed a key by
// hand, and why. It is only ever appended to.
const auditName = "audit.jsonl"

// auditLine is one line of the audit log. A change has two lines with one
// operation: what is about to be done, durable before it is done, and what came
// of it. An operation without its second line was cut off in between: the key
// itself shows whether the change was made.
type auditLine struct {
	Time      string      `json:"time"`
	Operation string      `json:"operation"`
	Actor     string      `json:"actor,omitempty"`
	Host      string      `json:"host,omitempty"`
	Verb      string      `json:"verb,omitempty"`
	Before    *recordLine `json:"before,omitempty"` // names the key too
	After     string      `json:"after,omitempty"`
	Reason    string      `json:"reason,omitempty"`
	Outcome   string      `json:"outcome,omitempty"` // "done" or "failed"
	Error     string      `json:"error,omitempty"`
}

// audited makes a change to one key between two lines of the audit log of the
// store in dir, which the caller has open: its lock keeps others away.
func audited(dir, verb, reason string, before *semel.Record, after semel.State, change func() error) (err error) {
	log, err := openAudit(filepath.Join(dir, auditName))
	if err != nil {
		return fmt.Errorf("audit log: nothing was changed: %w", err)
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	operation := rand.Text()
	known := newRecordLine(before)
	err = appendAudit(log, auditLine{
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
	if err := appendAudit(log, outcome); err != nil {
		changeErr = errors.Join(changeErr, fmt.Errorf("audit log: the change is there but its outcome is not: %w", err))
	}
	return changeErr
}

// openAudit opens the log for appending. A last line that was cut off by a
// crash is ended, so that the next one stands by itself.
func openAudit(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	if err := endLastLine(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

func endLastLine(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return vfs.OS{}.SyncDir(filepath.Dir(file.Name()))
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], info.Size()-1); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if last[0] != '\n' {
		_, err = file.WriteString("\n")
	}
	return err
}

func appendAudit(file *os.File, line auditLine) error {
	var text bytes.Buffer
	if err := writeJSONLine(&text, line); err != nil {
		return err
	}
	if _, err := file.Write(text.Bytes()); err != nil {
		return err
	}
	return file.Sync()
}

// actor names who runs the program, as far as the system knows.
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
