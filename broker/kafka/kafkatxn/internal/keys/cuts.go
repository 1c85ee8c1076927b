package keys

import (
	"slices"
	"time"

	"github.com/semel-dev/semel"
)

// Cuts are the positions up to which a partition's changelog can be deleted, because
// the window of each earlier key has ended. By the clock the brokers know that as well: they
// delete old records. By event time the age of a record does not show the times of its
// entries.
//
// A record carries the stream time of its transaction, and no earlier record has a greater
// one. With several sources, of which the slowest decides, its entries may be newer. So when
// the stream time is more than the retention above all of them, no entry up to there counts,
// even for the oldest record that is not late. The last record is never before a cut: its
// stream time is the present, which a restore takes from it.
//
// The zero cuts has no position.
type Cuts struct {
	keep  int64 // longest time in milliseconds that an entry counts
	span  int64 // time between two cuts
	marks []cutMark
}

// cutMark is a position. No earlier record has a stream time or an entry above newest.
type cutMark struct {
	position      int64
	begun, newest int64
}

// cutsOf is the number of cuts in a retention.
const cutsOf = 16

// NewCuts returns cuts for entries that count for keep milliseconds at most.
func NewCuts(keep int64) Cuts { return Cuts{keep: keep, span: max(keep/cutsOf, 1)} }

// cuts returns the cuts of keys that are remembered by w.
func (w *Windowing) cuts() Cuts {
	if w.Retention() >= semel.Forever-w.scale.Length()-time.Millisecond {
		return Cuts{}
	}
	// An entry expires at the end of the tick of its expiry.
	return NewCuts((w.Retention() + w.scale.Length() + time.Millisecond - 1).Milliseconds())
}

// Note adds a position. The records before it are applied, and newest is the greatest time in
// them. It reports whether that is long after the position before.
func (c *Cuts) Note(position, newest, streamTime int64) (later bool) {
	if c.keep == 0 {
		return false
	}
	if n := len(c.marks); n > 0 && newest-c.marks[n-1].begun < c.span {
		c.marks[n-1].position, c.marks[n-1].newest = position, newest
		return false
	}
	later = len(c.marks) > 0
	// Of several expired marks, the last is enough.
	if old := c.behind(streamTime); old > 1 {
		c.marks = slices.Delete(c.marks, 0, old-1)
	}
	c.marks = append(c.marks, cutMark{position, newest, newest})
	return later
}

// behind counts the marks that have expired at a stream time.
func (c *Cuts) behind(streamTime int64) (n int) {
	for n < len(c.marks) && c.marks[n].newest <= streamTime-c.keep {
		n++
	}
	return n
}

// Take returns the position up to which the changelog can be deleted at a stream time,
// if it is above the previous one.
func (c *Cuts) Take(streamTime int64) (position int64, ok bool) {
	n := c.behind(streamTime)
	if n == 0 {
		return 0, false
	}
	position = c.marks[n-1].position
	c.marks = slices.Delete(c.marks, 0, n)
	return position, true
}
