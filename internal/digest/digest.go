// Package digest turns keys into the 128-bit keyed digests that stores keep.
//
// The function is SipHash-2-4-128 (Aumasson and Bernstein, 2012), a
// pseudo-random function with a 128-bit key. Without the secret an attacker
// cannot find two keys with the same digest and cannot aim keys at one slot of
// a table. Scope and id are hashed in two steps, so that different pairs do not
// collide by concatenation.
package digest

import (
	"crypto/rand"
	"encoding/binary"
	"unsafe"

	"github.com/dchest/siphash"

	"github.com/semel-dev/semel"
)

// Secret is the key of a Hasher. It belongs to one store, which keeps it.
type Secret [16]byte

// NewSecret returns a random secret.
func NewSecret() Secret {
	var s Secret
	rand.Read(s[:]) // never fails: crypto/rand ends the process instead
	return s
}

// Hasher digests the keys of one store. It is a value and safe to copy.
type Hasher struct{ k0, k1 uint64 }

// New returns the hasher of a secret.
func New(s Secret) Hasher {
	return Hasher{binary.LittleEndian.Uint64(s[:8]), binary.LittleEndian.Uint64(s[8:])}
}

// Scope returns the hasher of ids in one scope. Callers with many ids of one
// scope should keep it.
func (h Hasher) Scope(scope string) Scoped {
	a, b := siphash.Hash128(h.k0, h.k1, bytesOf(scope))
	return Scoped{a, b}
}

// Key digests one key.
func (h Hasher) Key(k semel.Key) semel.Digest { return h.Scope(k.Scope).String(k.ID) }

// Scoped digests the ids of one scope.
type Scoped struct{ k0, k1 uint64 }

// String digests an id.
func (s Scoped) String(id string) semel.Digest { return s.Bytes(bytesOf(id)) }

// Bytes digests an id without keeping it.
func (s Scoped) Bytes(id []byte) semel.Digest {
	a, b := siphash.Hash128(s.k0, s.k1, id)
	var d semel.Digest
	binary.LittleEndian.PutUint64(d[:8], a)
	binary.LittleEndian.PutUint64(d[8:], b)
	return d
}

// Memo is a Hasher that remembers the last scope, because the keys of a batch
// nearly always have the same scope. It is not safe for concurrent use.
type Memo struct {
	Hasher Hasher
	scope  string
	scoped Scoped
	filled bool
}

// Key digests one key.
func (m *Memo) Key(k semel.Key) semel.Digest {
	if !m.filled || m.scope != k.Scope {
		m.scope, m.scoped, m.filled = k.Scope, m.Hasher.Scope(k.Scope), true
	}
	return m.scoped.String(k.ID)
}

// bytesOf returns a string as bytes without a copy. Siphash only reads them.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
