package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/vfs"
)

// spool is a kind of source: each file of a directory is a message, and is deleted when the
// message is settled. Producers rename whole files into the directory.
type spool struct {
	dir   connector.Path
	watch bool
}

var _ interface {
	connector.Source
	connector.Examiner
	connector.Sampler
} = (*spool)(nil)

func newSpool() connector.Source { return &spool{} }

// Kind implements connector.Kind.
func (*spool) Kind() string { return "spool" }

// Fields implements connector.Kind.
func (s *spool) Fields() (doc string, fields []connector.Field) {
	return "The files of a directory. Each one is a message, and is deleted when it is settled.", []connector.Field{
		{Name: "dir", Value: &s.dir, Doc: "The directory.", Required: true},
		{Name: "watch", Value: &s.watch, Doc: "Whether to wait for further files. Otherwise the run ends when all files are settled."},
	}
}

// About implements connector.Source.
func (s *spool) About() connector.SourceAbout {
	return connector.SourceAbout{
		Name: "spool " + string(s.dir), Again: "the file is read again", Unacknowledged: "the file may be there still",
		Behind: "the run does not end", NoPositions: "a spool has no positions",
	}
}

// Examine implements connector.Examiner.
func (s *spool) Examine(context.Context) ([]connector.Finding, error) {
	files, err := s.files()
	if errors.Is(err, fs.ErrNotExist) {
		return []connector.Finding{{Severity: doctor.Broken, Field: "dir", Found: string(s.dir) + " does not exist", Cost: "nothing is read", Remedy: "create it"}}, nil
	}
	return []connector.Finding{{Severity: doctor.Fine, Field: "dir", Found: fmt.Sprintf("%d files", len(files))}}, err
}

// Sample implements connector.Sampler.
func (s *spool) Sample(ctx context.Context, fn func(*semel.Message) bool) error {
	files, err := s.files()
	for _, name := range files {
		body, err := os.ReadFile(name)
		if err != nil || ctx.Err() != nil || !fn(&semel.Message{Body: body}) {
			return err
		}
	}
	return err
}

// Open implements connector.Source. Two processes would read the same files, so it locks the spool.
func (s *spool) Open(context.Context, *connector.Env) (pipeline.Source, error) {
	if _, err := s.files(); err != nil {
		return nil, err
	}
	lock, err := vfs.OS{}.Lock(string(s.dir)+".lock", fmt.Sprint("process ", os.Getpid()))
	if err != nil {
		return nil, err
	}
	return &reading{spool: s, lock: lock, partition: pipeline.NewPartition(string(s.dir)), n: time.Now().UnixNano(), taken: map[string]bool{}}, nil
}

// files returns the names of the files, sorted.
func (s *spool) files() (names []string, err error) {
	entries, err := os.ReadDir(string(s.dir))
	for _, e := range entries {
		if e.Type().IsRegular() {
			names = append(names, filepath.Join(string(s.dir), e.Name()))
		}
	}
	return names, err
}

// reading is an open spool.
type reading struct {
	*spool
	lock      io.Closer
	partition *pipeline.Partition
	n         int64 // numbers the deliveries, over restarts too; owned by the goroutine that calls Read

	mu    sync.Mutex      // guards taken
	taken map[string]bool // files that were read and are there still
}

// Traits implements pipeline.Source.
func (*reading) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{} }

// A call of Read returns at most mostFiles, and looks at the directory after each pause.
const (
	mostFiles = 100
	pause     = 100 * time.Millisecond
)

// Read implements pipeline.Source.
func (r *reading) Read(ctx context.Context) (items []*pipeline.Item, err error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if items, err = r.next(); len(items) > 0 || err != nil {
			return items, err
		}
		if !r.watch {
			return nil, io.EOF
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// next returns the next files.
func (r *reading) next() (items []*pipeline.Item, err error) {
	r.mu.Lock() // Ack removes files
	defer r.mu.Unlock()
	files, err := r.files()
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		if len(items) == mostFiles {
			break
		}
		if r.taken[name] {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			return nil, err
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		it := &pipeline.Item{Partition: r.partition, Ref: name}
		it.Message = semel.Message{Body: body, Time: info.ModTime(), Origin: semel.Origin{Source: string(r.dir), Offset: r.n}}
		r.n++
		items = append(items, it)
	}
	for _, it := range items {
		r.taken[it.Ref.(string)] = true
	}
	return items, nil
}

// Ack implements pipeline.Source.
func (r *reading) Ack(_ context.Context, items []*pipeline.Item) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range items {
		name := it.Ref.(string)
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(r.taken, name)
	}
	return nil
}

// Return implements pipeline.Source. The next run reads the files again.
func (*reading) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Close implements pipeline.Source.
func (r *reading) Close(context.Context) error { return r.lock.Close() }
