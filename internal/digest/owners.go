package digest

import (
	"encoding/binary"

	"github.com/semel-dev/semel"
)

// Owners digests the owners of claims, so that a store can keep a few bytes of
// the owner that made a key done in one step. It remembers the last name,
// because the claims of a batch nearly always have the same name. It is not
// safe for concurrent use.
type Owners struct {
	Hasher Hasher
	name   string
	named  Scoped
	filled bool
}

// Of returns 8 bytes of the digest of an owner's name and nonce.
func (o *Owners) Of(owner *semel.Owner) (short [8]byte) {
	if !o.filled || o.name != owner.Name {
		o.name, o.named, o.filled = owner.Name, o.Hasher.Scope(owner.Name), true
	}
	var nonce [8]byte
	binary.LittleEndian.PutUint64(nonce[:], owner.Nonce)
	d := o.named.Bytes(nonce[:])
	copy(short[:], d[:])
	return short
}
