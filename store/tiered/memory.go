package tiered

import (
	"sync"

	"github.com/semel-dev/semel"
)

// Bounds of what a stack remembers of claims. What is forgotten costs a read of
// the durable store, no more.
const (
	mostGranted = 1 << 16
	mostSteps   = 1 << 12
	// longestKey is the longest key, in bytes, that is remembered.
	longestKey = 1 << 10
)

// grant is a claim that was granted through this stack: by its token, or by its
// owner if it was done in one step.
type grant struct {
	key   semel.Key
	token semel.Token
}

type oneStep struct {
	key   semel.Key
	owner semel.Owner
}

// memory maps a bounded number of claims to what was said with them. When it
// is full it forgets any of them. It is safe for concurrent use.
type memory[K comparable, V any] struct {
	most int
	mu   sync.Mutex // guards m
	m    map[K]V
}

func newMemory[K comparable, V any](most int) *memory[K, V] {
	return &memory[K, V]{most: most, m: make(map[K]V)}
}

// add remembers a claim and reports whether it was not known.
func (m *memory[K, V]) add(k K, v V) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, known := m.m[k]
	if !known && len(m.m) >= m.most {
		for any := range m.m {
			delete(m.m, any)
			break
		}
	}
	m.m[k] = v
	return !known
}

// take forgets a claim and returns what was remembered of it.
func (m *memory[K, V]) take(k K) (V, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, known := m.m[k]
	delete(m.m, k)
	return v, known
}

// first reports whether a claim with Done, which was granted, is granted for
// the first time. One that was sent again is granted again without its window
// beginning anew, and is not copied.
func (s *Store) first(req *semel.ClaimRequest) bool {
	return len(req.Key.Scope)+len(req.Key.ID) <= longestKey &&
		s.steps.add(oneStep{req.Key, req.Owner}, struct{}{})
}

// grantedNow remembers a claim that was granted.
func (s *Store) grantedNow(req *semel.ClaimRequest, token semel.Token) {
	if len(req.Key.Scope)+len(req.Key.ID) <= longestKey {
		s.granted.add(grant{req.Key, token}, req.Fingerprint)
	}
}
