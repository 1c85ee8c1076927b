package dedup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// input is one input, as it was before the run touched anything.
type input struct {
	// name is the name that the user wrote, or "standard input".
	name string
	path string // absolute, and "" for standard input
	info os.FileInfo
	// kept is a stream that was opened for examination and cannot be opened
	// again, such as standard input or a pipe.
	kept   *stream
	format Format
	// compressed is set if a position in the content is no position in the file: the file is
	// compressed, or its documents become lines.
	compressed bool
	found      time.Time // time of the call that returned info
	mark       []byte    // the byte order mark, if any
	header     []byte    // the CSV header with its line end
	// lead has the bytes that were read before the first line.
	lead []byte
	// start is the position of the first line, in decompressed bytes.
	start int64
	// past is the part that finished runs read and that this run does not read again, or
	// nil. skipped is set if that is all of the input. Its facts left a doubt if doubtful
	// is set.
	past              *readState
	skipped, doubtful bool
}

// position is a place between two lines of the inputs.
type position struct {
	Input  int   `json:"input"`
	Offset int64 `json:"offset"`
	// Line is the number of lines of this input before the position.
	Line int64 `json:"line"`
	// Ended means that the line before the position, which begins at Last, was taken as
	// complete because the input ended. That line must not grow. It had no line end, or
	// if Open is set, it is a CSV record with an open quote.
	Ended bool  `json:"ended,omitempty"`
	Open  bool  `json:"open,omitempty"`
	Last  int64 `json:"last,omitempty"`
}

// findInput examines one input. It closes files again.
func findInput(ctx context.Context, name string, stdin io.Reader, asked Format) (*input, error) {
	in := &input{name: name}
	var raw io.Reader = stdin
	if name == Stdio {
		in.name = "standard input"
	} else {
		file, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %s", name, reason(err))
		}
		raw = file
		in.found = time.Now()
		if in.info, err = file.Stat(); err != nil {
			file.Close()
			return nil, fmt.Errorf("%s: %s", name, reason(err))
		}
		if in.info.IsDir() {
			file.Close()
			return nil, fmt.Errorf("%s: this is a directory; name the files in it", name)
		}
		if in.path, err = canonicalPath(name); err != nil {
			file.Close()
			return nil, fmt.Errorf("%s: %s", name, reason(err))
		}
	}
	s, err := openStream(ctx, raw, name != Stdio)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", in.name, reason(err))
	}
	if err := in.look(s, asked); err != nil {
		s.close()
		return nil, fmt.Errorf("%s: %s", in.name, reason(err))
	}
	if in.regular() {
		s.close()
	} else {
		in.kept = s
	}
	return in, nil
}

// look finds the format, from the name or the first byte, and the byte order
// mark.
func (in *input) look(s *stream, asked Format) error {
	in.compressed = s.compression != "" || asked == JSON
	if asked != Text {
		name := in.name
		if in.info == nil {
			name = Stdio
		}
		if err := s.checkForeign(name); err != nil {
			return err
		}
	}
	if asked == JSON {
		if err := s.checkSeparated(); err != nil {
			return err
		}
		in.format = JSON
		s.divide()
		return nil
	}
	if err := s.checkLineEnds(in.name); err != nil {
		return err
	}
	if beginsWith(s.plain, utf8Mark) {
		in.mark = utf8Mark
		if _, err := s.plain.Discard(len(utf8Mark)); err != nil {
			return err
		}
	}
	in.lead = bytes.Clone(in.mark)
	in.start = int64(len(in.lead))
	in.format = asked
	if in.format == Auto {
		in.format = formatOfName(in.name)
	}
	if in.format == Auto {
		// If the first read fails, a later read reports the error.
		if head, _ := s.plain.Peek(1); len(head) > 0 && (head[0] == '{' || head[0] == '[') {
			in.format = JSONL
		}
	}
	return nil
}

// formatOfName returns the format for the extension of a name, without the
// extension of a compression.
func formatOfName(name string) Format {
	_, name = compressionOf(strings.ToLower(name))
	switch filepath.Ext(name) {
	case ".jsonl", ".ndjson", ".json", ".jsonlines":
		return JSONL
	case ".csv":
		return CSV
	case ".tsv", ".tab":
		return TSV
	case ".txt":
		return Text
	}
	return Auto
}

// regular reports whether the input is a regular file, which can be read from
// any position.
func (in *input) regular() bool { return in.info != nil && in.info.Mode().IsRegular() }

// stream opens the input at an offset.
func (in *input) stream(ctx context.Context, offset int64) (*stream, error) {
	if in.kept != nil {
		in.kept.until(ctx)
		return in.kept, nil // only the mark and the header were read
	}
	file, err := os.Open(in.path)
	if err != nil {
		return nil, errors.New(reason(err))
	}
	s, err := openStream(ctx, file, true)
	if err != nil {
		return nil, err
	}
	if in.format == JSON {
		s.divide()
	}
	if err := s.skip(ctx, offset, nil); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// errReplaced is an input that is no longer what the run relies on.
var errReplaced = errors.New("the file was replaced or changed after this run began: run the same command again")

// streamBehind opens the input at an offset. If behind is not nil, it makes sure that the
// content before the offset is still the same. The file may have been replaced since it
// was compared, as by the rotation of logs.
func (in *input) streamBehind(ctx context.Context, offset int64, behind *fingerprint) (*stream, error) {
	if behind == nil {
		return in.stream(ctx, offset)
	}
	s, err := in.stream(ctx, 0)
	if err != nil {
		return nil, err
	}
	var print fingerprint
	check := print.add
	if now, err := s.file.Stat(); err == nil && in.onlyGrew(now) {
		check = nil
	}
	err = s.skip(ctx, offset, check)
	if check != nil && ctx.Err() == nil && !print.same(behind) {
		err = errReplaced
	}
	if err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// onlyGrew reports whether a file is the input, and did not change or only grew.
func (in *input) onlyGrew(now os.FileInfo) bool {
	grown := now.Size() - in.info.Size()
	return os.SameFile(now, in.info) && (grown > 0 || grown == 0 && now.ModTime().Equal(in.info.ModTime()))
}

// damage reads compressed data to its end and returns its error, or nil.
func (in *input) damage() error {
	s, err := in.stream(context.Background(), 0)
	if err != nil {
		return err
	}
	defer s.close()
	if s.compression == "" {
		return nil
	}
	_, err = io.Copy(io.Discard, s.plain)
	return s.explain(err)
}

// canonicalPath returns one name for a file that may not exist yet. The name is
// the same before and after the file is created, also through a link.
func canonicalPath(name string) (string, error) {
	path, err := filepath.Abs(name)
	if err != nil {
		return "", err
	}
	const mostLinks = 40 // as in the kernel
	for range mostLinks {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			return real, nil
		}
		target, err := os.Readlink(path)
		if err != nil {
			break
		}
		if !filepath.IsAbs(target) {
			target = filepath.Join(filepath.Dir(path), target)
		}
		path = target
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(path))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(path)), nil
}
