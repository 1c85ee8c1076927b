package table

import "unsafe"

const (
	firstLines = 4
	maxSlack   = 16
	// At most this percentage of the homes' slots is used before a shard
	// grows.
	loadPercent = 93
	// A reserved shard is sized for a lower load, but may be filled beyond
	// loadPercent before it grows: with the keys that were expected some
	// shards get more than their share.
	reservePercent, reservedLoadPercent = 88, 95
)

// Sweep removes what is expired, in place, and returns how many digests that
// were.
func (s *Shard[V]) Sweep(now Tick) int {
	if now <= s.base {
		return 0
	}
	removed := s.DeleteExpiring(now, s.used)
	s.rebase(now)
	return removed
}

// DeleteExpiring removes, in place, at most most digests whose expiry is at a
// tick or before, and returns how many.
func (s *Shard[V]) DeleteExpiring(expiry Tick, most int) (removed int) {
	for l := range s.lines {
		// The lines before this one are as they will be. What stays of this one
		// goes where there is room for it from its home on, at worst back.
		old := s.lines[l]
		s.lines[l] = line[V]{}
		for i := range old {
			switch x := &old[i]; {
			case x.low == 0:
			case removed < most && s.expired(x.low, expiry):
				removed++
			default:
				place(s.lines, home(x.high, s.homes), x)
			}
		}
	}
	s.used -= removed
	return removed
}

// rebase moves the base to now, of which no expiry is left at or before. The
// ring index of an expiry does not depend on the base, so no slot changes.
func (s *Shard[V]) rebase(now Tick) { s.base, s.phase = now, now%ring }

// Clear removes everything and gives its memory back.
func (s *Shard[V]) Clear() {
	s.used = 0
	s.use(nil, 0)
}

// Shrink gives memory back if most of it is unused.
func (s *Shard[V]) Shrink() {
	if s.used == 0 {
		s.Clear()
	} else if len(s.lines) > 4*firstLines && s.used < s.limit/3 {
		s.resize(s.homes/2, slack(s.homes/2))
	}
}

// Reserve takes memory for n digests in all in empty shards among which they
// are spread evenly. Neighbours share an allocation, so that no shard pays for
// the rounding of its own to whole pages.
func Reserve[V Value](shards []*Shard[V], n int64) {
	const together = 16
	if n == 0 {
		return
	}
	homes := uint64(n)/uint64(len(shards))*100/reservePercent/lineSlots + 1
	size := homes + slack(homes)
	for len(shards) > 0 {
		group := shards[:min(together, len(shards))]
		all := make([]line[V], size*uint64(len(group)))
		for i, s := range group {
			part := all[uint64(i)*size:][:size:size]
			s.use(part, homes)
			s.limit = int(homes * lineSlots * reservedLoadPercent / 100)
		}
		shards = shards[len(group):]
	}
}

// makeRoom is called when a key finds no slot: it sweeps, and if that freed
// little it grows. The share of growth varies with salt, some bits of the new
// key: the shards of a table that fill alike then grow at different times, and
// its memory follows the number of its keys smoothly.
func (s *Shard[V]) makeRoom(now Tick, salt uint64) {
	if s.Sweep(now) > s.limit/8 {
		return
	}
	if s.used < s.limit/2 {
		// The last homes are crowded, which uniform digests do not bring about
		// at such a load: room behind them helps, and more homes do not.
		s.resize(s.homes, 2*(uint64(len(s.lines))-s.homes))
		return
	}
	grow := s.homes/8 + s.homes/8*(salt>>16&0xff)>>8
	homes := s.homes + max(grow, firstLines)
	s.resize(homes, slack(homes))
}

// resize moves to an array with the given numbers of homes and of lines behind
// them, or a few more: beyond its small size classes Go's heap gives whole
// pages in any case.
func (s *Shard[V]) resize(homes, behind uint64) {
	const page, large = 8 << 10, 32 << 10
	size := uint64(unsafe.Sizeof(line[V]{}))
	for {
		n := homes + behind
		if n*size > large {
			n = (n*size + page - 1) &^ (page - 1) / size
		}
		if s.move(make([]line[V], n), n-behind) {
			return
		}
		behind *= 2
	}
}

// move copies the keys to new lines, all empty, and takes those into use. It
// reports false, and leaves the shard as it was, if the last homes are so
// crowded that the lines behind them do not suffice.
func (s *Shard[V]) move(lines []line[V], homes uint64) bool {
	for l := range s.lines {
		b := &s.lines[l]
		for i := range b.used() {
			if !place(lines, home(b[i].high, homes), &b[i]) {
				return false
			}
		}
	}
	s.use(lines, homes)
	return true
}

// use takes lines into use.
func (s *Shard[V]) use(lines []line[V], homes uint64) {
	s.lines, s.homes = lines, homes
	s.limit = int(homes * lineSlots * loadPercent / 100)
	s.hintHomes.Store(homes)
	s.hintAddress.Store(uintptr(unsafe.Pointer(unsafe.SliceData(lines))))
}

// place puts a key into the first line with room from its home on. It reports
// false if there is none.
func place[V Value](lines []line[V], home uint64, x *slot[V]) bool {
	for l := home; l < uint64(len(lines)); l++ {
		b := &lines[l]
		if b[lineSlots-1].low == 0 {
			b[b.used()%lineSlots] = *x
			return true
		}
	}
	return false
}

// slack returns how many lines stand behind the given number of homes.
func slack(homes uint64) uint64 { return min(homes/8+2, maxSlack) }
