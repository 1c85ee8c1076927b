package pipeline

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/auditlog"
	"github.com/semel-dev/semel/internal/retry"
	"github.com/semel-dev/semel/vfs"
)

// DeadLetterDir is a DeadLetterStore in a directory. It has a directory for each
// pipeline, with a JSON file for each message. A file of the same name that ends in
// .redrive marks a queued message. The file audit.jsonl records how messages were
// settled; audit.lock is locked while a process appends to it. Processes of one
// machine may share the directory.
type DeadLetterDir struct{ dir string }

var _ DeadLetterStore = (*DeadLetterDir)(nil)

// The endings of file names.
const (
	parkedEnding  = ".json"
	redriveEnding = ".redrive"
)

// auditName is the name of the audit log in a DeadLetterDir.
const auditName = "audit.jsonl"

// OpenDeadLetterDir returns the dead-letter store in a directory. It creates the
// directory if it does not exist.
func OpenDeadLetterDir(dir string) (*DeadLetterDir, error) {
	if dir == "" {
		return nil, fmt.Errorf("pipeline: open the dead-letter store: no directory is named: %w", semel.ErrInvalidRequest)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("pipeline: open the dead-letter store: %w", err)
	}
	return &DeadLetterDir{dir}, nil
}

// Close implements DeadLetterStore.
func (l *DeadLetterDir) Close() error { return nil }

// Park implements Parker.
func (l *DeadLetterDir) Park(_ context.Context, list []Parked) error {
	dirs := map[string]bool{}
	for i := range list {
		p := &list[i]
		p.Queued = false
		dir, err := l.dirOf(p.Pipeline)
		if err != nil {
			return err
		}
		data, err := json.MarshalIndent(p, "", "  ")
		if err != nil {
			return fmt.Errorf("park %s: %w", p.ID, err)
		}
		name := filepath.Join(dir, p.ID+parkedEnding)
		if err := writeFile(name, append(data, '\n')); err != nil {
			return fmt.Errorf("park %s: %w", p.ID, err)
		}
		if err := remove(markOf(name)); err != nil {
			return fmt.Errorf("park %s: %w", p.ID, err)
		}
		dirs[dir] = true
	}
	for dir := range dirs {
		if err := (vfs.OS{}).SyncDir(dir); err != nil {
			return fmt.Errorf("park: %w", err)
		}
	}
	return nil
}

// dirOf returns the directory of a pipeline and creates it if it does not exist.
func (l *DeadLetterDir) dirOf(pipeline string) (string, error) {
	if pipeline == "" || pipeline != filepath.Base(pipeline) || strings.HasPrefix(pipeline, ".") {
		return "", fmt.Errorf("park: the pipeline name %q cannot be the name of a directory", pipeline)
	}
	dir := filepath.Join(l.dir, pipeline)
	if err := os.Mkdir(dir, 0o700); err == nil {
		return dir, vfs.OS{}.SyncDir(l.dir)
	} else if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// markOf returns the name of the file that marks a message as queued.
func markOf(name string) string { return strings.TrimSuffix(name, parkedEnding) + redriveEnding }

// remove removes a file if it exists.
func remove(name string) error {
	if err := os.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// writeFile writes a whole file durably. After an error the old content is there.
func writeFile(name string, data []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // best effort: nothing reads this file
		}
	}()
	if _, err = file.Write(data); err == nil {
		err = file.Sync()
	}
	if err := errors.Join(err, file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// List implements DeadLetters.
func (l *DeadLetterDir) List(ctx context.Context, pipeline string, fn func(*Parked) bool) error {
	files, err := l.files(pipeline)
	if err != nil {
		return fmt.Errorf("list the parked messages: %w", err)
	}
	var list []*Parked
	var unreadable []error
	for _, name := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		p, err := readParked(name)
		switch {
		case errors.Is(err, fs.ErrNotExist): // another process settled it
		case errors.Is(err, ErrUnreadable):
			unreadable = append(unreadable, err)
		case err != nil:
			return err
		default:
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b *Parked) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	for _, p := range list {
		if !fn(p) {
			break
		}
	}
	return errors.Join(unreadable...)
}

// Count implements DeadLetterStore.
func (l *DeadLetterDir) Count(ctx context.Context, pipeline string) (int64, error) {
	files, err := l.files(pipeline)
	if err != nil {
		return 0, fmt.Errorf("count the parked messages: %w", err)
	}
	return int64(len(files)), ctx.Err()
}

// AuditTail returns the last lines of the audit log, at most most of them, the newest last.
func (l *DeadLetterDir) AuditTail(_ context.Context, most int) ([][]byte, error) {
	file, err := vfs.OS{}.Open(filepath.Join(l.dir, auditName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, wrap("read the audit log", err)
	}
	lines, err := auditlog.Tail(file, most)
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, wrap("read the audit log", err)
	}
	return lines, nil
}

// dirs returns the directories of all pipelines. It does not use filepath.Glob,
// because a name may contain its special characters.
func (l *DeadLetterDir) dirs() ([]string, error) {
	entries, err := os.ReadDir(l.dir)
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, filepath.Join(l.dir, e.Name()))
		}
	}
	return dirs, err
}

// files returns the files of a pipeline's messages. The name "" stands for all
// pipelines.
func (l *DeadLetterDir) files(pipeline string) (files []string, err error) {
	dirs := []string{filepath.Join(l.dir, pipeline)}
	if pipeline == "" {
		if dirs, err = l.dirs(); err != nil {
			return nil, err
		}
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if name := e.Name(); !e.IsDir() && strings.HasSuffix(name, parkedEnding) && !strings.HasPrefix(name, ".") {
				files = append(files, filepath.Join(dir, name))
			}
		}
	}
	return files, nil
}

func readParked(name string) (*Parked, error) {
	data, err := vfs.OS{}.ReadFile(name)
	if linked, ok := errors.AsType[*vfs.LinkError](err); ok {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, linked)
	}
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: %w: let this user read it, or move it out of the directory", ErrUnreadable, err)
	}
	if err != nil {
		return nil, err
	}
	p := &Parked{}
	err = json.Unmarshal(data, p)
	if err == nil && p.ID+parkedEnding != filepath.Base(name) {
		err = fmt.Errorf("its id %q is not its file name", p.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s is damaged, or not a parked message: %w: move it out of the directory", ErrUnreadable, name, err)
	}
	_, err = os.Stat(markOf(name))
	p.Queued = err == nil
	return p, nil
}

// find returns the file of a message.
func (l *DeadLetterDir) find(id string) (string, error) {
	if id == "" || strings.ContainsAny(id, `\/.`) {
		return "", fmt.Errorf("%q: %w", id, ErrNotParked)
	}
	dirs, err := l.dirs()
	if err != nil {
		return "", fmt.Errorf("look for %s: %w", id, err)
	}
	for _, dir := range dirs {
		name := filepath.Join(dir, id+parkedEnding)
		if _, err := os.Stat(name); err == nil {
			return name, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("look for %s: %w", id, err)
		}
	}
	return "", fmt.Errorf("%s: %w", id, ErrNotParked)
}

// Get implements DeadLetters.
func (l *DeadLetterDir) Get(_ context.Context, id string) (*Parked, error) {
	_, p, err := l.read(id)
	return p, err
}

// read returns a message and its file.
func (l *DeadLetterDir) read(id string) (name string, p *Parked, err error) {
	if name, err = l.find(id); err != nil {
		return "", nil, err
	}
	if p, err = readParked(name); errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%s: %w", id, ErrNotParked)
	}
	return name, p, err
}

// Queue implements DeadLetterStore.
func (l *DeadLetterDir) Queue(_ context.Context, ids []string) error {
	for _, id := range ids {
		name, err := l.find(id)
		if err != nil {
			return err
		}
		mark := markOf(name)
		if _, err := os.Stat(mark); err == nil {
			continue // the first request decides its place in the queue
		}
		if err = writeFile(mark, nil); err == nil {
			err = vfs.OS{}.SyncDir(filepath.Dir(mark))
		}
		if err != nil {
			return fmt.Errorf("queue %s: %w", id, err)
		}
	}
	return nil
}

// Queued implements DeadLetterStore.
func (l *DeadLetterDir) Queued(ctx context.Context, pipeline string, max int) ([]*Parked, error) {
	entries, err := os.ReadDir(filepath.Join(l.dir, pipeline))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the queued messages: %w", err)
	}
	type mark struct {
		name string
		at   time.Time
	}
	var marks []mark
	for _, e := range entries {
		if id, ok := strings.CutSuffix(e.Name(), redriveEnding); ok {
			if info, err := e.Info(); err == nil {
				marks = append(marks, mark{filepath.Join(l.dir, pipeline, id+parkedEnding), info.ModTime()})
			}
		}
	}
	slices.SortFunc(marks, func(a, b mark) int { return a.at.Compare(b.at) })
	var list []*Parked
	for _, m := range marks {
		if len(list) == max || ctx.Err() != nil {
			break
		}
		p, err := readParked(m.name)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrUnreadable) { // List names unreadable files
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, ctx.Err()
}

// Settle implements DeadLetters. The audit log has the entry before the message is
// removed.
func (l *DeadLetterDir) Settle(ctx context.Context, p *Parked, how Settlement) error {
	name, kept, err := l.read(p.ID)
	if errors.Is(err, ErrNotParked) && how.Delivered {
		if failed := l.audit(ctx, p, how); failed != nil {
			return failed
		}
	}
	if err != nil {
		return err
	}
	if err := l.audit(ctx, kept, how); err != nil {
		return err
	}
	for _, file := range []string{name, markOf(name)} {
		if err := remove(file); err != nil {
			return fmt.Errorf("remove %s: %w", p.ID, err)
		}
	}
	return vfs.OS{}.SyncDir(filepath.Dir(name))
}

// audit appends an entry to the audit log. It blocks until the entry is durable.
func (l *DeadLetterDir) audit(ctx context.Context, p *Parked, how Settlement) error {
	line, err := how.Line(p)
	if err != nil {
		return wrap("write the audit log", err)
	}
	return l.Audit(ctx, line)
}

// Audit implements DeadLetters.
func (l *DeadLetterDir) Audit(ctx context.Context, line []byte) (err error) {
	defer func() { err = wrap("write the audit log", err) }()
	lock, err := l.lockAudit(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	name := filepath.Join(l.dir, auditName)
	file, err := vfs.OS{}.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		file, err = vfs.OS{}.Create(name)
	}
	if err != nil {
		return err
	}
	return errors.Join(auditlog.Append(file, line), file.Close())
}

// lockAudit waits until no other process appends to the audit log. A line is written
// behind the last one, so two processes must not append at the same time.
func (l *DeadLetterDir) lockAudit(ctx context.Context) (io.Closer, error) {
	for {
		lock, err := vfs.OS{}.Lock(filepath.Join(l.dir, "audit.lock"), fmt.Sprintf("process %d", os.Getpid()))
		var held *vfs.LockedError
		if !errors.As(err, &held) {
			return lock, err
		}
		if ended := retry.Sleep(ctx, time.Millisecond); ended != nil {
			return nil, errors.Join(ended, err)
		}
	}
}

// AuditEnd implements DeadLetterStore.
func (l *DeadLetterDir) AuditEnd(context.Context) (int64, error) {
	info, err := os.Stat(filepath.Join(l.dir, auditName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, wrap("read the audit log", err)
	}
	return info.Size(), nil
}

// Settled implements DeadLetterStore.
func (l *DeadLetterDir) Settled(ctx context.Context, after int64, fn func(Settlement) bool) error {
	file, err := os.Open(filepath.Join(l.dir, auditName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return wrap("read the audit log", err)
	}
	defer func() { _ = file.Close() }() // it was only read: there is nothing to lose
	if _, err := file.Seek(after, io.SeekStart); err != nil {
		return wrap("read the audit log", err)
	}
	for lines := bufio.NewReader(file); ctx.Err() == nil; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // the writer has not finished the last line, or died before it had
		}
		if err != nil {
			return wrap("read the audit log", err)
		}
		if s := (Settlement{}); s.ReadLine(line) && !fn(s) {
			return nil
		}
	}
	return ctx.Err()
}
