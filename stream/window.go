package stream

import (
	"time"

	"github.com/semel-dev/semel/internal/invalid"
)

// Window says which windows a message belongs to.
type Window struct {
	size, every, gap, most time.Duration
	zone                   *time.Location // of Days
}

// maxSlices is how many parts of its own a hopping window may have at most. All windows
// that overlap share these parts.
const maxSlices = 1000

// Tumbling returns windows of one size that follow each other without gaps. Window
// starts are multiples of the size since the Unix epoch, so windows of a day start at
// midnight UTC.
func Tumbling(size time.Duration) Window { return Window{size: size, every: size} }

// Days returns windows of a number of whole days in a time zone. They are counted from
// 1970-01-01, and start when the day starts there, so a window of one day has 23 or 25 hours
// if clocks are changed in it. In UTC they are the windows of Tumbling.
func Days(n int, zone *time.Location) Window {
	w := Tumbling(time.Duration(n) * 24 * time.Hour)
	if zone != time.UTC {
		w.zone = zone
	}
	return w
}

// Hopping returns windows of one size that start at all multiples of every since the Unix
// epoch. They overlap, and a message belongs to each window that has its time.
func Hopping(size, every time.Duration) Window { return Window{size: size, every: every} }

// Session returns windows that end when a group has no message for longer than gap. Two
// messages that are at most gap apart belong to one session. A session is at most most
// long, because it would otherwise stay open as long as messages come: a message that
// would make it longer begins another session.
func Session(gap, most time.Duration) Window { return Window{gap: gap, most: most} }

// Size returns the length of tumbling and hopping windows. For Days in a time zone it is that
// of days of 24 hours.
func (w Window) Size() time.Duration { return w.size }

// Zone returns the time zone of Days, or nil if windows go by UTC.
func (w Window) Zone() *time.Location { return w.zone }

// Every returns the distance between the starts of tumbling and hopping windows.
func (w Window) Every() time.Duration { return w.every }

// Slice returns the longest time of which size and distance of windows are multiples.
func (w Window) Slice() time.Duration {
	a, b := w.size, w.every
	for b > 0 {
		a, b = b, a%b
	}
	return a
}

// Gap returns the gap that ends a session, or 0 for other windows.
func (w Window) Gap() time.Duration { return w.gap }

// Most returns the greatest length of a session.
func (w Window) Most() time.Duration { return w.most }

// String returns the windows as in a configuration.
func (w Window) String() string {
	switch {
	case w.gap > 0:
		return "sessions with gaps of " + w.gap.String() + ", at most " + w.most.String()
	case w.zone != nil:
		return "tumbling " + w.size.String() + " in " + w.zone.String()
	case w.every == w.size:
		return "tumbling " + w.size.String()
	}
	return "hopping " + w.size.String() + " every " + w.every.String()
}

// Validate returns an error that wraps semel.ErrInvalidRequest, or nil.
func (w Window) Validate() error {
	wrong := invalid.In("stream: Window: ")
	if w == (Window{}) {
		wrong.Add("no size")
		return wrong.Err()
	}
	list := []time.Duration{w.size, w.every}
	if w.gap != 0 || w.most != 0 {
		list = []time.Duration{w.gap, w.most}
	}
	for _, d := range list {
		if d < time.Millisecond || d%time.Millisecond != 0 {
			wrong.Add("%v is not a whole number of milliseconds above 0", d)
			return wrong.Err()
		}
	}
	switch {
	case w.zone == time.Local:
		wrong.Add("the zone Local differs from host to host: name the zone, as in Europe/Vienna")
	case w.gap > 0:
		if w.most < w.gap {
			wrong.Add("the greatest length of a session, %v, is less than the gap of %v", w.most, w.gap)
		}
	case w.every > w.size:
		wrong.Add("windows of %v every %v leave out times between them", w.size, w.every)
	case w.size/w.Slice() > maxSlices:
		wrong.Add("windows of %v every %v have %d slices each, and at most %d are allowed: choose a distance that divides the size", w.size, w.every, w.size/w.Slice(), maxSlices)
	}
	return wrong.Err()
}
