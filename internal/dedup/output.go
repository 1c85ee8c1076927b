package dedup

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
)

// output is one file that lines go to, or standard output.
type output struct {
	flag string // --output, --duplicates or --rejected
	name string // as the user wrote it
	// path is canonical; "" for what has no content to come back to: standard
	// output, devices, pipes.
	path string
	file *os.File
	to   io.Writer

	// Of a file, where this run goes on, whether that is where an earlier run
	// ended it, and whether a line end is missing there.
	base    int64
	intact  bool
	unended bool

	// renewed: what it held is given up. Of the lines that the store wrote,
	// those up to lost may be there no more.
	renewed bool
	lost    int64

	length int64
	lines  int64  // that were written for the store, up to length
	crc    uint32 // of the content up to length, if tracked
	track  bool
	// mark is the byte order mark, written before the first line.
	mark []byte
	// buffer gathers the lines of one block for the side files.
	buffer []byte
}

// findOutputs looks at the files that are to be written, without touching them.
// The first is the output itself.
func findOutputs(opts *Options, p *problems) []*output {
	outputs := []*output{{flag: "--output", name: opts.Output}}
	if opts.Duplicates != "" {
		outputs = append(outputs, &output{flag: "--duplicates", name: opts.Duplicates})
	}
	if opts.Rejected != "" {
		outputs = append(outputs, &output{flag: "--rejected", name: opts.Rejected})
	}
	for _, o := range outputs {
		switch {
		case o.name == Stdio && o.flag == "--output":
			o.name, o.to = "standard output", opts.Stdout
		case o.name == Stdio:
			p.addf("%s -: standard output is for the fresh lines: name a file", o.flag)
		default:
			o.find(p)
		}
	}
	return outputs
}

// find looks where the file is to be.
func (o *output) find(p *problems) {
	info, err := os.Stat(o.name)
	switch {
	case err == nil && info.IsDir():
		p.addf("%s %s: this is a directory: name a file", o.flag, o.name)
	case err == nil && !info.Mode().IsRegular():
		// Neither position nor content to come back to.
	default:
		if o.path, err = canonicalPath(o.name); err != nil {
			p.addf("%s %s: its directory: %s", o.flag, o.name, reason(err))
		}
	}
}

// open opens the file, or makes it, and changes nothing in it.
func (o *output) open() error {
	if o.to != nil {
		return nil
	}
	var err error
	if o.path == "" {
		o.file, err = os.OpenFile(o.name, os.O_WRONLY, 0)
	} else {
		o.file, err = os.OpenFile(o.path, os.O_RDWR|os.O_CREATE, 0o666)
	}
	if err != nil {
		return o.explain(err)
	}
	o.to = o.file
	return nil
}

// syncDir makes a file that is new findable after a loss of power.
func (o *output) syncDir() error {
	if o.path == "" {
		return nil
	}
	dir, err := os.Open(filepath.Dir(o.path))
	if err != nil {
		return o.explain(err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return o.explain(err)
	}
	return nil
}

// begin cuts the file to its base and goes on there: of an empty one with the
// header, of one that someone else wrote with the line end it lacks.
func (o *output) begin(header []byte) error {
	o.length = o.base
	if o.path != "" {
		if err := o.file.Truncate(o.base); err != nil {
			return o.explain(err)
		}
		if _, err := o.file.Seek(o.base, io.SeekStart); err != nil {
			return o.explain(err)
		}
	}
	if o.unended {
		header = []byte{'\n'}
	} else if o.base > 0 {
		return nil
	}
	return o.put(header)
}

// write appends whole lines.
func (o *output) write(lines []byte) error {
	if len(lines) > 0 && len(o.mark) > 0 && o.length == 0 {
		if err := o.put(o.mark); err != nil {
			return err
		}
	}
	return o.put(lines)
}

func (o *output) put(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	n, err := o.to.Write(data)
	o.length += int64(n)
	if o.track {
		o.crc = crc32.Update(o.crc, castagnoli, data[:n])
	}
	return o.explain(err)
}

// flush writes what was gathered.
func (o *output) flush() error {
	if len(o.buffer) == 0 {
		return nil
	}
	err := o.write(o.buffer)
	o.buffer = o.buffer[:0]
	return err
}

// trim takes a last line that was not written whole out of a file that nobody
// will cut later.
func (o *output) trim(comma byte) {
	if o.path == "" || o.length == o.base {
		return
	}
	const most = 1 << 20
	tail := make([]byte, min(o.length-o.base, most))
	from := o.length - int64(len(tail))
	if _, err := o.file.ReadAt(tail, from); err != nil {
		return // the error that led here is told
	}
	cut := cutter{comma: comma}
	if end := cut.end(tail); end > 0 {
		_ = o.file.Truncate(from + int64(end))
	}
}

func (o *output) close() error {
	if o.file == nil {
		return nil
	}
	return o.explain(o.file.Close())
}

// explain names the file in an error of writing it.
func (o *output) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case o.file == nil && o.path == "":
		return fmt.Errorf("%s: %w", o.name, err)
	}
	return &writeError{name: o.name, err: err}
}

// writeError is an error of a file, with its name.
type writeError struct {
	name string
	err  error
}

// Error implements error.
func (e *writeError) Error() string { return e.name + ": " + reason(e.err) }

// Unwrap returns the cause.
func (e *writeError) Unwrap() error { return e.err }

// closeOutputs closes all, and returns what went wrong.
func closeOutputs(outputs []*output) error {
	var errs []error
	for _, o := range outputs {
		errs = append(errs, o.close())
	}
	return errors.Join(errs...)
}
