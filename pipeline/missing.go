package pipeline

import (
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// argument is one that a constructor cannot do without.
type argument struct {
	name    string
	missing bool
}

// missing returns the error of a constructor that names all arguments which are
// nil, or nil if none is.
func missing(constructor string, of ...argument) error {
	var errs []error
	for _, a := range of {
		if a.missing {
			errs = append(errs, fmt.Errorf("pipeline: %s: the %s is nil: %w", constructor, a.name, semel.ErrInvalidRequest))
		}
	}
	return errors.Join(errs...)
}
