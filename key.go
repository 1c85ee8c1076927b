package semel

import (
	"encoding/hex"
	"fmt"
	"strconv"
)

// MaxKeyBytes is the maximum length in bytes of an ID, and of a Scope. Every
// store accepts up to this length. Stores keep a digest, so a long id takes no
// more space than a short one.
const MaxKeyBytes = 1 << 20

// Key decides which deliveries are the same. Scope names the consumer, handler or
// tenant. ID is the business identity inside that scope. Both may hold any bytes,
// including NUL and invalid UTF-8. Two different pairs never become equal by
// concatenation. An empty ID is refused. An empty Scope is a scope of its own.
//
// Package key derives keys from messages.
type Key struct {
	Scope string
	ID    string
}

// Validate returns an error that wraps [ErrInvalidKey] if no store can keep the
// key. The ID must not be empty. ID and Scope must not be longer than
// [MaxKeyBytes].
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

// String returns the quoted scope and id, shortened for a log line. Do not parse
// or store it.
func (k Key) String() string {
	const most = 64
	id := k.ID
	if len(id) > most {
		return strconv.Quote(k.Scope) + "/" + strconv.Quote(id[:most]) + "…(" + strconv.Itoa(len(id)) + " bytes)"
	}
	return strconv.Quote(k.Scope) + "/" + strconv.Quote(id)
}

// Digest is the 128-bit keyed digest that a store keeps for a key. Each store has
// its own secret for it, so digests of two stores cannot be compared.
type Digest [16]byte

// String returns the digest as 32 hexadecimal digits.
func (d Digest) String() string { return hex.EncodeToString(d[:]) }

// Fingerprint is a 128-bit digest of a payload. Stores use it to detect that one
// key was used for two different payloads. Each half must be uniformly
// distributed on its own, because a store may keep only the first 8 bytes. The
// zero Fingerprint means "none" and matches every fingerprint.
type Fingerprint [16]byte

// IsZero reports whether f is the zero Fingerprint, which means "none".
func (f Fingerprint) IsZero() bool { return f == Fingerprint{} }

// Matches reports whether f and g can belong to the same payload. They can if
// either is zero or if their first 8 bytes are equal.
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
