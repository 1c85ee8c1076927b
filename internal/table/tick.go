package table

import (
	"fmt"
	"math"
	"time"
)

// Tick is a time of a table, in the units of its Scale. A key whose expiry is
// tick e is present while the current tick is below e.
type Tick int64

// Forever is the expiry of a key that does not expire.
const Forever Tick = math.MaxInt64

// MaxAhead is the highest number of ticks from now to an expiry other than
// [Forever].
const MaxAhead Tick = 1 << 15

// A slot has 16 bits besides its digest. 0 is an empty slot, 1 to ring are
// expiry ticks modulo ring, and metaForever is Forever. ring is nearly twice
// MaxAhead. So the ring alone requires a sweep of a shard only once in about
// MaxAhead ticks.
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
// epoch. Its ticks are as short as windows up to maxWindow permit.
func NewScale(origin int64, maxWindow time.Duration) (Scale, error) {
	if maxWindow <= 0 {
		return Scale{}, fmt.Errorf("table: the longest window %v is not above 0", maxWindow)
	}
	// A window that starts inside a tick needs one tick more than its length.
	ahead := int64(MaxAhead) - 1
	return Scale{origin: origin, tick: (int64(maxWindow)-1)/ahead + 1}, nil
}

// Length returns the length of a tick.
func (s Scale) Length() time.Duration { return time.Duration(s.tick) }

// Tick returns the tick of now. Times before the origin are in the first tick.
func (s Scale) Tick(now int64) Tick {
	if now <= s.origin {
		return 0
	}
	return Tick((now - s.origin) / s.tick)
}

// Expiry returns the first tick that starts after the end of a window that
// begins now. A window of math.MaxInt64 is Forever.
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
