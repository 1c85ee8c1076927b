package window

import "hash/maphash"

// index finds groups by their keys. It is a hash table with linear probing. Millions of
// groups come and go together, and the map of Go takes twice as long for that. The map of Go
// keeps the keys, grows step by step, and compares a key before it is deleted.
type index struct {
	seed   maphash.Seed
	shards [64]shard // each grows on its own, so that no group waits for all others
	n      int
	// numbered has the groups by their numbers, and free has the numbers of no group. Lists of
	// numbers cost the garbage collector nothing.
	numbered []*group
	free     []uint32
}

type shard struct {
	places []place // a power of two
	n      int
}

type place struct {
	hash   uint32 // 0 is a free place
	number uint32 // of the group
}

func newIndex() index { return index{seed: maphash.MakeSeed()} }

// isThere is set in all hashes, so that none is 0.
const isThere = 1 << 25

// shard returns the shard of a hash.
func (x *index) shard(hash uint32) *shard { return &x.shards[hash>>26] }

// get returns the group of a key, or nil.
func (x *index) get(key []byte) *group {
	hash := uint32(maphash.Bytes(x.seed, key)) | isThere
	sh := x.shard(hash)
	if sh.n == 0 {
		return nil
	}
	for i := sh.home(hash); ; i = sh.after(i) {
		switch p := sh.places[i]; p.hash {
		case 0:
			return nil
		case hash:
			if g := x.numbered[p.number]; g.key == string(key) {
				return g
			}
		}
	}
}

// near appends the groups with the hashes of keys, which are nearly always those of the keys.
// It reads no group, so it hardly ever waits.
func (x *index) near(found []*group, keys [][]byte) []*group {
	for _, key := range keys {
		hash := uint32(maphash.Bytes(x.seed, key)) | isThere
		sh := x.shard(hash)
		if sh.n == 0 {
			continue
		}
		i := sh.home(hash)
		for sh.places[i].hash != 0 && sh.places[i].hash != hash {
			i = sh.after(i)
		}
		if p := sh.places[i]; p.hash != 0 {
			found = append(found, x.numbered[p.number])
		}
	}
	return found
}

// put adds a group. No other group has its key.
func (x *index) put(g *group) {
	g.hash = uint32(maphash.String(x.seed, g.key)) | isThere
	sh := x.shard(g.hash)
	if sh.n++; sh.n > len(sh.places)*3/4 {
		sh.grow()
	}
	if last := len(x.free) - 1; last >= 0 {
		g.number, x.free = x.free[last], x.free[:last]
		x.numbered[g.number] = g
	} else {
		g.number = uint32(len(x.numbered))
		x.numbered = append(x.numbered, g)
	}
	sh.set(place{g.hash, g.number})
	x.n++
}

// remove removes a group that was put.
func (x *index) remove(g *group) {
	sh := x.shard(g.hash)
	free := sh.home(g.hash)
	for sh.places[free] != (place{g.hash, g.number}) {
		free = sh.after(free)
	}
	// A group behind it takes the place, unless that is before the group's first place.
	for i := sh.after(free); sh.places[i].hash != 0; i = sh.after(i) {
		if first := sh.home(sh.places[i].hash); sh.distance(first, i) >= sh.distance(free, i) {
			sh.places[free], free = sh.places[i], i
		}
	}
	sh.places[free] = place{}
	g.hash = 0
	x.numbered[g.number] = nil
	x.free = append(x.free, g.number)
	if x.n--; x.n == 0 {
		x.numbered, x.free = nil, nil
	}
	if sh.n--; sh.n == 0 {
		sh.places = nil
	}
}

// at returns the group with a number, or nil.
func (x *index) at(number uint32) *group {
	if int(number) >= len(x.numbered) {
		return nil
	}
	return x.numbered[number]
}

func (s *shard) home(hash uint32) int      { return int(hash) & (len(s.places) - 1) }
func (s *shard) after(i int) int           { return (i + 1) & (len(s.places) - 1) }
func (s *shard) distance(from, to int) int { return (to - from) & (len(s.places) - 1) }

func (s *shard) set(p place) {
	i := s.home(p.hash)
	for s.places[i].hash != 0 {
		i = s.after(i)
	}
	s.places[i] = p
}

func (s *shard) grow() {
	old := s.places
	s.places = make([]place, max(2*len(old), 8))
	for _, p := range old {
		if p.hash != 0 {
			s.set(p)
		}
	}
}
