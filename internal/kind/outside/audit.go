package outside

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/auditlog"
	"github.com/semel-dev/semel/vfs"
)

// auditor is a store that keeps the audit log together with its keys.
type auditor interface {
	Audit(ctx context.Context, line []byte) error
}

// audited is a store that keeps no audit log, with a file for it, so that people can settle its
// keys by hand. The file is made by the first such change.
type audited struct {
	semel.Store
	path string
}

// withAudit returns the store itself if it keeps an audit log, or no key of it can be changed by
// hand.
func withAudit(store semel.Store, path string) semel.Store {
	_, settles := semel.As[semel.Resolver](store)
	if _, keeps := semel.As[auditor](store); keeps || !settles {
		return store
	}
	return &audited{store, path}
}

// Unwrap is for semel.As.
func (s *audited) Unwrap() semel.Store { return s.Store }

// Audit implements auditor.
func (s *audited) Audit(_ context.Context, line []byte) error {
	_, err := os.Stat(s.path)
	isNew := errors.Is(err, fs.ErrNotExist)
	f, err := os.OpenFile(s.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err == nil {
		err = errors.Join(auditlog.Append(appending{f}, line), f.Close())
	}
	if err == nil && isNew {
		err = vfs.OS{}.SyncDir(filepath.Dir(s.path))
	}
	if err != nil {
		return fmt.Errorf("write the audit log: %w", err)
	}
	return nil
}

// AuditTail returns the last lines of the log, at most most of them, the newest last.
func (s *audited) AuditTail(_ context.Context, most int) (lines [][]byte, err error) {
	f, err := os.Open(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		lines, err = auditlog.Tail(appending{f}, most)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return nil, fmt.Errorf("read the audit log: %w", err)
	}
	return lines, nil
}

// appending is a file to which several processes append: the system puts each write at the end.
type appending struct{ *os.File }

// Size implements vfs.File.
func (f appending) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// WriteAt implements vfs.File. It writes at the end, wherever that is by now.
func (f appending) WriteAt(p []byte, _ int64) (int, error) { return f.Write(p) }

// Allocate implements vfs.File.
func (appending) Allocate(int64) error { return errors.ErrUnsupported }
