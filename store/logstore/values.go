package logstore

import (
	"strings"

	"github.com/semel-dev/semel"
)

// value is a named value as it is after the last transaction that is durable.
type value struct {
	data []byte
	pos  uint64
}

// namedValue is a value that a transaction sets; nil data forgets it.
type namedValue struct {
	name string
	data []byte
	pos  uint64
}

// Names that begin with reserved are the store's own.
const (
	reserved = "\x00"
	// firstSegment is the number of the oldest segment, written before older
	// ones are deleted: a segment that is missing without it was lost.
	firstSegment = reserved + "first"
)

// Value returns a named value as the last durable transaction left it. The
// bytes must not be changed.
func (s *Store) Value(name string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[name]
	return v.data, ok
}

// Values returns the named values whose names begin with prefix. The bytes
// must not be changed.
func (s *Store) Values(prefix string) map[string][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	found := make(map[string][]byte)
	for name, v := range s.values {
		if strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, reserved) {
			found[name] = v.data
		}
	}
	return found
}

// valueRoom bounds what a value adds to the log.
func valueRoom(name string, data []byte) int { return richLeast + len(name) + len(data) }

// writeValue appends a value to the open record; it is published with it.
func (s *Store) writeValue(o *op, name string, data []byte) {
	r, kind := rich{holder: name, data: data}, kindValue
	if data == nil {
		kind = kindRemoval
	}
	o.buf = r.encode(o.buf[:0], &semel.Digest{}, kind)
	pos := s.appendEntry(o, o.buf)
	s.open.named = append(s.open.named, namedValue{name, data, pos})
}

// publish makes the values of a durable record visible.
func (s *Store) publish(named []namedValue) {
	for _, n := range named {
		if n.data == nil {
			delete(s.values, n.name)
		} else {
			s.values[n.name] = value{n.data, n.pos}
		}
	}
}
