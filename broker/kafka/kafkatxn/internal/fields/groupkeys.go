package fields

import (
	"fmt"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
)

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
