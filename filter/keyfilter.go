package filter

import (
	"context"

	"github.com/semel-dev/semel"
)

// KeyFilter remembers keys approximately, as a Bloom filter does. It may report a
// key as known that was never added. It never reports an added key as new. All
// methods are safe for concurrent use.
type KeyFilter interface {
	// MayContain sets maybe[i] to false if keys[i] was certainly not added, and to
	// true if it may have been.
	MayContain(ctx context.Context, keys []semel.Key, maybe []bool) error
	// Add adds keys. It refuses keys that would increase the error rate. After an
	// error it is not known which keys were added.
	Add(ctx context.Context, keys []semel.Key) error
	// Rate is the probability with which MayContain sets true for a key that was
	// never added. It does not block.
	Rate() float64
}
