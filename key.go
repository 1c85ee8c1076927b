package semel

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// MaxKeyBytes is the longest ID, and the longest Scope, that every store
// accepts. Stores keep a digest, so a long id costs no more than a short one.
const MaxKeyBytes = 1 << 20

// Key is what makes two deliveries the same. Scope says who asks (a consumer,
// a handler, a tenant); ID is the business identity inside that scope. Both
// hold any bytes, NUL and invalid UTF-8 included; the pair never collides by
// concatenation. An empty ID is refused, an empty Scope is a scope of its own.
//
// Package key derives keys from messages.
type Key struct {
	Scope string
	ID    string
}

// Validate returns an error that wraps [ErrInvalidKey] if the key cannot be
// stored: the ID is empty, or ID or Scope is longer than [MaxKeyBytes].
func (k Key) Validate() error {
	switch {
	case k.ID == "":
		return fmt.Errorf("semel: the id in scope %q is empty: %w", k.Scope, ErrInvalidKey)
	case len(k.ID) > MaxKeyBytes:
		return fmt.Errorf("semel: the id in scope %q has %d bytes, more than %d: %w", k.Scope, len(k.ID), MaxKeyBytes, ErrInvalidKey)
	case len(k.Scope) > MaxKeyBytes:
		return fmt.Errorf("semel: the scope has %d bytes, more than %d: %w", len(k.Scope), MaxKeyBytes, ErrInvalidKey)
	}
	return nil
}

// String returns scope and id quoted, shortened to a line that is fit for a
// log. It is not a form to parse or to store.
func (k Key) String() string {
	const most = 64
	id := k.ID
	if len(id) > most {
		return strconv.Quote(k.Scope) + "/" + strconv.Quote(id[:most]) + "…(" + strconv.Itoa(len(id)) + " bytes)"
	}
	return strconv.Quote(k.Scope) + "/" + strconv.Quote(id)
}

// Digest is the 128-bit keyed digest under which a store keeps a key. It is
// keyed with a secret of that store: digests of two stores do not compare.
type Digest [16]byte

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Fingerprint is a 128-bit digest of a payload, by which a store notices one
// key used for two different payloads. Each of its two halves must be
// uniformly distributed on its own: a store may keep the first 8 bytes only.
// The zero Fingerprint means "none": it is stored as none and matches all.
type Fingerprint [16]byte

// IsZero reports whether there is no fingerprint.
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Matches reports whether the two can belong to one payload: either is none,
// or their first 8 bytes are equal.
func (f Fingerprint) Matches(g Fingerprint) bool {
	return f.IsZero() || g.IsZero() || [8]byte(f[:8]) == [8]byte(g[:8])
}

// String returns the fingerprint as 32 hexadecimal digits, or "" for none.
func (f Fingerprint) String() string {
	if f.IsZero() {
		return ""
	}
	return hex.EncodeToString(f[:])
}
