package oncecmd

import (
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/days"
)

// intervalStart returns the start of the interval that has a time. Intervals are those of
// windows: multiples of every since 1970 in UTC, or whole days of a zone.
func intervalStart(now time.Time, every time.Duration, zone *time.Location) time.Time {
	at := now.UnixMilli()
	if zone != nil {
		from, _ := days.New(zone, int64(every/(24*time.Hour))).Bounds(at)
		return time.UnixMilli(from).In(zone)
	}
	size := every.Milliseconds()
	return time.UnixMilli(at - ((at%size)+size)%size).UTC()
}

// longer returns the sum of two windows.
func longer(a, b time.Duration) time.Duration {
	if a > semel.Forever-b {
		return semel.Forever
	}
	return a + b
}
