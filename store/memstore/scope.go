package memstore

import (
	"strings"
	"sync/atomic"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// scopeCache keeps the hashers of some scopes. An entry is filled once and
// stays. A store with a few scopes saves a third of the hashing. A store with
// very many scopes neither grows nor allocates for them.
type scopeCache [64]atomic.Pointer[cachedScope]

type cachedScope struct {
	scope  string
	scoped digest.Scoped
}

// digest digests a key. The last byte is cleared, because tables do not keep it
// and a key must have the same digest everywhere.
func (s *Store) digest(key *semel.Key) semel.Digest {
	d := s.scoped(key.Scope).String(key.ID)
	d[15] = 0
	return d
}

// scopeMemo remembers the last scope, because the keys of a batch nearly always
// have the same scope.
type scopeMemo struct {
	store  *Store
	scope  string
	scoped digest.Scoped
	filled bool
}

func (m *scopeMemo) digest(key *semel.Key) semel.Digest {
	if !m.filled || m.scope != key.Scope {
		m.scope, m.scoped, m.filled = key.Scope, m.store.scoped(key.Scope), true
	}
	d := m.scoped.String(key.ID)
	d[15] = 0
	return d
}

// prefetch starts to load the memory that the decision on a key will read.
func (s *Store) prefetch(d *semel.Digest) { s.shards[d[0]].done.Prefetch(d) }

func (s *Store) scoped(scope string) digest.Scoped {
	place := &s.scopes[scopePlace(scope)]
	cached := place.Load()
	if cached != nil && cached.scope == scope {
		return cached.scoped
	}
	scoped := s.hasher.Scope(scope)
	if cached == nil && len(scope) <= maxCachedScope {
		place.CompareAndSwap(nil, &cachedScope{strings.Clone(scope), scoped})
	}
	return scoped
}

// maxCachedScope bounds the memory of the cache.
const maxCachedScope = 256

func scopePlace(scope string) int {
	n := len(scope)
	if n == 0 {
		return 0
	}
	return (n*31 + int(scope[0])*7 + int(scope[n/2])*3 + int(scope[n-1])) % len(scopeCache{})
}
