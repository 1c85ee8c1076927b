// Package invalid collects what is wrong with options, so that a constructor reports
// all of it in one error.
package invalid

import (
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// List is what is wrong with the options of one call. Its methods are for one
// goroutine.
type List struct {
	prefix string
	errs   []error
}

// In returns an empty list. The prefix comes before each entry and says where the
// option is: "pipeline: Options.".
func In(prefix string) *List { return &List{prefix: prefix} }

// Add adds an entry, which begins with the name of the option. It wraps
// semel.ErrInvalidRequest.
func (l *List) Add(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(l.prefix+format+": %w", append(args, semel.ErrInvalidRequest)...))
}

// Join adds errors as they are. A nil error adds nothing.
func (l *List) Join(errs ...error) { l.errs = append(l.errs, errs...) }

// Err returns all entries in one error, or nil if none exists.
func (l *List) Err() error { return errors.Join(l.errs...) }
