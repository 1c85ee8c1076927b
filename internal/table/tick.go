package table

import (
	"fmt"
	"math"
	"time"
)

// Tick counts the units of time in which a table remembers when keys expire,
// from the origin of its Scale. A key whose expiry is tick e answers while the
// present tick is below e.
type Tick int64

// Forever is the expiry of a key that does not expire.
const Forever Tick = math.MaxInt64

// MaxAhead is how many ticks an expiry may lie ahead of the present one,
// [Forever] apart.
const MaxAhead Tick = 1 << 15

// The 16 bits of a slot beside its digest: 0 is an empty slot, 1 to ring are
// expiry ticks modulo ring, and metaForever is Forever. Ring is nearly twice
// MaxAhead, so that a shard is swept at most once in about MaxAhead ticks for
// the sake of the ring alone.
const (
	ring        = math.MaxUint16 - 1
	metaForever = math.MaxUint16
)

// Scale converts between time and ticks. It is a value and safe to copy.
type Scale struct {
	origin int64
	tick   int64
}

// NewScale returns a scale that starts at origin, in nanoseconds since the Unix
// epoch, and whose ticks are as short as windows up to maxWindow allow.
func NewScale(origin int64, maxWindow time.Duration) (Scale, error) {
	if maxWindow <= 0 {
		return Scale{}, fmt.Errorf("table: the longest window %v is not above 0", maxWindow)
	}
	// A window that starts inside a tick ends one tick later than it is long.
	ahead := int64(MaxAhead) - 1
	return Scale{origin: origin, tick: (int64(maxWindow)-1)/ahead + 1}, nil
}

// Length returns the length of a tick.
func (s Scale) Length() time.Duration { return time.Duration(s.tick) }

// Tick returns the tick in which now lies; times before the origin lie in the
// first one.
func (s Scale) Tick(now int64) Tick {
	if now <= s.origin {
		return 0
	}
	return Tick((now - s.origin) / s.tick)
}

// Expiry returns the first tick at whose start a window that begins now is
// over. A window of math.MaxInt64 is Forever.
func (s Scale) Expiry(now int64, window time.Duration) Tick {
	if window == math.MaxInt64 {
		return Forever
	}
	end := max(now-s.origin, 0) + int64(window)
	if end < 0 {
		return Forever
	}
	return Tick((end-1)/s.tick + 1)
}

// Time returns the start of a tick in nanoseconds since the Unix epoch.
func (s Scale) Time(t Tick) int64 { return s.origin + int64(t)*s.tick }
