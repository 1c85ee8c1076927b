package key

import (
	"crypto/rand"
	"crypto/sha1"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"sync"
	"time"
)

// UUID is a universally unique identifier as in RFC 9562.
type UUID [16]byte

// NamespaceURL is the name space of RFC 9562 for names that are URLs; see [UUIDv5].
var NamespaceURL = UUID{0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1, 0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8}

// UUIDv5 returns the UUID of a name in a name space. The same name always gives
// the same UUID. It suits targets that need a UUID as their idempotency key. It
// is based on SHA-1: someone who can choose names freely can make two names
// collide. So use a [Composite] or a hash for names from outside.
func UUIDv5[T string | []byte](namespace UUID, name T) UUID {
	h := sha1.New()
	h.Write(namespace[:])
	h.Write([]byte(name))
	var u UUID
	copy(u[:], h.Sum(nil))
	return u.versioned(5)
}

// newUUIDv4 returns a random UUID. It is a good id if the producer draws it
// once for a message, before the first attempt to send it. It is not an id if
// the receiver draws it.
func newUUIDv4() UUID {
	var u UUID
	rand.Read(u[:]) // never fails: crypto/rand ends the process instead
	return u.versioned(4)
}

// NewUUIDv7 returns a UUID that begins with the time. Ids sort by it, and
// stores keep them close together. Within a process each UUID is greater than
// all before, even if the clock is set back or stops. NewUUIDv7 is safe
// for concurrent use.
func NewUUIDv7() UUID { return ofProcess.next(time.Now()) }

// ofProcess is the only variable in this package that changes. The order must
// hold in the whole process.
var ofProcess uuidClock

// uuidClock returns the leading parts of version 7 UUIDs.
type uuidClock struct {
	mu sync.Mutex // guards last
	// last is the last time that was returned, in units of 1/4096 ms. It fills
	// the 48 bits of milliseconds and the 12 bits after them (RFC 9562, method
	// 3).
	last uint64
}

func (c *uuidClock) next(now time.Time) UUID {
	const perMilli = 1 << 12
	sinceMilli := uint64(now.Nanosecond() % int(time.Millisecond))
	t := uint64(now.UnixMilli())*perMilli + sinceMilli*perMilli/uint64(time.Millisecond)
	c.mu.Lock()
	// If the clock goes back, each id advances by one step until the clock has
	// caught up.
	t = max(t, c.last+1)
	c.last = t
	c.mu.Unlock()
	var u UUID
	rand.Read(u[8:])
	binary.BigEndian.PutUint64(u[:8], t/perMilli<<16|t%perMilli)
	return u.versioned(7)
}

// ParseUUID reads the 36 characters of a UUID of any version, in upper or lower
// case.
func ParseUUID(text string) (UUID, error) {
	var u UUID
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' {
		return u, fmt.Errorf("key: %.40q is not a UUID", text)
	}
	digits := text[:8] + text[9:13] + text[14:18] + text[19:23] + text[24:]
	if _, err := hex.Decode(u[:], []byte(digits)); err != nil {
		return UUID{}, fmt.Errorf("key: %.40q is not a UUID", text)
	}
	return u, nil
}

// Version returns the version field of the UUID.
func (u UUID) Version() int { return int(u[6] >> 4) }

// String returns the 36 characters of the UUID, in lower case.
func (u UUID) String() string {
	digits := hex.EncodeToString(u[:])
	return digits[:8] + "-" + digits[8:12] + "-" + digits[12:16] + "-" + digits[16:20] + "-" + digits[20:]
}

// versioned returns the UUID with version and variant set.
func (u UUID) versioned(version byte) UUID {
	u[6] = u[6]&0x0F | version<<4
	u[8] = u[8]&0x3F | 0x80
	return u
}
