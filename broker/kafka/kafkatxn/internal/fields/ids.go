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
