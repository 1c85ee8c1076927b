package dedup

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// output is one file that lines go to, or standard output.
type output struct {
	flag string // --output, --duplicates or --rejected
	name string // as the user wrote it
	path string // canonical; "" for standard output
	file *os.File
	to   io.Writer
	// prefix is written before the first line of an empty output: the byte
	// order mark. A CSV header is written by begin.
	prefix []byte
	length int64
	// buffer gathers the lines of one block for the side files.
	buffer []byte
}

// findOutputs looks at the files that are to be written, without touching them.
// The first is the output itself.
func findOutputs(opts *Options, p *problems) []*output {
	outputs := []*output{{flag: "--output", name: opts.Output, to: opts.Stdout}}
	if opts.Duplicates != "" {
		outputs = append(outputs, &output{flag: "--duplicates", name: opts.Duplicates})
	}
	if opts.Rejected != "" {
		outputs = append(outputs, &output{flag: "--rejected", name: opts.Rejected})
	}
	for _, o := range outputs {
		if o.name == Stdio && o.flag == "--output" {
			continue
		}
		o.find(p)
	}
	return outputs
}

// find looks where the file is to be.
func (o *output) find(p *problems) {
	info, err := os.Stat(o.name)
	if err == nil && info.IsDir() {
		p.addf("%s %s: this is a directory: name a file", o.flag, o.name)
		return
	}
	if o.path, err = canonicalPath(o.name); err != nil {
		p.addf("%s %s: %s", o.flag, o.name, reason(err))
	}
}

func (o *output) open(opts *Options) error {
	if o.path == "" {
		return nil
	}
	file, err := os.OpenFile(o.path, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	o.file, o.to = file, file
	return nil
}

func (o *output) close() error {
	if o.file == nil {
		return nil
	}
	if err := o.file.Close(); err != nil {
		return fmt.Errorf("%s: %s", o.name, reason(err))
	}
	return nil
}

// write appends whole lines.
func (o *output) write(lines []byte) error {
	if len(lines) == 0 {
		return nil
	}
	if len(o.prefix) > 0 && o.length == 0 {
		if err := o.put(o.prefix); err != nil {
			return err
		}
	}
	return o.put(lines)
}

func (o *output) put(data []byte) error {
	n, err := o.to.Write(data)
	o.length += int64(n)
	switch {
	case err == nil:
		return nil
	case o.file == nil && errors.Is(err, syscall.EPIPE):
		return ErrReaderGone
	case o.file == nil:
		return fmt.Errorf("standard output: %s", reason(err))
	}
	return fmt.Errorf("%s: %s", o.name, reason(err))
}

// flush writes what was gathered.
func (o *output) flush() error {
	err := o.write(o.buffer)
	o.buffer = o.buffer[:0]
	return err
}
