// Package fields reads times and versions of messages.
package fields

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

// Reader finds a field by a rule. One goroutine uses it.
type Reader struct {
	reader *key.Reader
	id     []byte
}

// New returns the Reader of a rule.
func New(rule *key.Rule) *Reader { return &Reader{reader: rule.Reader(nil)} }

// Read parses the field of a message.
func Read[T any](r *Reader, m *semel.Message, parse func([]byte) (T, error)) (value T, err error) {
	found, err := r.reader.AppendID(r.id[:0], m)
	r.id = found
	switch {
	case err != nil:
		return value, err
	case len(found) == 0:
		return value, key.ErrMissing
	}
	text, isNumber := bytes.CutPrefix(found, numberID)
	if _, err := strconv.ParseInt(string(text), 10, 64); isNumber && err != nil {
		return value, fmt.Errorf("%s is not a whole number of at most 64 bits", text)
	}
	if text[0] == 0 {
		return value, errors.New("the value is neither a text nor a number")
	}
	return parse(text)
}

// numberID is the prefix of an id that comes from a JSON number.
var numberID = key.AppendNumber(nil, "")
