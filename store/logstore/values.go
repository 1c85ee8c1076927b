package logstore

import (
	"context"
	"slices"
	"strings"

	"github.com/semel-dev/semel"
)

// value is a named value after the last durable transaction.
type value struct {
	data []byte
	pos  uint64
}

// namedValue is a value that a transaction sets. Nil data removes it.
type namedValue struct {
	name string
	data []byte
	pos  uint64
}

// Names with the prefix reserved belong to the store.
const (
	reserved = "\x00"
	// firstSegment holds the number of the oldest segment. It is written before
	// older segments are deleted. A segment that is missing without it was
	// lost.
	firstSegment = reserved + "first"
)

// Value returns the named value of the last durable transaction. The caller
// must not change the bytes.
func (s *Store) Value(name string) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.values[name]
	return v.data, ok
}

// Values returns the named values whose names start with prefix. The caller
// must not change the bytes.
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

// valueRoom returns an upper bound of the bytes that a value adds to the log.
func valueRoom(name string, data []byte) int { return richLeast + len(name) + len(data) }

// writeValue appends a value to the open record. The value becomes visible with
// the record.
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

// knownNames returns the names of such values, also of those that are not durable yet.
// The caller holds the lock.
func (s *Store) knownNames() (names []string) {
	for name := range s.values {
		if strings.HasPrefix(name, KnownPrefix) {
			names = append(names, name)
		}
	}
	for b := s.last; b != nil; b = b.prev {
		for _, n := range b.named {
			if strings.HasPrefix(n.name, KnownPrefix) && !slices.Contains(names, n.name) {
				names = append(names, n.name)
			}
		}
	}
	return names
}

// forgetKnown removes the values that rely on all keys being known.
func (s *Store) forgetKnown(o *op) {
	for _, name := range s.knownNames() {
		s.writeValue(o, name, nil)
	}
}

// knownRoom returns the bytes that forgetKnown adds to the log.
func (s *Store) knownRoom() (bytes int) {
	for _, name := range s.knownNames() {
		bytes += valueRoom(name, nil)
	}
	return bytes
}

// scopeRule is the prefix of the values that hold the rules of scopes.
const scopeRule = "scope/"

// BindScope implements [semel.ScopeBinder]. The first call for a scope waits for
// the disk as a completion does.
func (s *Store) BindScope(ctx context.Context, scope, rule string) (string, error) {
	s.binding.Lock() // a value is visible only when it is durable
	defer s.binding.Unlock()
	s.mu.Lock()
	bound, ok := s.values[scopeRule+scope]
	err := s.usable()
	s.mu.Unlock()
	if ok || err != nil || rule == "" {
		return string(bound.data), err
	}
	tx, err := s.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer tx.Abort()
	if bound := tx.BindScope(scope, rule); bound != rule {
		return bound, nil
	}
	if err := tx.Commit(ctx); err != nil {
		return "", err
	}
	return rule, nil
}

// KeysWithoutRule reports whether the store has keys and binds no scope to a rule, as
// versions left it that kept no rules. The store does not know the scopes of such keys.
// KeysWithoutRule does not block, and may be called concurrently. It returns the error
// with which the store failed.
func (s *Store) KeysWithoutRule(context.Context) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.values {
		if strings.HasPrefix(name, scopeRule) {
			return false, nil
		}
	}
	return s.index.count > 0 || s.claims.Len() > 0, s.usable()
}

// BoundScopes returns the scopes that are bound to a rule, sorted. It does not block.
func (s *Store) BoundScopes(context.Context) ([]string, error) {
	var scopes []string
	for name := range s.Values(scopeRule) {
		scopes = append(scopes, strings.TrimPrefix(name, scopeRule))
	}
	slices.Sort(scopes)
	return scopes, nil
}

// BindScope binds a scope to a rule when the transaction commits, unless an earlier
// durable transaction bound the scope. It returns the rule to which the scope is
// then bound. It does not block. See [semel.BindScope], which also checks the rule.
func (tx *Tx) BindScope(scope, rule string) (bound string) {
	if data, ok := tx.store.Value(scopeRule + scope); ok {
		return string(data)
	}
	tx.Set(scopeRule+scope, []byte(rule))
	return rule
}
