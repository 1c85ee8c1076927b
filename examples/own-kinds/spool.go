package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/pipeline"
)

// spool is a kind of source: each file of a directory is a message, and is deleted when the
// message is settled.
type spool struct{ dir connector.Path }

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

// Open implements connector.Source.
func (s *spool) Open(context.Context, *connector.Env) (pipeline.Source, error) {
	_, err := s.files()
	return &reading{spool: s, partition: pipeline.NewPartition(""), taken: map[string]bool{}}, err
}

// files returns the names of the files.
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
	partition *pipeline.Partition
	taken     map[string]bool // owned by the goroutine that calls Read, as is n
	n         int64           // messages that were read
}

// Traits implements pipeline.Source.
func (*reading) Traits() pipeline.SourceTraits { return pipeline.SourceTraits{} }

// Read implements pipeline.Source. The source ends when no other file is left.
func (r *reading) Read(ctx context.Context) (items []*pipeline.Item, err error) {
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	files, err := r.files()
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		if r.taken[name] {
			continue
		}
		body, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		it := &pipeline.Item{Partition: r.partition, Ref: name}
		it.Message = semel.Message{Body: body, Origin: semel.Origin{Source: string(r.dir), Offset: r.n}}
		r.n++
		r.taken[name], items = true, append(items, it)
	}
	if items == nil {
		return nil, io.EOF
	}
	return items, nil
}

// Ack implements pipeline.Source.
func (*reading) Ack(_ context.Context, items []*pipeline.Item) error {
	for _, it := range items {
		if err := os.Remove(it.Ref.(string)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// Return implements pipeline.Source. The next run reads the files again.
func (*reading) Return(context.Context, []*pipeline.Item, time.Duration) error { return nil }

// Close implements pipeline.Source.
func (*reading) Close(context.Context) error { return nil }
