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
)

// DeadLetterDir is a DeadLetterStore in a directory. It has a directory for each
// pipeline, with a JSON file for each message. A file beside that with the ending
// .redrive says that the message is queued. The file audit.jsonl says how messages
// were settled. Processes of one machine may share the directory.
type DeadLetterDir struct{ dir string }

var _ DeadLetterStore = (*DeadLetterDir)(nil)

// The endings of file names.
const (
	parkedEnding  = ".json"
	redriveEnding = ".redrive"
)

// AuditName is the file in a DeadLetterDir that says who took out what.
const AuditName = "audit.jsonl"

// OpenDeadLetterDir returns the dead-letter store in a directory. It creates the
// directory if there is none.
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
		dir, err := l.of(p.Pipeline)
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
		if err := os.Remove(filepath.Join(dir, p.ID+redriveEnding)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("park %s: %w", p.ID, err)
		}
		dirs[dir] = true
	}
	for dir := range dirs {
		if err := syncDir(dir); err != nil {
			return fmt.Errorf("park: %w", err)
		}
	}
	return nil
}

// of returns the directory of a pipeline and makes it if there is none.
func (l *DeadLetterDir) of(pipeline string) (string, error) {
	if pipeline == "" || pipeline != filepath.Base(pipeline) || strings.HasPrefix(pipeline, ".") {
		return "", fmt.Errorf("park: %q is no name for a pipeline that keeps its messages in a directory", pipeline)
	}
	dir := filepath.Join(l.dir, pipeline)
	if err := os.Mkdir(dir, 0o700); err == nil {
		return dir, syncDir(l.dir)
	} else if !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return dir, nil
}

// writeFile writes a whole file durably, or leaves what was there.
func writeFile(name string, data []byte) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // it is of no use, and the error says more
		}
	}()
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if e := file.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = d.Sync()
	if e := d.Close(); err == nil {
		err = e
	}
	return err
}

// Parked implements DeadLetterStore.
func (l *DeadLetterDir) List(ctx context.Context, pipeline string, fn func(*Parked) bool) error {
	list, unreadable, err := l.list(ctx, pipeline)
	if err != nil {
		return err
	}
	slices.SortFunc(list, func(a, b *Parked) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.ID, b.ID)) })
	for _, p := range list {
		if !fn(p) {
			break
		}
	}
	return errors.Join(unreadable...)
}

// dirs returns the directories of the pipelines. Names are taken as they are,
// whatever they mean as patterns.
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

// Count implements DeadLetterStore.
func (l *DeadLetterDir) Count(ctx context.Context, pipeline string) (n int64, err error) {
	dirs := []string{filepath.Join(l.dir, pipeline)}
	if pipeline == "" {
		if dirs, err = l.dirs(); err != nil {
			return 0, fmt.Errorf("count what is parked: %w", err)
		}
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return 0, fmt.Errorf("count what is parked: %w", err)
		}
		for _, e := range entries {
			if isParked(e.Name()) {
				n++
			}
		}
	}
	return n, ctx.Err()
}

func isParked(name string) bool {
	return strings.HasSuffix(name, parkedEnding) && !strings.HasPrefix(name, ".")
}

// list reads the messages of a pipeline, or of all, and says which files it
// cannot read.
func (l *DeadLetterDir) list(ctx context.Context, pipeline string) (list []*Parked, unreadable []error, err error) {
	dirs := []string{filepath.Join(l.dir, pipeline)}
	if pipeline == "" {
		if dirs, err = l.dirs(); err != nil {
			return nil, nil, fmt.Errorf("list what is parked: %w", err)
		}
	}
	for _, dir := range dirs {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("list what is parked: %w", err)
		}
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return nil, nil, err
			}
			if e.IsDir() || !isParked(e.Name()) {
				continue
			}
			p, err := readParked(filepath.Join(dir, e.Name()))
			switch {
			case errors.Is(err, fs.ErrNotExist): // another process took it out
			case errors.Is(err, ErrUnreadable):
				unreadable = append(unreadable, err)
			case err != nil:
				return nil, nil, err
			default:
				list = append(list, p)
			}
		}
	}
	return list, unreadable, nil
}

func readParked(name string) (*Parked, error) {
	data, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("%w: %w: let this user read it, or move it out of the directory", ErrUnreadable, err)
	}
	if err != nil {
		return nil, err
	}
	p := &Parked{}
	err = json.Unmarshal(data, p)
	if err == nil && p.ID+parkedEnding != filepath.Base(name) {
		err = fmt.Errorf("it has the id %q, not that of its name", p.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s is damaged or something else: %w: move it out of the directory", ErrUnreadable, name, err)
	}
	_, err = os.Stat(strings.TrimSuffix(name, parkedEnding) + redriveEnding)
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

// Get implements DeadLetterStore.
func (l *DeadLetterDir) Get(_ context.Context, id string) (*Parked, error) {
	name, err := l.find(id)
	if err != nil {
		return nil, err
	}
	p, err := readParked(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", id, ErrNotParked)
	}
	return p, err
}

// Queue implements DeadLetterStore.
func (l *DeadLetterDir) Queue(_ context.Context, ids []string) error {
	for _, id := range ids {
		name, err := l.find(id)
		if err != nil {
			return err
		}
		mark := strings.TrimSuffix(name, parkedEnding) + redriveEnding
		if _, err := os.Stat(mark); err == nil {
			continue // it keeps its turn
		}
		if err := writeFile(mark, nil); err != nil {
			return fmt.Errorf("queue %s: %w", id, err)
		}
		if err := syncDir(filepath.Dir(mark)); err != nil {
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
		return nil, fmt.Errorf("read what is parked: %w", err)
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
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ErrUnreadable) { // Parked names what it cannot read
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, p)
	}
	return list, ctx.Err()
}

// Settle implements DeadLetterStore. The audit log has the entry before the message is
// gone.
func (l *DeadLetterDir) Settle(_ context.Context, p *Parked, how Settlement) error {
	name, err := l.find(p.ID)
	var kept *Parked
	if err == nil {
		if kept, err = readParked(name); errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%s: %w", p.ID, ErrNotParked)
		}
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrNotParked) && how.Delivered:
		if failed := l.audit(p, how); failed != nil {
			return failed
		}
		return err
	default:
		return err
	}
	if err := l.audit(kept, how); err != nil {
		return err
	}
	stem := strings.TrimSuffix(name, parkedEnding)
	for _, file := range []string{name, stem + redriveEnding} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", p.ID, err)
		}
	}
	return syncDir(filepath.Dir(name))
}

// audit appends an entry to the audit log. It blocks until that is durable.
func (l *DeadLetterDir) audit(p *Parked, how Settlement) (err error) {
	line, err := AuditLine(p, how)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(l.dir, AuditName), os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	defer func() {
		if e := file.Close(); err == nil && e != nil {
			err = fmt.Errorf("audit: %w", e)
		}
	}()
	if torn, err := endsTorn(file); err != nil {
		return fmt.Errorf("audit: %w", err)
	} else if torn {
		line = append([]byte{'\n'}, line...)
	}
	if _, err := file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	return nil
}

// endsTorn reports whether the last line of a file has no line end, because a
// program died while it wrote it.
func endsTorn(file *os.File) (bool, error) {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return false, err
	}
	last := make([]byte, 1)
	_, err = file.ReadAt(last, info.Size()-1)
	return last[0] != '\n', err
}

// AuditEnd implements DeadLetterStore.
func (l *DeadLetterDir) AuditEnd(context.Context) (int64, error) {
	info, err := os.Stat(filepath.Join(l.dir, AuditName))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("audit: %w", err)
	}
	return info.Size(), nil
}

// Settled implements DeadLetterStore.
func (l *DeadLetterDir) Settled(ctx context.Context, after int64, fn func(Settlement) bool) error {
	file, err := os.Open(filepath.Join(l.dir, AuditName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read: there is nothing to lose
	if _, err := file.Seek(after, io.SeekStart); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	for lines := bufio.NewReader(file); ctx.Err() == nil; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil // what has no line end is being written, or was cut off
		}
		if err != nil {
			return fmt.Errorf("audit: %w", err)
		}
		if s, ok := ParseAuditLine(line); ok && !fn(s) {
			return nil
		}
	}
	return ctx.Err()
}
