package filter

import (
	"math"
	"math/bits"
	"time"

	"github.com/semel-dev/semel"
)

// Table remembers a fingerprint of each id for a window of time and can forget
// one at will. For about three times the bits of a Bloom filter with an error
// rate of 0.1 % it is wrong thousands of times less often, with one cache miss
// for most operations.
//
// A line of 64 bytes has 15 slots of 32 bits, each a fingerprint of 26 bits and
// the slice of time in which its id was last added, and a word of notes. An id
// whose line is full goes into one of the next; a note in the lines it passed
// says so, for as long as the id lives. Slots that are past their window count
// as free, and are found to be so when an operation comes by: there is no
// sweep, and no pause when time moves. The zero Table is good for
// UnmarshalBinary only.
type Table struct {
	hasher hasher
	seed   Seed
	lines  []line
	// stamps has for each group of lines the slice in which it was last rid of
	// dead slots. It dates the slots: see age.
	stamps   []int64
	capacity int
	window   time.Duration
	full     WhenFull
	time     timeline
	counts   [sliceCount]int // live ids by slice modulo sliceCount
	length   int             // sum of counts
}

// line is lineSlots slots and a word of notes: the slice in which an id last
// passed on to the next line, whether there was one, and for each slot whether
// it was added more than once.
type line [lineSlots + 1]uint32

const (
	lineSlots  = 15
	notes      = lineSlots // index of the notes in a line
	passed     = 1 << 6    // in the notes, with the slice below it
	shared     = 1 << 16   // in the notes, for slot 0; slot i has shared<<i
	groupLines = 16

	// sliceCount is how many slices of time the 6 bits of a slot tell apart.
	sliceCount = 64
	sliceMask  = sliceCount - 1
	// lifetime is how many slices an id lives after that in which it was added:
	// a window.
	lifetime = 47
	// slack is how many slices a group may go without being rid of dead slots,
	// so that those of its slots that are dead and those that are new stay
	// distinct: lifetime + slack + 1 = sliceCount.
	slack = sliceCount - lifetime - 1

	fingerprintBits = 26

	// lineLoad is how many ids a line holds at capacity. Three quarters of the
	// slots keep most ids in their own line.
	lineLoad = 11.2
	// reach is how many lines an id may be away from its own, at most. At
	// capacity none is so far.
	reach = 64
)

// NewTable returns an empty table. A nil opts asks for the defaults. The error
// wraps [semel.ErrInvalidRequest] and names each field that is out of bounds.
func NewTable(opts *TableOptions) (*Table, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return newTable(o, linesFor(o.Capacity)), nil
}

func linesFor(capacity int) int { return int(math.Ceil(float64(capacity) / lineLoad)) }

func newTable(o TableOptions, lines int) *Table {
	return &Table{
		hasher: newHasher(o.Seed), seed: o.Seed,
		lines:    make([]line, lines),
		stamps:   make([]int64, (lines+groupLines-1)/groupLines),
		capacity: o.Capacity, window: o.Window, full: o.WhenFull,
		time: timeline{slice: sliceOf(o.Window, lifetime)},
	}
}

// Advance tells the table the time. What is older than the window is
// forgotten; it takes the same short time however much that is. A time before
// the last one changes nothing. What is added before the first call counts as
// added at that call.
//
// The time must be that of one clock, also over a restart: a clock that jumps
// ahead ends the window early.
func (t *Table) Advance(now time.Time) {
	before := t.time.current
	current := t.time.advance(now)
	for slice := max(before, current-sliceCount) + 1; slice <= current; slice++ {
		dead := &t.counts[uint64(slice-lifetime-1)&sliceMask]
		t.length -= *dead
		*dead = 0
	}
}

// Add adds an id, or renews it, so that it is remembered for a window from
// now, and reports whether it may have been added within the window before:
// false is certain. At capacity it returns [ErrFull] for an unseen id, or goes
// on, as [WhenFull] says, until it finds no slot for the id.
func (t *Table) Add(id []byte) (maybeSeen bool, err error) {
	x, y := t.hasher.id(id)
	return t.add(x, y)
}

// AddDigest is Add for a digest. One table takes either ids or digests: it
// does not know the digest of an id.
func (t *Table) AddDigest(d semel.Digest) (maybeSeen bool, err error) {
	x, y := t.hasher.digest(d)
	return t.add(x, y)
}

// Has reports whether an id may have been added within the window and not
// deleted since: false is certain.
func (t *Table) Has(id []byte) bool {
	x, y := t.hasher.id(id)
	return t.has(x, y)
}

// HasDigest is Has for a digest.
func (t *Table) HasDigest(d semel.Digest) bool {
	x, y := t.hasher.digest(d)
	return t.has(x, y)
}

// Delete forgets an id that was added once, and reports whether it did. An id
// that was added more than once is kept until its window ends, because the
// table cannot tell whether another id with the same fingerprint stands behind
// one of the Adds.
//
// Delete only what was added. An id that was not may have the fingerprint of
// one that was, with the probability that ErrorRate tells, and then that one is
// forgotten: the next Add of it answers that it is certainly new.
func (t *Table) Delete(id []byte) (forgotten bool) {
	x, y := t.hasher.id(id)
	return t.delete(x, y)
}

// DeleteDigest is Delete for a digest.
func (t *Table) DeleteDigest(d semel.Digest) (forgotten bool) {
	x, y := t.hasher.digest(d)
	return t.delete(x, y)
}

// Len returns how many fingerprints are live.
func (t *Table) Len() int { return t.length }

// Capacity returns how many live ids the table was made for.
func (t *Table) Capacity() int { return t.capacity }

// Over reports whether more ids are live than the table was made for.
func (t *Table) Over() bool { return t.length > t.capacity }

// Bytes returns the size of the table in memory.
func (t *Table) Bytes() int { return len(t.lines)*64 + len(t.stamps)*8 }

// Fill returns the share of slots that are live.
func (t *Table) Fill() float64 { return float64(t.length) / float64(len(t.lines)*lineSlots) }

// ErrorRate returns the probability with which an id that was not added is now
// called seen: the number of fingerprints it is compared with, over 2^26. It
// is estimated from up to 4,096 lines, evenly spread.
func (t *Table) ErrorRate() float64 {
	return t.compared(4096) / (1 << fingerprintBits)
}

// compared returns with how many live fingerprints an absent id is compared,
// as the mean over at most that many of its possible lines.
func (t *Table) compared(most int) float64 {
	step := (len(t.lines) + most - 1) / most
	live, read := 0, 0
	for home := 0; home < len(t.lines); home += step {
		read++
		at := home
		for range t.reach() {
			for _, slot := range t.lines[at][:lineSlots] {
				if slot != 0 && t.alive(at, slot) {
					live++
				}
			}
			if !t.goesOn(at) {
				break
			}
			at = t.next(at)
		}
	}
	return float64(live) / float64(read)
}

// place returns where an id belongs: its line, and its fingerprint as it
// stands in a slot. No fingerprint is 0, which marks an empty slot.
func (t *Table) place(x, y uint64) (home int, tag uint32) {
	index, _ := bits.Mul64(x, uint64(len(t.lines)))
	fingerprint := max(1, uint32(y>>(64-fingerprintBits)))
	return int(index), fingerprint << 6
}

// reach is how many lines are looked at, at most.
func (t *Table) reach() int { return min(reach, len(t.lines)) }

func (t *Table) next(at int) int {
	if at++; at < len(t.lines) {
		return at
	}
	return 0
}

// age returns how many slices ago the slice was that a word of a line has in
// its low 6 bits. All slices in a group are at most slack after its stamp, and
// were at most lifetime before it when it was set, so that 6 bits suffice
// however long nobody came by.
func (t *Table) age(at int, word uint32) int64 {
	newest := t.stamps[uint(at)/groupLines] + slack
	return t.time.current - newest + (newest-int64(word))&sliceMask
}

func (t *Table) alive(at int, slot uint32) bool { return t.age(at, slot) <= lifetime }

// goesOn reports whether an id that belongs to a line may be in the next.
func (t *Table) goesOn(at int) bool {
	word := t.lines[at][notes]
	return word&passed != 0 && t.age(at, word) <= lifetime
}

// find returns the line and slot of a live fingerprint.
func (t *Table) find(home int, tag uint32) (at, slot int, ok bool) {
	at = home
	for range t.reach() {
		for i, word := range t.lines[at][:lineSlots] {
			if word^tag < sliceCount && t.alive(at, word) {
				return at, i, true
			}
		}
		if !t.goesOn(at) {
			break
		}
		at = t.next(at)
	}
	return 0, 0, false
}

func (t *Table) has(x, y uint64) bool {
	_, _, ok := t.find(t.place(x, y))
	return ok
}

func (t *Table) add(x, y uint64) (bool, error) {
	home, tag := t.place(x, y)
	now := uint32(t.time.current) & sliceMask
	at, slot, seen := t.find(home, tag)
	if seen {
		t.settle(at)
		l := &t.lines[at]
		t.counts[l[slot]&sliceMask]--
		t.counts[now]++
		l[slot] = tag | now
		l[notes] |= shared << slot
		t.pass(home, at)
		return true, nil
	}
	if t.full == Refuse && t.length >= t.capacity {
		return false, ErrFull
	}
	at, slot, ok := t.free(home)
	if !ok {
		return false, ErrFull
	}
	l := &t.lines[at]
	l[slot] = tag | now
	l[notes] &^= shared << slot
	t.counts[now]++
	t.length++
	t.pass(home, at)
	return false, nil
}

// free returns the first slot that an id of a line can have. The lines it
// looked at are settled.
func (t *Table) free(home int) (at, slot int, ok bool) {
	at = home
	for range t.reach() {
		t.settle(at)
		l := t.lines[at][:lineSlots]
		for i, word := range l {
			if word == 0 {
				return at, i, true
			}
		}
		for i, word := range l {
			if !t.alive(at, word) {
				return at, i, true
			}
		}
		at = t.next(at)
	}
	return 0, 0, false
}

// pass notes in the lines from home to before at that an id went on.
func (t *Table) pass(home, at int) {
	for ; home != at; home = t.next(home) {
		t.settle(home)
		word := &t.lines[home][notes]
		*word = *word&^(passed|sliceMask) | passed | uint32(t.time.current)&sliceMask
	}
}

// settle rids the group of a line of what is dead if that has not been done
// for long, so that the present slice can be written into it.
func (t *Table) settle(at int) {
	group := uint(at) / groupLines
	if t.time.current-t.stamps[group] <= slack {
		return
	}
	first := int(group) * groupLines
	for at := first; at < min(first+groupLines, len(t.lines)); at++ {
		t.lines[at] = t.living(at)
	}
	t.stamps[group] = t.time.current
}

// living returns a line without what is dead.
func (t *Table) living(at int) line {
	l := t.lines[at]
	for i, word := range l[:lineSlots] {
		if word == 0 || !t.alive(at, word) {
			l[i] = 0
			l[notes] &^= shared << i
		}
	}
	if !t.goesOn(at) {
		l[notes] &^= passed | sliceMask
	}
	return l
}

func (t *Table) delete(x, y uint64) bool {
	at, slot, ok := t.find(t.place(x, y))
	if !ok {
		return false
	}
	l := &t.lines[at]
	if l[notes]&(shared<<slot) != 0 {
		return false
	}
	t.counts[l[slot]&sliceMask]--
	t.length--
	l[slot] = 0
	return true
}
