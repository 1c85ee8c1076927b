package memstore

import (
	"strings"
	"sync/atomic"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/digest"
)

// scopeCache keeps the hashers of some scopes. A place is filled once and
// stays: a store with a few scopes saves a third of the hashing, and one with
// a great many neither grows nor allocates for them.
type scopeCache [64]atomic.Pointer[cachedScope]

type cachedScope struct {
	scope  string
	scoped digest.Scoped
}

// digest digests a key. The last byte is cleared: tables do not keep it, and a
// key has one digest wherever it shows.
func (s *Store) digest(key *semel.Key) semel.Digest {
	d := s.scoped(key.Scope).String(key.ID)
	d[15] = 0
	return d
}

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
