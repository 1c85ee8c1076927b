package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/semel-dev/semel/internal/diagnose"
)

// Place is a position in a file.
type Place struct {
	File         string
	Line, Column int // start at 1; 0 means the whole file
}

// String returns the place in the format of editors and compilers.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// Compare orders places of one file.
func (p Place) Compare(q Place) int {
	return cmp.Or(p.Line-q.Line, p.Column-q.Column)
}

// Problem is one fault in a configuration.
type Problem struct {
	Place Place
	// Text says what is wrong and how to fix it. It contains no secret.
	Text string
}

// String returns the problem as one line.
func (p Problem) String() string { return p.Place.String() + ": " + p.Text }

// Error holds all faults of a configuration, in the order of the file.
type Error struct{ Problems []Problem }

// Error implements error. Each problem is one line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// errorOf returns nil if there are no problems. A problem that was found twice at
// one place, for example through an alias, is reported once.
func errorOf(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Place.Compare(b.Place) })
	return &Error{slices.Compact(problems)}
}

// OneOf lists the allowed values, or suggests the closest one.
func OneOf(got string, allowed []string) string {
	if near, ok := diagnose.Nearest(got, allowed); ok {
		return "did you mean " + near + "?"
	}
	return "write one of " + strings.Join(allowed, ", ")
}
