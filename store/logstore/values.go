package logstore

import (
	"slices"
	"strings"
	"sync"

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

// values are the named values of a store.
type values struct {
	log       *log
	committer *committer
	// binding is held while a scope is bound. Lock it before log.mu.
	binding sync.Mutex
}

// get returns the value of the last durable transaction.
func (v *values) get(name string) ([]byte, bool) {
	v.log.mu.Lock()
	defer v.log.mu.Unlock()
	found, ok := v.committer.named[name]
	return found.data, ok
}

// all returns the values whose names start with prefix.
func (v *values) all(prefix string) map[string][]byte {
	v.log.mu.Lock()
	defer v.log.mu.Unlock()
	found := make(map[string][]byte)
	for name, is := range v.committer.named {
		if strings.HasPrefix(name, prefix) && !strings.HasPrefix(name, reserved) {
			found[name] = is.data
		}
	}
	return found
}

// valueRoom returns an upper bound of the bytes that a value adds to the log.
func valueRoom(name string, data []byte) int { return richLeast + len(name) + len(data) }

// write appends a value to the open record. The value becomes visible with
// the record.
func (v *values) write(o *op, name string, data []byte) {
	r, kind := rich{holder: name, data: data}, kindValue
	if data == nil {
		kind = kindRemoval
	}
	o.buf = r.encode(o.buf[:0], &semel.Digest{}, kind)
	pos := v.committer.append(o, o.buf)
	v.committer.open.named = append(v.committer.open.named, namedValue{name, data, pos})
}

// knownNames returns the names of the values that rely on all keys being known,
// including those that are not durable yet. The caller holds the lock.
func (v *values) knownNames() (names []string) {
	for name := range v.committer.named {
		if strings.HasPrefix(name, KnownPrefix) {
			names = append(names, name)
		}
	}
	for b := v.committer.last; b != nil; b = b.prev {
		for _, n := range b.named {
			if strings.HasPrefix(n.name, KnownPrefix) && !slices.Contains(names, n.name) {
				names = append(names, n.name)
			}
		}
	}
	return names
}

// forgetKnown removes the values that rely on all keys being known.
func (v *values) forgetKnown(o *op) {
	for _, name := range v.knownNames() {
		v.write(o, name, nil)
	}
}

// knownRoom returns the bytes that forgetKnown adds to the log.
func (v *values) knownRoom() (bytes int) {
	for _, name := range v.knownNames() {
		bytes += valueRoom(name, nil)
	}
	return bytes
}

// scopeRule is the prefix of the values that hold the rules of scopes.
const scopeRule = "scope/"

// boundTo returns the rule of a scope.
func (v *values) boundTo(scope string) (rule string, ok bool, err error) {
	v.log.mu.Lock()
	defer v.log.mu.Unlock()
	bound, ok := v.committer.named[scopeRule+scope]
	return string(bound.data), ok, v.log.usable()
}

// boundScopes returns the scopes that are bound to a rule, sorted.
func (v *values) boundScopes() (scopes []string) {
	for name := range v.all(scopeRule) {
		scopes = append(scopes, strings.TrimPrefix(name, scopeRule))
	}
	slices.Sort(scopes)
	return scopes
}
