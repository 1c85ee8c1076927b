package memstore

import (
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/table"
)

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

// makeRoom tries to forget a key to make room for a new one, and reports
// whether there is room. It forgets expired keys. If there are none and the
// policy is Shorten, it forgets the keys that would expire first.
func (s *Store) makeRoom(now moment) bool {
	if now.nanos-s.swept.Load() >= int64(min(s.scale.Length(), time.Second)) {
		examined := 0
		for i := 0; ; i++ {
			if i == len(s.shards) {
				s.swept.Store(now.nanos)
				break
			}
			sh := s.lock(s.nextForRoom())
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
	return s.count.Load() < s.opts.MaxKeys || s.opts.OnFull == Shorten && s.shorten(now)
}

// nextForRoom returns the shards in turn, so that all of them are shortened
// alike.
func (s *Store) nextForRoom() byte { return byte(s.room.Add(1)) }

// shorten forgets the oldest sixteenth of the done keys of one shard.
func (s *Store) shorten(now moment) bool {
	for range s.shards {
		sh := s.lock(s.nextForRoom())
		if sh == nil {
			return false
		}
		forgotten, last := sh.forgetOldest(&s.scale)
		s.unlock(sh)
		if forgotten == 0 {
			continue
		}
		if s.opts.OnShorten != nil {
			by := time.Duration(s.scale.Time(last) - now.nanos)
			s.opts.OnShorten(Shortening{Forgotten: int64(forgotten), By: max(by, 0)})
		}
		return true
	}
	return false
}

// forgetOldest forgets about a sixteenth of the done keys that have a window,
// those that expire first. It returns how many keys it forgot, and the last of
// their expiries.
func (sh *shard) forgetOldest(scale *table.Scale) (forgotten int, last table.Tick) {
	var spread expirySpread
	sh.eachExpiry(scale, spread.extend)
	if spread.keys == 0 {
		return 0, 0
	}
	sh.eachExpiry(scale, spread.count)
	quota := (spread.keys + 15) / 16
	sure, last := spread.first(quota)
	// All older keys go. Of the keys that are about as old as the last one, the
	// quota decides how many go.
	forgotten = sh.forget(scale, sure, quota)
	return forgotten + sh.forget(scale, last, quota-forgotten), last
}

// eachExpiry passes the expiries of done keys that have a window to tell.
func (sh *shard) eachExpiry(scale *table.Scale, tell func(table.Tick)) {
	sh.done.EachExpiry(tell)
	for n := range sh.records.top {
		if r := sh.records.at(n); r.state == semel.Done && r.expires != never {
			tell(scale.Expiry(r.expires, 0))
		}
	}
}

// forget forgets done keys that expire at a tick or before it, at most most
// keys.
func (sh *shard) forget(scale *table.Scale, expiry table.Tick, most int) int {
	forgotten := sh.done.DeleteExpiring(expiry, most)
	for n := uint32(0); n < sh.records.top && forgotten < most; n++ {
		if r := sh.records.at(n); r.state == semel.Done && r.expires != never && scale.Expiry(r.expires, 0) <= expiry {
			sh.drop(r, n)
			forgotten++
		}
	}
	return forgotten
}

// expirySpread is a histogram of expiries.
type expirySpread struct {
	keys     int
	min, max table.Tick
	bins     [64]int
}

func (e *expirySpread) extend(t table.Tick) {
	if e.keys == 0 {
		e.min, e.max = t, t
	}
	e.min, e.max = min(e.min, t), max(e.max, t)
	e.keys++
}

func (e *expirySpread) width() table.Tick { return (e.max-e.min)/table.Tick(len(e.bins)) + 1 }

func (e *expirySpread) count(t table.Tick) { e.bins[(t-e.min)/e.width()]++ }

// first returns two expiries. Fewer than quota keys expire at sure or before,
// and at least quota keys expire at last or before.
func (e *expirySpread) first(quota int) (sure, last table.Tick) {
	last = e.min - 1
	for i, sum := 0, 0; sum < quota; i++ {
		sum += e.bins[i]
		sure, last = last, last+e.width()
	}
	return sure, min(last, e.max)
}
