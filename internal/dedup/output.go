package dedup

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// output is one file for lines, or standard output.
type output struct {
	flag string // --output, --duplicates or --rejected
	name string // as the user wrote it
	// path is canonical. It is "" for standard output, devices and pipes, which
	// have no content to return to.
	path string
	file *os.File
	to   io.Writer
	// compression is that of the file's name. frames compress what is written,
	// or are nil.
	compression compression
	frames      *framer

	// base is the position in the file where this run continues, and content
	// the size of the content before it, decompressed. The other two fields say
	// whether an earlier run ended there, and whether a line end is missing
	// there.
	base    int64
	content int64
	intact  bool
	unended bool

	// lost is how many of the lines that the store wrote may be gone, and gone says why.
	lost int64
	gone string

	length int64
	sealed int64  // the end of the last whole frame
	added  int64  // content that this run wrote, before it was compressed
	lines  int64  // lines that were written for the store, up to length
	crc    uint32 // of the content up to length, if tracked
	track  bool
	// explains is set if the file has JSON lines that say why, whatever the format is.
	explains bool
	// mark is the byte order mark, written before the first line.
	mark []byte
	// buffer collects the lines of one block for a file other than the output.
	buffer []byte
}

// findOutputs examines the output files without touching them. The first one is
// the output itself.
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
			p.addf("%s -: standard output is for the fresh lines; name a file", o.flag)
		default:
			o.compression, _ = compressionOf(o.name)
			o.find(p)
		}
	}
	return outputs
}

// find examines the place of the file.
func (o *output) find(p *problems) {
	info, err := os.Stat(o.name)
	switch {
	case err == nil && info.IsDir():
		p.addf("%s %s: this is a directory; name a file", o.flag, o.name)
	case err == nil && !info.Mode().IsRegular():
		// It has neither a position nor content to return to.
	case slices.Contains([]string{".bz2", ".xz"}, strings.ToLower(filepath.Ext(o.name))):
		p.addf("%s %s: semel does not write this compression: write .gz or .zst", o.flag, o.name)
	default:
		dir := filepath.Dir(o.name)
		_, missing := os.Stat(dir)
		if o.path, err = canonicalPath(o.name); err != nil && errors.Is(missing, fs.ErrNotExist) {
			p.addf("%s %s: there is no directory %s: mkdir -p %s", o.flag, o.name, dir, shellWord(dir))
		} else if err != nil {
			p.addf("%s %s: its directory: %s", o.flag, o.name, reason(err))
		}
	}
}

// open opens or creates the file, and changes nothing in it.
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
	if o.compression != "" {
		if o.frames, err = newFramer(o.compression, rawWriter{o}); err != nil {
			return fmt.Errorf("%s: %w", o.name, err)
		}
	}
	return nil
}

// syncDir makes the directory entry of a new file durable.
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

// begin cuts the file to its base and continues there. It writes the header to
// an empty file, and a missing line end to a file that another program wrote.
func (o *output) begin(header []byte) error {
	o.length, o.sealed = o.base, o.base
	if o.frames == nil {
		o.content = o.base
	}
	if o.path != "" {
		if err := o.truncate(); err != nil {
			return o.explain(err)
		}
		if _, err := o.file.Seek(o.base, io.SeekStart); err != nil {
			return o.explain(err)
		}
	}
	if o.unended {
		header = []byte{'\n'}
	} else if o.content > 0 {
		return nil
	}
	return o.put(header)
}

// truncate cuts the file to its base. It leaves alone a file of that length, because ext4 writes
// a file that was cut to nothing to the disk when the file is closed, and close waits.
func (o *output) truncate() error {
	info, err := o.file.Stat()
	if err != nil || info.Size() == o.base {
		return err
	}
	return o.file.Truncate(o.base)
}

// write appends whole lines.
func (o *output) write(lines []byte) error {
	if len(lines) > 0 && len(o.mark) > 0 && o.content+o.added == 0 {
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
	o.added += int64(len(data))
	if o.frames == nil {
		_, err := o.writeRaw(data)
		return o.explain(err)
	}
	if err := o.frames.write(data); err != nil {
		return o.explain(err)
	}
	if o.frames.size >= frameBytes {
		return o.seal()
	}
	return nil
}

// writeRaw writes bytes as they are.
func (o *output) writeRaw(data []byte) (int, error) {
	n, err := o.to.Write(data)
	o.length += int64(n)
	if o.track {
		o.crc = crc32.Update(o.crc, castagnoli, data[:n])
	}
	return n, err
}

// rawWriter takes the compressed bytes of an output.
type rawWriter struct{ *output }

// Write implements io.Writer.
func (w rawWriter) Write(data []byte) (int, error) { return w.writeRaw(data) }

// seal ends a compressed output at a place where it can be cut. Otherwise it
// does nothing.
func (o *output) seal() error {
	if o.frames == nil {
		return nil
	}
	err := o.frames.seal()
	if err == nil {
		o.sealed = o.length
	}
	return o.explain(err)
}

// finish seals the output. It leaves at least an empty frame, because
// decompressors refuse an empty file.
func (o *output) finish() error {
	if o.frames != nil && o.length == 0 {
		o.frames.open()
	}
	return o.seal()
}

// flush writes the collected lines.
func (o *output) flush() error {
	if len(o.buffer) == 0 {
		return nil
	}
	err := o.write(o.buffer)
	o.buffer = o.buffer[:0]
	return err
}

// trim removes an incomplete last line from a file that no later run will cut.
func (o *output) trim(comma byte) {
	if o.path == "" || o.length == o.base {
		return
	}
	if o.frames != nil {
		_ = o.file.Truncate(o.sealed)
		return
	}
	const most = 1 << 20
	tail := make([]byte, min(o.length-o.base, most))
	from := o.length - int64(len(tail))
	if _, err := o.file.ReadAt(tail, from); err != nil {
		return // the error that caused this is reported
	}
	if o.explains {
		comma = 0
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

// explain adds the name of the file to a write error.
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

// closeOutputs closes all outputs and returns their errors.
func closeOutputs(outputs []*output) error {
	var errs []error
	for _, o := range outputs {
		errs = append(errs, o.close())
	}
	return errors.Join(errs...)
}
