// Package fields reads fields of messages: times, versions and group keys.
package fields

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/stream"
)

// Reader finds a field by a rule. One goroutine uses it.
type Reader struct {
	reader *key.Reader
	id     []byte
}

// New returns the Reader of a rule.
func New(rule *key.Rule) *Reader { return &Reader{reader: rule.Reader(nil)} }

// Version parses the version of a message. A number is whole.
func (r *Reader) Version(m *semel.Message, parse func([]byte) ([]byte, error)) ([]byte, error) {
	text, isNumber, err := r.find(m)
	if err != nil {
		return nil, err
	}
	if _, err := strconv.ParseInt(string(text), 10, 64); isNumber && err != nil {
		return nil, fmt.Errorf("%s is not a whole number of at most 64 bits", text)
	}
	return parse(text)
}

// Time parses the time of a message, in milliseconds since 1970.
func (r *Reader) Time(m *semel.Message, unit stream.TimeUnit) (int64, error) {
	text, _, err := r.find(m)
	if err != nil {
		return 0, err
	}
	t, err := unit.Parse(text)
	return t.UnixMilli(), err
}

// find returns the text of the field, and whether it is a JSON number.
func (r *Reader) find(m *semel.Message) (text []byte, isNumber bool, err error) {
	found, err := r.reader.AppendID(r.id[:0], m)
	r.id = found
	switch {
	case err != nil:
		return nil, false, err
	case len(found) == 0:
		return nil, false, key.ErrMissing
	}
	if text, isNumber = bytes.CutPrefix(found, numberID); text[0] == 0 {
		return nil, false, errors.New("the value is neither a text nor a number")
	}
	return text, isNumber, nil
}

// numberID is the prefix of an id that comes from a JSON number.
var numberID = key.AppendNumber(nil, "")
