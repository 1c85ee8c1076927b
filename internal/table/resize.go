package table

import "unsafe"

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
	next := uint64(0) // the first slot that is not yet given away
	for i := range s.slots {
		x := s.slots[i]
		if x.low == 0 {
			continue
		}
		s.slots[i] = slot[V]{}
		if removed < most && s.expired(x.low, expiry) {
			removed++
			continue
		}
		next = max(next, home(x.high, s.homes))
		s.slots[next] = x
		next++
	}
	s.used -= removed
	return removed
}

// rebase moves the base to now, of which no expiry is left at or before. The
// ring index of an expiry does not depend on the base, so no slot changes.
func (s *Shard[V]) rebase(now Tick) { s.base, s.phase = now, now%ring }

// Shrink gives memory back if most of it is unused.
func (s *Shard[V]) Shrink() {
	if s.used == 0 {
		s.Clear()
	} else if len(s.slots) > 4*firstSlots && s.used < s.limit/3 {
		s.resize(s.homes/2, slack(s.homes/2))
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
		s.resize(s.homes, 2*(uint64(len(s.slots))-s.homes))
		return
	}
	grow := s.homes/8 + s.homes/8*(salt>>16&0xff)>>8
	homes := s.homes + max(grow, firstSlots)
	s.resize(homes, slack(homes))
}

// resize moves to an array with about the given number of homes and of slots
// behind them: beyond its small size classes Go's heap gives whole pages.
func (s *Shard[V]) resize(homes, behind uint64) {
	const page, large = 8 << 10, 32 << 10
	size := uint64(unsafe.Sizeof(slot[V]{}))
	for {
		n := homes + behind
		if n*size > large {
			n = (n*size + page/2) / page * page / size
			if n == uint64(len(s.slots)) {
				n += page / size
			}
		}
		if s.move(make([]slot[V], n), n-behind) {
			return
		}
		behind *= 2
	}
}

// move takes slots, all empty, into use and copies the keys in order. It
// reports false, and leaves the shard as it was, if the last homes are so
// crowded that the slack behind them does not suffice.
func (s *Shard[V]) move(slots []slot[V], homes uint64) bool {
	next := uint64(0)
	for i := range s.slots {
		x := &s.slots[i]
		if x.low == 0 {
			continue
		}
		next = max(next, home(x.high, homes))
		if next+1 >= uint64(len(slots)) {
			return false
		}
		slots[next] = *x
		next++
	}
	s.slots, s.homes = slots, homes
	s.limit = int(homes * loadPercent / 100)
	s.hintHomes.Store(homes)
	s.hintAddress.Store(uintptr(unsafe.Pointer(unsafe.SliceData(slots))))
	return true
}

// slack returns how many slots stand behind the given number of homes.
func slack(homes uint64) uint64 { return min(homes/8+8, maxSlack) }

// reservedSlots returns the array that n keys are expected to fill well.
func reservedSlots(n int) (slots, homes int) {
	homes = n*100/reservePercent + 1
	return homes + int(slack(uint64(homes))), homes
}

// Reserve takes memory for n digests in all in empty shards among which they
// are spread evenly. Neighbours share an allocation, so that no shard pays for
// the rounding of its own to whole pages.
func Reserve[V Value](shards []*Shard[V], n int64) {
	const together = 16
	if n == 0 {
		return
	}
	size, homes := reservedSlots(int(n / int64(len(shards))))
	for len(shards) > 0 {
		group := shards[:min(together, len(shards))]
		all := make([]slot[V], size*len(group))
		for i, s := range group {
			s.move(all[i*size:(i+1)*size:(i+1)*size], uint64(homes))
			s.limit = homes * reservedLoadPercent / 100
		}
		shards = shards[len(group):]
	}
}

// Clear removes everything and gives its memory back.
func (s *Shard[V]) Clear() {
	s.slots, s.used = nil, 0
	s.move(nil, 0)
}
