package table

import "unsafe"

// Sweep removes expired digests in place and returns how many there were.
func (s *Shard[V]) Sweep(now Tick) int {
	if now <= s.base {
		return 0
	}
	removed := 0
	next := uint64(0) // the first slot that is not yet assigned
	for i := range s.slots {
		x := s.slots[i]
		if x.low == 0 {
			continue
		}
		s.slots[i] = slot[V]{}
		if s.expired(x.low, now) {
			removed++
			continue
		}
		next = max(next, home(x.high, s.homes))
		s.slots[next] = x
		next++
	}
	s.used -= removed
	s.rebase(now)
	return removed
}

// rebase moves the base to now. No remaining expiry is at now or before. The
// ring index of an expiry does not depend on the base, so no slot changes.
func (s *Shard[V]) rebase(now Tick) { s.base, s.phase = now, now%ring }

// Shrink frees memory if most of it is unused.
func (s *Shard[V]) Shrink() {
	if s.used == 0 {
		s.Clear()
	} else if len(s.slots) > 4*firstSlots && s.used < s.limit/3 {
		s.resize(s.homes/2, slack(s.homes/2))
	}
}

// makeRoom is called when a key finds no slot. It sweeps, and grows the shard
// if the sweep freed little. The share of growth varies with salt, which is
// some bits of the new key. So shards that fill alike grow at different times,
// and the memory of a table follows the number of its keys smoothly.
func (s *Shard[V]) makeRoom(now Tick, salt uint64) {
	if s.Sweep(now) > s.limit/8 {
		return
	}
	if s.used < s.limit/2 {
		// The last homes are crowded, which does not happen with uniform
		// digests at this load. More room behind them helps; more homes do not.
		s.resize(s.homes, 2*(uint64(len(s.slots))-s.homes))
		return
	}
	share := s.homes/8 + s.homes/8*(salt>>16&0xff)>>8
	homes := s.homes + max(share, firstSlots)
	s.resize(homes, slack(homes))
}

// resize moves to an array with about the given numbers of homes and of slots
// behind them. Go's heap rounds large sizes to whole pages.
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

// move copies the keys in order to new slots, which must be empty. It returns
// false, and leaves the shard unchanged, if the last homes are so crowded that
// the slack behind them is too small.
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

// slack returns the number of slots behind the given number of homes.
func slack(homes uint64) uint64 { return min(homes/8+8, maxSlack) }

// reservedSlots returns the sizes of an array that n keys fill well.
func reservedSlots(n int) (slots, homes int) {
	homes = n*100/reservePercent + 1
	return homes + int(slack(uint64(homes))), homes
}

// Reserve allocates memory for n digests in empty shards, among which the
// digests are spread evenly. Neighbouring shards share an allocation, so that
// the rounding to whole pages does not cost memory for each shard.
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

// Clear removes all digests and frees the memory.
func (s *Shard[V]) Clear() {
	s.slots, s.used = nil, 0
	s.move(nil, 0)
}
