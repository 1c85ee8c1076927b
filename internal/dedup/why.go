package dedup

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/diagnose"
	"github.com/semel-dev/semel/internal/framing"
	"github.com/semel-dev/semel/internal/jsontext"
	"github.com/semel-dev/semel/internal/table"
	"github.com/semel-dev/semel/key"
)

// places remembers where the kept line of each key stands, for --why. It reads that line again
// when a duplicate comes: from its input, or, if that is a pipe or compressed, from a copy of the
// kept lines in a temporary file. Only the committer uses it.
type places struct {
	inputs  []*input
	extract *extraction
	finder  *key.Finder
	// learning is set during the first pass of KeepLast, in which each line is the last one so far.
	learning bool
	table    table.Compact[[16]byte]
	err      error // the first error

	// copies has lines of inputs that cannot be read again. written is its size, including the
	// bytes that are still in buffer.
	copies  *os.File
	written int64
	buffer  []byte
	// file is the input number opened.
	file   *os.File
	opened int

	line, explained []byte
}

func newPlaces(inputs []*input, x *extraction) *places {
	finder, _ := key.NewFinder(nil, nil) // without paths there is no error
	return &places{inputs: inputs, extract: x, finder: finder}
}

// spot is where a line stands: in which input, and at which line and byte of it. The byte is that
// in the copies if the input cannot be read again.
type spot struct {
	input        int
	line, offset int64
}

// Lines and bytes have six bytes each, which is more than a file has.
func (s spot) pack() (v [16]byte) {
	binary.LittleEndian.PutUint64(v[:8], uint64(s.line)<<16|uint64(s.input)&0xffff)
	binary.LittleEndian.PutUint64(v[8:], uint64(s.offset)<<16|uint64(s.input)>>16)
	return v
}

func unpack(v [16]byte) spot {
	a, b := binary.LittleEndian.Uint64(v[:8]), binary.LittleEndian.Uint64(v[8:])
	return spot{input: int(a&0xffff | b&0xffff<<16), line: int64(a >> 16), offset: int64(b >> 16)}
}

func (s spot) name(inputs []*input) string {
	return inputs[s.input].name + ":" + strconv.FormatInt(s.line, 10)
}

// record is called for each line with a key, and with its fate. It returns the line that the file of
// that fate gets.
func (w *places) record(b *block, keyed int, number int64, start, end int, f fate) []byte {
	line := b.data[start:end]
	here := spot{b.input, number, b.offset + int64(start)}
	if w.err != nil {
		return line
	}
	d := &b.digests[keyed]
	switch {
	case w.learning, b.decisions[keyed] == semel.Fresh:
		if in := w.inputs[b.input]; in.compressed || !in.regular() {
			here.offset = w.copy(line)
		}
		v, _ := w.table.Add(d, here.pack())
		*v = here.pack()
	case f == drop:
		var kept spot
		v, ok := w.table.Find(d)
		if kept = unpack(v); !ok {
			w.err = errInputsChanged
			return line
		}
		var other []byte
		if other, w.err = w.read(kept); w.err != nil {
			return line
		}
		return w.explain(kept, here, other, trimEnd(line))
	}
	return line
}

// failed returns the first error.
func (w *places) failed() error {
	if w == nil {
		return nil
	}
	return w.err
}

// copy adds a line to the copies and returns its position there.
func (w *places) copy(line []byte) (at int64) {
	if w.copies == nil {
		if w.copies, w.err = os.CreateTemp("", "semel-dedup-*"); w.err != nil {
			w.err = fmt.Errorf("--why needs a temporary file for lines that cannot be read again: %w", w.err)
			return 0
		}
		_ = os.Remove(w.copies.Name()) // close does it where an open file cannot be removed
	}
	at = w.written
	w.written += int64(len(line))
	if w.buffer = append(w.buffer, line...); len(w.buffer) >= defaultBlockSize {
		w.flush()
	}
	return at
}

func (w *places) flush() {
	if len(w.buffer) == 0 || w.err != nil {
		return
	}
	if _, err := w.copies.Write(w.buffer); err != nil {
		w.err = &writeError{name: w.copies.Name() + ", the temporary file of --why", err: err}
	}
	w.buffer = w.buffer[:0]
}

// read returns the line at a spot, without its line end.
func (w *places) read(at spot) ([]byte, error) {
	from := w.copies
	if in := w.inputs[at.input]; in.compressed || !in.regular() {
		if w.flush(); w.err != nil {
			return nil, w.err
		}
	} else {
		if w.file == nil || w.opened != at.input {
			if w.file != nil {
				w.file.Close()
			}
			file, err := os.Open(in.path)
			if err != nil {
				return nil, fmt.Errorf("%s: %s", in.name, reason(err))
			}
			w.file, w.opened = file, at.input
		}
		from = w.file
	}
	changed := fmt.Errorf("%s changed while it was read: copy inputs that are still written, and run the same command on the copies", w.inputs[at.input].name)
	scanner := framing.Rows{Comma: w.extract.comma}
	w.line = w.line[:0]
	for size := 4 << 10; ; size *= 2 {
		had := len(w.line)
		w.line = slices.Grow(w.line, size)
		n, err := from.ReadAt(w.line[had:had+size], at.offset+int64(had))
		w.line = w.line[:had+n]
		end := bytes.IndexByte(w.line[had:], '\n') + had + 1
		if w.extract.comma != 0 {
			end, _ = scanner.Next(w.line)
		} else if end == had {
			end = -1
		}
		switch {
		case end > 0:
			return trimEnd(w.line[:end]), nil
		case errors.Is(err, io.EOF) && len(w.line) > 0:
			return trimEnd(append(w.line, '\n')), nil // the last line has no line end
		case err != nil || len(w.line) > MaxLine:
			return nil, changed
		}
	}
}

// explain returns the JSON object of a duplicate.
func (w *places) explain(kept, dropped spot, other, line []byte) []byte {
	isJSON := func(line []byte) bool { return w.extract.format.documents() && w.finder.Find(line) == nil }
	differs := []string{}
	switch {
	case bytes.Equal(other, line):
	case w.extract.comma != 0:
		differs = w.columns(other, line)
	case isJSON(other) && isJSON(line):
		differs = appendDiffering(differs, "", jsontext.Trim(withSpace(other)), jsontext.Trim(withSpace(line)), 0)
	default:
		differs = append(differs, ".")
	}
	out := append(w.explained[:0], `{"kept":`...)
	out = appendJSON(out, kept.name(w.inputs))
	out = appendJSON(append(out, `,"dropped":`...), dropped.name(w.inputs))
	out = appendJSON(append(out, `,"differs":`...), differs)
	switch {
	case isJSON(line):
		out = append(append(out, `,"line":`...), line...)
	case utf8.Valid(line):
		out = appendJSON(append(out, `,"line":`...), string(line))
	default:
		out = appendJSON(append(out, `,"line_base64":`...), line)
	}
	w.explained = append(out, "}\n"...)
	return w.explained
}

// appendJSON appends a text, a list of texts, or bytes as base64.
func appendJSON(dst []byte, value any) []byte {
	var b bytes.Buffer
	to := json.NewEncoder(&b)
	to.SetEscapeHTML(false)
	_ = to.Encode(value) // never fails for these types
	return append(dst, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...)
}

// withSpace returns a document that package jsontext can read to its end.
func withSpace(line []byte) []byte { return append(line[:len(line):len(line)], '\n') }

// columns returns the columns in which two records differ.
func (w *places) columns(a, b []byte) []string {
	x, _ := framing.AppendFields(nil, nil, a, w.extract.comma, allFields)
	y, _ := framing.AppendFields(nil, nil, b, w.extract.comma, allFields)
	list := []string{}
	for i := range max(len(x), len(y)) {
		if i < len(x) && i < len(y) && bytes.Equal(x[i], y[i]) {
			continue
		}
		name := "." + strconv.Itoa(i+1)
		if i < len(w.extract.names) {
			name = diagnose.PathOf(w.extract.names[i])
		}
		list = append(list, name)
	}
	return list
}

// deepest is how deep two documents are compared. What differs below is named by its place there.
const deepest = 32

// appendDiffering appends the paths at which two valid documents differ. Arrays are compared as a
// whole.
func appendDiffering(list []string, path string, a, b []byte, depth int) []string {
	switch {
	case bytes.Equal(a, b):
		return list
	case a[0] != '{' || b[0] != '{' || depth == deepest:
		if same(a, b) {
			return list
		}
		if path == "" {
			path = "."
		}
		return append(list, path)
	}
	x, y := members(a), members(b)
	names := maps.Clone(x)
	maps.Copy(names, y)
	for _, id := range slices.Sorted(maps.Keys(names)) {
		var text string
		_ = json.Unmarshal(names[id].name, &text) // the name is valid
		step := diagnose.PathOf(text)
		if path != "" && strings.HasPrefix(step, ".[") {
			step = step[1:]
		}
		if x[id].value == nil || y[id].value == nil {
			list = append(list, path+step)
			continue
		}
		list = appendDiffering(list, path+step, x[id].value, y[id].value, depth+1)
	}
	return list
}

// member is a member of an object, as it stands there.
type member struct{ name, value []byte }

// members returns the members of an object by their names without escapes. Of members with the
// same name the last one counts.
func members(object []byte) map[string]member {
	all := make(map[string]member)
	for name, value, at := jsontext.Next(object, 0); value != nil; name, value, at = jsontext.Next(object, at) {
		text := string(name[1 : len(name)-1])
		if strings.ContainsRune(text, '\\') {
			_ = json.Unmarshal(name, &text)                 // the name is valid
			if strings.ContainsRune(text, utf8.RuneError) { // half of a surrogate pair has no text
				id, _ := key.AppendContent(nil, name)
				text = string(id)
			}
		}
		all[text] = member{name, value}
	}
	return all
}

// same reports whether two values have the same content.
func same(a, b []byte) bool {
	x, err := key.AppendContent(nil, a)
	y, err2 := key.AppendContent(nil, b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// close removes the temporary file.
func (w *places) close() error {
	if w == nil {
		return nil
	}
	if w.file != nil {
		w.file.Close()
	}
	if w.copies == nil {
		return nil
	}
	err := w.copies.Close()
	_ = os.Remove(w.copies.Name()) // it is gone already where an open file can be removed
	return err
}
