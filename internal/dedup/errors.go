package dedup

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"

	"github.com/semel-dev/semel/key"
)

// LineError says at which line of which input a run stopped.
type LineError struct {
	// Input is the name of the input as the user wrote it.
	Input string
	// Line is the number of the line, from 1.
	Line int64
	Err  error
}

// Error implements error.
func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.Input, e.Line, e.Err) }

// Unwrap returns the cause.
func (e *LineError) Unwrap() error { return e.Err }

// missingError says why a line has no key and how to handle such lines. A hint
// says what may be wrong with the command or the input. If it is sure, the line
// needs no handling.
type missingError struct {
	err  error
	hint string
	sure bool
}

// Error implements error.
func (e *missingError) Error() string {
	text := describe(e.err)
	if e.hint != "" {
		text += ": " + e.hint
	}
	if e.sure {
		return text
	}
	return text + ": fix the line, or choose --on-missing reject, pass or hash"
}

// Unwrap returns the cause.
func (e *missingError) Unwrap() error { return e.err }

// describe says in the user's terms why a line has no key.
func describe(err error) string {
	var (
		missing   *key.MissingError
		notScalar *key.NotScalarError
		syntax    *key.SyntaxError
		twice     *key.DuplicateNameError
	)
	switch {
	case errors.As(err, &missing):
		return fmt.Sprintf("%s is %s", missing.Rule, missing.Reason)
	case errors.As(err, &notScalar):
		return fmt.Sprintf("%s is an %s, which is not an id (use hash(%s) for its content)", notScalar.Rule, notScalar.Kind, notScalar.Rule)
	case errors.As(err, &syntax):
		return fmt.Sprintf("not valid JSON: %s at byte %d of the line", syntax.Problem, syntax.Offset+1)
	case errors.As(err, &twice):
		return fmt.Sprintf("the content is ambiguous: an object has two members %q", twice.Name)
	}
	return err.Error()
}

// reason drops the name of the operation and of the file from a file error,
// because the message already names the file.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		err = path.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "there is no such file"
	case errors.Is(err, fs.ErrPermission):
		return "no permission"
	case errors.Is(err, syscall.EFBIG):
		return "the file is too large for its file system or for ulimit -f: raise the limit, or write to another file system, and run the same command again"
	case errors.Is(err, syscall.ENOSPC):
		return "no space left on the disk: make room and run the same command again"
	}
	return err.Error()
}
