package file_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel/broker/brokertest"
	"github.com/semel-dev/semel/broker/file"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/logstore"
)

// appendTo appends to a file as a program that logs does.
func appendTo(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(data)
	return errors.Join(err, file.Close())
}

func TestSourcePassesTheSuite(t *testing.T) {
	t.Parallel()
	for name, rotate := range map[string]bool{"growing files": false, "rotated files": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			brokertest.RunSource(t, brokertest.SourceHarness{Unordered: rotate, Alone: true, NoTime: true, NoHeaders: true, New: func(tb testing.TB) brokertest.SourcePlace {
				return followed(tb, rotate)
			}})
		})
	}
}

// followed is a directory with a file for each partition, which grow in pieces that
// are not whole lines. With rotate they are renamed every few lines.
func followed(tb testing.TB, rotate bool) brokertest.SourcePlace {
	dir := tb.TempDir()
	rotations := 0
	return brokertest.SourcePlace{
		Partitions: 3,
		Produce: func(_ context.Context, list []brokertest.Numbered) error {
			for _, m := range list {
				path := filepath.Join(dir, fmt.Sprintf("partition-%d.log", m.Partition))
				half := len(m.Body) / 2
				if err := errors.Join(appendTo(path, m.Body[:half]), appendTo(path, append(bytes.Clone(m.Body[half:]), '\n'))); err != nil {
					return err
				}
				if rotations++; rotate && rotations%40 == 0 {
					if err := os.Rename(path, fmt.Sprintf("%s.%d", path, rotations)); err != nil {
						return err
					}
				}
			}
			return nil
		},
		Again: func(context.Context) error {
			names, err := filepath.Glob(filepath.Join(dir, "partition-*.log*"))
			for _, name := range names {
				err = errors.Join(err, os.Remove(name))
			}
			rotations = 0
			return err
		},
		Open: func(context.Context) (pipeline.Source, error) {
			return file.OpenSource([]string{filepath.Join(dir, "partition-*.log*")}, &file.SourceOptions{
				State: filepath.Join(dir, "state", "positions"), Follow: true, Poll: 2 * time.Millisecond, SaveEvery: 5 * time.Millisecond,
			})
		},
	}
}

// TestFileRenamedWhenItIsFoundIsRead renames a file between the moment it is found and
// its first read. It is read under its new name.
func TestFileRenamedWhenItIsFoundIsRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, err := file.OpenSource([]string{filepath.Join(dir, "log*")}, &file.SourceOptions{Follow: true, Poll: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	defer source.Close(context.Background())
	const files = 400
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() {
		path := filepath.Join(dir, "log")
		for i := range files {
			if err := errors.Join(appendTo(path, fmt.Appendf(nil, "%d\n", i)), os.Rename(path, fmt.Sprintf("%s.%d", path, i))); err != nil {
				t.Error(err)
				return
			}
			for written := time.Now(); time.Since(written) < 200*time.Microsecond; { // so that looks come in between
				runtime.Gosched()
			}
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := map[string]int{}
	for len(seen) < files {
		items, err := source.Read(ctx)
		if err != nil {
			t.Fatalf("after %d files: %v", len(seen), err)
		}
		for _, it := range items {
			if seen[string(it.Message.Body)]++; seen[string(it.Message.Body)] > 1 {
				t.Errorf("%s came again", it.Message.Body)
			}
		}
	}
}

func TestSinkPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{NoHeaders: true, New: func(tb testing.TB) brokertest.SinkTarget {
		path := filepath.Join(tb.TempDir(), "out.jsonl")
		return brokertest.SinkTarget{
			Sink:    func(context.Context) (pipeline.Sink, error) { return file.OpenSink(path, nil) },
			Refused: []byte(noLine),
			Effects: func(context.Context) ([]brokertest.Effect, error) { return effects(linesOf(path)) },
		}
	}})
}

func TestStreamPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{NoHeaders: true, New: func(testing.TB) brokertest.SinkTarget {
		var buffer bytes.Buffer
		return brokertest.SinkTarget{
			Sink:    func(context.Context) (pipeline.Sink, error) { return file.NewStream(&buffer), nil },
			Refused: []byte(noLine),
			Effects: func(context.Context) ([]brokertest.Effect, error) { return effects(split(buffer.Bytes()), nil) },
		}
	}})
}

// noLine is a body that cannot be a line of a file.
const noLine = "no\nline"

func effects(lines [][]byte, err error) (list []brokertest.Effect, _ error) {
	for _, line := range lines {
		list = append(list, brokertest.Effect{Body: line})
	}
	return list, err
}

func linesOf(path string) ([][]byte, error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return split(data), err
}

func split(data []byte) (lines [][]byte) {
	for line := range bytes.Lines(data) {
		lines = append(lines, bytes.TrimSuffix(line, []byte{'\n'}))
	}
	return lines
}

func TestSessionPassesTheSuite(t *testing.T) {
	t.Parallel()
	brokertest.RunSink(t, brokertest.SinkHarness{NoHeaders: true, New: func(tb testing.TB) brokertest.SinkTarget {
		dir := tb.TempDir()
		store, err := logstore.Open(filepath.Join(dir, "keys"), nil)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() {
			if err := store.Close(); err != nil {
				tb.Error(err)
			}
		})
		path := filepath.Join(dir, "out.jsonl")
		return brokertest.SinkTarget{
			Session: func(ctx context.Context) (pipeline.Session, error) {
				return file.OpenSession(ctx, store, path, file.InParts(file.SessionOptions{}, 3))
			},
			Refused: []byte(noLine),
			Effects: func(context.Context) ([]brokertest.Effect, error) { return effects(linesOf(path)) },
		}
	}})
}
