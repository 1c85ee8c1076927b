package memstore

import "time"

// reserve counts one more key for a shard, unless the store is full.
func (s *Store) reserve(sh *shard) bool {
	if s.count.Add(1) > s.opts.MaxKeys {
		s.count.Add(-1)
		return false
	}
	sh.counted++
	return true
}

// roomKeys is about how many keys one claim examines in search of expired ones.
// The next claim continues from there.
const roomKeys = 1 << 17

// makeRoom tries to forget an expired key to make room for a new one, and reports
// whether there is room. It takes the shards in turn.
func (s *Store) makeRoom(now moment) bool {
	if now.nanos-s.swept.Load() >= int64(min(s.scale.Length(), time.Second)) {
		examined := 0
		for i := 0; ; i++ {
			if i == len(s.shards) {
				s.swept.Store(now.nanos)
				break
			}
			sh := s.lock(byte(s.room.Add(1)))
			if sh == nil {
				return false
			}
			examined += sh.size()
			forgotten := sh.sweep(now)
			s.unlock(sh)
			if forgotten > 0 {
				return true
			}
			if examined > roomKeys {
				break
			}
		}
	}
	return s.count.Load() < s.opts.MaxKeys
}
