// Package fields reads fields of messages: times, versions and group keys.
package fields

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
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

// GroupKeys finds group keys by a rule.
type GroupKeys struct {
	by     *key.Rule
	reader *key.Reader
	one    []byte
	all    [][]byte
	bytes  []byte // of all
}

// NewGroupKeys returns the GroupKeys of a rule.
func NewGroupKeys(by *key.Rule) *GroupKeys { return &GroupKeys{by: by, reader: by.Reader(nil)} }

// Of returns the group key of a message, which is valid until the next call.
func (k *GroupKeys) Of(m *semel.Message) ([]byte, error) {
	id, err := k.reader.AppendID(k.one[:0], m)
	switch {
	case err == nil && len(id) == 0:
		err = key.ErrMissing
	case err == nil && len(id) > semel.MaxKeyBytes:
		err = fmt.Errorf("it has %d bytes, and at most %d are allowed", len(id), semel.MaxKeyBytes)
	}
	if err != nil {
		return nil, semel.Permanent(fmt.Errorf("aggregate: group key %s: %w", k.by, err))
	}
	k.one = id
	return id, nil
}

// Begin begins a batch of messages. The group keys of the one before are no longer valid.
func (k *GroupKeys) Begin() { k.all, k.bytes = k.all[:0], k.bytes[:0] }

// Next returns the group key of the next message of a batch. It is empty where Of returns an
// error.
func (k *GroupKeys) Next(m *semel.Message) (group []byte) {
	id, err := k.reader.AppendID(k.bytes, m)
	if from := len(k.bytes); err == nil && len(id)-from <= semel.MaxKeyBytes {
		group, k.bytes = id[from:len(id):len(id)], id
	}
	k.all = append(k.all, group)
	return group
}

// All returns what Next has returned for the messages of a batch.
func (k *GroupKeys) All() [][]byte { return k.all }

// IDs finds the ids of messages by a rule. One goroutine uses it.
type IDs struct {
	reader *key.Reader
	scope  string
	hash   bool
}

// NewIDs returns the IDs of a rule in a scope. With hash, a message without an id has the hash
// of its body.
func NewIDs(rule *key.Rule, scope string, hash bool) *IDs {
	return &IDs{reader: rule.Reader(nil), scope: scope, hash: hash}
}

// Append appends the id of a message. The error wraps key.ErrMissing if the message has none, or
// says why the rule finds none or it is no id.
func (i *IDs) Append(dst []byte, m *semel.Message) ([]byte, error) {
	from := len(dst)
	found, err := i.reader.AppendID(dst, m)
	if id := found[from:]; err == nil && len(id) == 0 {
		err = key.ErrMissing
	} else if err == nil && len(id) > semel.MaxKeyBytes {
		err = semel.Key{Scope: i.scope, ID: string(id)}.Validate()
	}
	if err != nil && i.hash {
		if hashed := record.ContentID(dst, m.Body); len(hashed) > from {
			return hashed, nil
		}
	}
	return found, err
}
