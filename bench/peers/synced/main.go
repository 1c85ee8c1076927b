// Command synced keeps ids across runs in a storage engine. It reads a batch of lines,
// searches their bytes for the ids, claims the ids with one synced commit, and writes the
// new lines.
//
// It does not sync the output. A crash between commit and write loses lines, and a crash
// within a write leaves a torn line. To prevent that would take more time than is measured
// here.
//
//	synced ENGINE DIR IN OUT
package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/semel-dev/semel/bench/internal/engine"
	"github.com/semel-dev/semel/bench/internal/lines"
)

// batchLines is the number of lines of a commit.
const batchLines = 1024

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: synced ENGINE DIR IN OUT")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "synced:", err)
		os.Exit(1)
	}
}

func run(name, dir, inName, outName string) (err error) {
	in, err := os.Open(inName)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(outName)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	e, err := engine.Open(name, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()

	r := bufio.NewReaderSize(in, 1<<20)
	w := bufio.NewWriterSize(out, 1<<20)
	var b batch
	for more := true; more; {
		if more, err = b.read(r); err != nil {
			return err
		}
		if err := e.Claim(b.ids, b.fresh[:len(b.ids)]); err != nil {
			return err
		}
		for i, line := range b.lines {
			if b.fresh[i] {
				if _, err := w.Write(line); err != nil {
					return err
				}
			}
		}
	}
	return w.Flush()
}

// batch has lines and their ids.
type batch struct {
	buffers    [batchLines][]byte
	lines, ids [][]byte
	fresh      [batchLines]bool
}

// read reads up to batchLines lines; more is false at the end of the input.
func (b *batch) read(r *bufio.Reader) (more bool, err error) {
	b.lines, b.ids = b.lines[:0], b.ids[:0]
	for i := range b.buffers {
		line, err := r.ReadSlice('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if len(line) > 0 {
			// The reader reuses its buffer before the batch is written.
			b.buffers[i] = append(b.buffers[i][:0], line...)
			id, ok := lines.EventID(b.buffers[i])
			if !ok {
				return false, fmt.Errorf("no event_id in %q", line)
			}
			b.lines, b.ids = append(b.lines, b.buffers[i]), append(b.ids, id)
		}
		if err != nil {
			return false, nil
		}
	}
	return true, nil
}
