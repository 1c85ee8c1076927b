package fields

import (
	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/kafka/internal/record"
	"github.com/semel-dev/semel/key"
)

// IDs finds the ids of messages by a rule. One goroutine uses it.
type IDs struct {
	reader *key.Reader
	scope  string
	hash   bool
	id     []byte // memory
}

// NewIDs returns the IDs of a rule in a scope. With hash, a message without an id has the hash
// of its body.
func NewIDs(rule *key.Rule, scope string, hash bool) *IDs {
	return &IDs{reader: rule.Reader(nil), scope: scope, hash: hash}
}

// Of returns the id of a message, which is valid until the next call. The error wraps
// key.ErrMissing if the message has none, or says why the rule finds none or it is no id.
func (i *IDs) Of(m *semel.Message) ([]byte, error) {
	id, err := i.reader.AppendID(i.id[:0], m)
	i.id = id
	if err == nil && len(id) == 0 {
		err = key.ErrMissing
	}
	if err == nil && len(id) > semel.MaxKeyBytes {
		err = semel.Key{Scope: i.scope, ID: string(id)}.Validate()
	}
	if err != nil && i.hash {
		if id = record.ContentID(i.id[:0], m.Body); len(id) > 0 {
			i.id, err = id, nil
		}
	}
	if err != nil {
		return nil, err
	}
	return id, nil
}
