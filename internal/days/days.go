// Package days divides time into the days of a time zone, for windows of whole days.
package days

import "time"

// Days are periods of a number of days in a time zone, counted from 1970-01-01 there. A period
// is as long as the zone makes its days: a day may have 23 or 25 hours. One goroutine uses it.
type Days struct {
	zone *time.Location
	size int64
	// from and to are the bounds of the period that was asked for last, in milliseconds since
	// 1970. It is nearly always the next one that is asked for.
	from, to int64
}

// New returns the periods of a number of days in a zone.
func New(zone *time.Location, size int64) *Days { return &Days{zone: zone, size: size} }

// Bounds returns the start of the period that has a time, and its end, which is the start of
// the next one. Times are milliseconds since 1970.
func (d *Days) Bounds(at int64) (from, to int64) {
	if at < d.from || at >= d.to {
		day := d.day(at)
		first := day - mod(day, d.size)
		d.from, d.to = d.start(first), d.start(first+d.size)
	}
	return d.from, d.to
}

const milliseconds = int64(24 * time.Hour / time.Millisecond) // of a day in UTC

// day returns the number of the day with a time: the last day that has started by then.
func (d *Days) day(at int64) int64 {
	// Clocks that are set back just behind midnight show the day before once more. So it is
	// the start of the day that counts, and not the date that clocks show.
	day := (at - mod(at, milliseconds)) / milliseconds
	for day++; d.start(day) > at; day-- {
	}
	return day
}

// start returns the first time at which clocks show a day, or a later one if the zone leaves
// out the day. That is midnight, unless clocks are set forward then.
func (d *Days) start(day int64) int64 {
	// No zone is two days from UTC, so at is before the day. It moves from one change of the
	// clocks to the next.
	midnight := day * milliseconds / 1000 // in seconds, as clocks there show it
	for at := time.Unix(midnight, 0).Add(-48 * time.Hour).In(d.zone); ; {
		_, offset := at.Zone()
		_, change := at.ZoneBounds()
		start := max(midnight-int64(offset), at.Unix())
		if change.IsZero() || start < change.Unix() {
			return start * 1000
		}
		at = change
	}
}

// mod returns the rest of a division, which is not negative.
func mod(n, by int64) int64 { return (n%by + by) % by }
