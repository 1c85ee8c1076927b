package fields

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
)

// GroupKeys finds group keys by a rule.
type GroupKeys struct {
	by      *key.Rule
	reader  *key.Reader
	message semel.Message
	one     []byte
	all     [][]byte
	bytes   []byte // of all
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

// All returns the group keys of records, which are valid until the next call. It is empty
// where Of returns an error.
func (k *GroupKeys) All(records []*kgo.Record) [][]byte {
	k.all, k.bytes = k.all[:0], k.bytes[:0]
	for _, r := range records {
		record.Fill(&k.message, r)
		id, err := k.reader.AppendID(k.bytes, &k.message)
		if from := len(k.bytes); err == nil && len(id)-from <= semel.MaxKeyBytes {
			k.all, k.bytes = append(k.all, id[from:]), id
		} else {
			k.all = append(k.all, nil)
		}
	}
	return k.all
}
