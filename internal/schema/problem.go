package schema

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Place is where something stands in a file.
type Place struct {
	File         string
	Line, Column int // from 1; 0 if the whole file is meant
}

// String returns the place as editors and compilers write it.
func (p Place) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d:%d", p.File, p.Line, p.Column)
}

// compare orders places of one file.
func (p Place) Compare(q Place) int {
	return cmp.Or(p.Line-q.Line, p.Column-q.Column)
}

// Problem is one thing that is wrong with a configuration.
type Problem struct {
	Place Place
	// Text says what is wrong and what to do. It holds no secret.
	Text string
}

// String returns the problem as one line.
func (p Problem) String() string { return p.Place.String() + ": " + p.Text }

// Error is everything that is wrong with a configuration, in the order of the
// file.
type Error struct{ Problems []Problem }

// Error implements error. Each problem is a line.
func (e *Error) Error() string {
	lines := make([]string, len(e.Problems))
	for i, p := range e.Problems {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// errorOf returns nil if there are no problems. What is found wrong in one
// place by two ways, as over an alias, is reported once.
func errorOf(problems []Problem) error {
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b Problem) int { return a.Place.Compare(b.Place) })
	return &Error{slices.Compact(problems)}
}
