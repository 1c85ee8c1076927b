// Package auditlog appends lines to an audit log and finds lines that were damaged. A log
// is a file of JSON objects, one a line. It has no hashes: a person who can write the file
// could compute them again, too.
package auditlog

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// Append appends a line to a log and syncs the file. The line is a JSON object with
// at least one member, without a line end. If it is not, the error wraps
// semel.ErrInvalidRequest. If a crash cut the last line of the log short, Append ends
// it first. The caller prevents concurrent calls for one file.
func Append(f vfs.File, line []byte) error {
	if !json.Valid(line) || line[0] != '{' || line[len(line)-1] != '}' || bytes.ContainsAny(line, "\r\n") || len(line) == len("{}") {
		return fmt.Errorf("a line of an audit log must be a JSON object with members, in one line: %w", semel.ErrInvalidRequest)
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	var text []byte
	if size > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if last[0] != '\n' {
			text = append(text, '\n')
		}
	}
	text = append(append(text, line...), '\n')
	if _, err := f.WriteAt(text, size); err != nil {
		return err
	}
	return f.Sync()
}

// tailBlock is how much Tail reads at first. Lines are short.
const tailBlock = 64 << 10

// Tail returns the last lines of a log, the newest last, at most most of them. It reads no more of
// the file than it needs. A last line that is not whole is among them.
func Tail(f vfs.File, most int) (lines [][]byte, err error) {
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	for block := int64(tailBlock); ; block *= 4 {
		from := max(size-block, 0)
		text := make([]byte, size-from)
		if _, err := f.ReadAt(text, from); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if from > 0 { // the first line may have begun before
			if end := bytes.IndexByte(text, '\n'); end >= 0 {
				text = text[end+1:]
			} else {
				text = nil
			}
		}
		lines = nil
		for line := range bytes.Lines(text) {
			lines = append(lines, bytes.TrimSuffix(line, []byte("\n")))
		}
		if len(lines) >= most || from == 0 {
			return lines[max(len(lines)-most, 0):], nil
		}
	}
}

// Finding is a line of a log that needs a person's eye.
type Finding struct {
	Line  int    `json:"line"`
	Found string `json:"found"`
}

// Verify reads a log. It counts the lines, and finds those that are not whole and changes
// whose outcome is missing.
func Verify(r io.Reader) (lines int, findings []Finding, err error) {
	open := map[string]int{} // the lines of changes by their operations
	for reader := bufio.NewReader(r); ; {
		line, err := reader.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return lines, findings, err
		}
		if len(line) == 0 {
			break
		}
		lines++
		var change struct{ Operation, Verb, Outcome string }
		switch {
		case json.Unmarshal(line, &change) != nil || !bytes.HasSuffix(line, []byte("\n")):
			findings = append(findings, Finding{lines, "it is not a whole line: a crash cut it short, or it was changed"})
		case change.Outcome != "":
			delete(open, change.Operation)
		case change.Operation != "":
			open[change.Operation] = lines
		}
	}
	for _, line := range open {
		findings = append(findings, Finding{line, "the outcome of this change is missing: the command was interrupted: semel keys show tells whether the change was made"})
	}
	slices.SortFunc(findings, func(a, b Finding) int { return cmp.Compare(a.Line, b.Line) })
	return lines, findings, nil
}
