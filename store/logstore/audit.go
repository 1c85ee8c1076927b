package logstore

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/semel-dev/semel/internal/auditlog"
)

// AuditName is the name of the audit log in the store's directory. It records
// who changed a key by hand, and why. The store only appends to it.
const AuditName = "audit.jsonl"

// audit durably appends a line to the audit log.
func (l *log) audit(line []byte) error {
	l.prepare.Lock()
	defer l.prepare.Unlock()
	l.mu.Lock()
	err := l.usable()
	l.mu.Unlock()
	if err != nil {
		return err
	}
	if err := l.appendAudit(line); err != nil {
		return fmt.Errorf("logstore: write audit log: %w", err)
	}
	return nil
}

// auditTail returns the last lines of the audit log, the newest last.
func (l *log) auditTail(most int) ([][]byte, error) {
	l.mu.Lock()
	err := l.usable()
	l.mu.Unlock()
	if err != nil {
		return nil, err
	}
	f, err := l.dir.fs.Open(filepath.Join(l.dir.path, AuditName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("logstore: read audit log: %w", err)
	}
	lines, err := auditlog.Tail(f, most)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("logstore: read audit log: %w", err)
	}
	return lines, nil
}

func (l *log) appendAudit(line []byte) error {
	name := filepath.Join(l.dir.path, AuditName)
	f, err := l.dir.fs.Open(name)
	created := errors.Is(err, fs.ErrNotExist)
	if created {
		f, err = l.dir.fs.Create(name)
	}
	if err != nil {
		return err
	}
	if err = errors.Join(auditlog.Append(f, line), f.Close()); err == nil && created {
		err = l.dir.fs.SyncDir(l.dir.path)
	}
	return err
}
