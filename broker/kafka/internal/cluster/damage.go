package cluster

import (
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

// damage is the error of topics or offsets that lost what a pipeline needs, or got what it
// did not write.
type damage struct{ error }

// Unwrap returns the error, and semel.ErrCorrupt, whose text would say no more.
func (d damage) Unwrap() []error { return []error{d.error, semel.ErrCorrupt} }

// Damaged returns an error that wraps semel.ErrCorrupt. A person must repair the topics, and
// no configuration is the cause.
func Damaged(format string, args ...any) error { return damage{fmt.Errorf(format, args...)} }

// IsFinal reports whether to try again does not help: the options are wrong, or topics are
// damaged.
func IsFinal(err error) bool {
	return errors.Is(err, semel.ErrInvalidRequest) || errors.Is(err, semel.ErrCorrupt)
}
