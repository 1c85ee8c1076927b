package filter

import "time"

// timeline counts slices of time of one length, from the first moment it is
// told of. Numbers stay exact over a serialisation because it goes by the wall
// clock.
type timeline struct {
	slice   int64 // nanoseconds
	origin  int64 // Unix nanoseconds at which slice 0 starts
	current int64 // number of the current slice
	started bool
}

// advance moves to the slice of now and returns its number. The first call
// fixes the origin; a time before the current slice changes nothing.
func (t *timeline) advance(now time.Time) int64 {
	at := max(0, now.UnixNano())
	if !t.started {
		t.origin, t.started = at, true
	}
	t.current = max(t.current, (at-t.origin)/t.slice)
	return t.current
}
