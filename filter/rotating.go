package filter

import (
	"math"
	"math/bits"
	"time"
)

// Rotating is a blocked Bloom filter over a sliding window. It has several
// generations. Each generation has room for the ids of the window divided by
// the number of generations less one. Ids go into the current generation. When
// that has had its share of time, the filter forgets the oldest
// generation and makes it the current one. So the filter remembers an id for a
// whole window after its last Add, and for at most one share longer.
//
// Eight generations are the default because they take the fewest bits for each
// id. With two generations, half of the bits hold ids that are older than the
// window. With many generations, each of them gets only a small part of the
// error rate.
//
// The bits of all generations are interleaved, so that one look at the probes
// of an id answers for all generations. The filter clears forgotten generations
// from a block when the next id falls into that block. So there is no pause
// when the window moves.
type Rotating struct {
	hasher hasher
	// words holds the groups of lanes. A group is a block of 512 positions. A
	// position has one bit, its lane, for each generation.
	words []uint64
	// stamps has, for each group, the generation that was current when the
	// group was last written. Lanes of later generations hold forgotten ids.
	stamps      []int64
	generations int
	logLanes    uint // log2(generations)
	probes      int
	capacity    int
	share       int // ids in one generation
	window      time.Duration
	full        WhenFull
	time        timeline // counts generations
	lengths     [maxGenerations]int
	ones        [maxGenerations]int
}

const maxGenerations = 16

// NewRotating returns an empty filter. Nil options ask for the defaults. The
// error wraps [semel.ErrInvalidRequest] and names each field that is out of
// bounds.
func NewRotating(opts *RotatingOptions) (*Rotating, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	share := shareOf(o.Capacity, o.Generations)
	groups, k := blockedSize(share, rateOf(o.ErrorRate, o.Generations))
	return &Rotating{
		hasher: newHasher(o.seed),
		words:  make([]uint64, groups*blockBits/64*o.Generations),
		stamps: make([]int64, groups),

		generations: o.Generations, logLanes: uint(bits.TrailingZeros(uint(o.Generations))),
		probes: k, capacity: o.Capacity, share: share,
		window: o.Window, full: o.WhenFull,
		time: timeline{slice: sliceOf(o.Window, o.Generations-1)},
	}, nil
}

// shareOf returns how many ids one generation holds.
func shareOf(capacity, generations int) int { return (capacity-1)/(generations-1) + 1 }

// rateOf returns the error rate of one generation. The filter is wrong about an
// id if any generation is wrong about it.
func rateOf(rate float64, generations int) float64 {
	return -math.Expm1(math.Log1p(-rate) / float64(generations))
}

// sliceOf divides a window into slices whose sum is at least the window.
func sliceOf(window time.Duration, slices int) int64 {
	n := int64(slices)
	return max(1, (int64(window)+n-1)/n)
}

// Advance sets the current time and forgets generations that are older than the
// window. It takes the same short time for any number of generations. A time
// before the last one changes nothing. Ids that were added before the first
// call count as added at that call.
//
// All times must come from one clock. A clock that jumps ahead ends the window
// early.
func (r *Rotating) Advance(now time.Time) {
	before := r.time.current
	r.forget(before, r.time.advance(now))
}

// Add adds an id and reports whether the id may have been added within the
// window before. False is certain. Adding a seen id starts its window again.
// When the current generation is full, Add returns [ErrFull] or continues, as
// [WhenFull] says. With ErrFull, maybeSeen is still right, but the filter
// remembers the id no longer than before.
func (r *Rotating) Add(id []byte) (maybeSeen bool, err error) {
	x, y := r.hasher.id(id)
	seen := r.seen(x, y)
	lane := r.lane(r.time.current)
	switch {
	case seen>>lane&1 == 1:
		return true, nil
	case r.lengths[lane] >= r.share && r.full == Refuse:
		return seen != 0, ErrFull
	}
	// An id that is only in older generations is added again, although it may
	// be a false positive. Otherwise the filter would forget the id with those
	// generations.
	r.set(x, y, lane)
	return seen != 0, nil
}

// Has reports whether an id may have been added within the window. False is
// certain.
func (r *Rotating) Has(id []byte) bool {
	x, y := r.hasher.id(id)
	return r.seen(x, y) != 0
}

// Len returns how many ids the generations hold together. An id that was added
// in two generations counts twice.
func (r *Rotating) Len() int {
	n := 0
	for _, length := range r.lengths {
		n += length
	}
	return n
}

// Over reports whether a generation holds more than its share of ids.
func (r *Rotating) Over() bool {
	for _, length := range r.lengths {
		if length > r.share {
			return true
		}
	}
	return false
}

// Bytes returns the size of the filter in memory.
func (r *Rotating) Bytes() int { return 8 * (len(r.words) + len(r.stamps)) }

// Fill returns the share of bits that are set, over all generations.
func (r *Rotating) Fill() float64 {
	n := 0
	for _, ones := range r.ones {
		n += ones
	}
	return float64(n) / float64(len(r.words)*64)
}

// ErrorRate returns the probability that the filter now reports an id as seen
// that was not added within the window. It is computed from the bits that are
// set, and reads at most 4,096 evenly spread groups of blocks.
func (r *Rotating) ErrorRate() float64 {
	const most = 4096
	step := (len(r.stamps) + most - 1) / most
	var sum [maxGenerations]float64
	read := 0
	for g := 0; g < len(r.stamps); g += step {
		lanes := r.lanes(g)
		group := r.group(g)
		for lane := range r.generations {
			mask := r.spread(1<<lane) & r.spread(lanes)
			set := 0
			for _, word := range group {
				set += bits.OnesCount64(word & mask)
			}
			sum[lane] += math.Pow(float64(set)/blockBits, float64(r.probes))
		}
		read++
	}
	none := 1.0
	for _, s := range sum {
		none *= 1 - s/float64(read)
	}
	return 1 - none
}

// timeline counts slices of time of equal length. The first slice starts at the
// first time that advance gets.
type timeline struct {
	slice   int64 // nanoseconds
	origin  int64 // Unix nanoseconds at which slice 0 starts
	current int64 // number of the current slice
	started bool
}

// advance moves to the slice of now and returns its number. The first call sets
// the origin. A time before the current slice changes nothing.
func (t *timeline) advance(now time.Time) int64 {
	at := max(0, now.UnixNano())
	if !t.started {
		t.origin, t.started = at, true
	}
	t.current = max(t.current, (at-t.origin)/t.slice)
	return t.current
}

// forget empties the counters of the generations in (before, now].
func (r *Rotating) forget(before, now int64) {
	for g := max(before, now-int64(r.generations)) + 1; g <= now; g++ {
		lane := r.lane(g)
		r.lengths[lane], r.ones[lane] = 0, 0
	}
}

func (r *Rotating) lane(generation int64) int { return int(generation) & (r.generations - 1) }

func (r *Rotating) group(g int) []uint64 {
	size := blockBits / 64 << r.logLanes
	return r.words[g*size : (g+1)*size]
}

// lanes returns the lanes of a group whose generations are not forgotten.
func (r *Rotating) lanes(g int) uint64 {
	all := uint64(1)<<r.generations - 1
	behind := r.time.current - r.stamps[g]
	if behind == 0 {
		return all
	}
	if behind >= int64(r.generations) {
		return 0
	}
	// The lanes after the lane of the stamp belong to generations that started
	// later. Their bits are older than the window.
	reused := uint64(1)<<behind - 1
	shift := r.lane(r.stamps[g] + 1)
	reused = (reused<<shift | reused>>(r.generations-shift)) & all
	return all &^ reused
}

// spread repeats lanes over a word.
func (r *Rotating) spread(lanes uint64) uint64 {
	return lanes * (math.MaxUint64 / (1<<r.generations - 1))
}

// settle clears the forgotten lanes of a group.
func (r *Rotating) settle(g int) {
	if r.stamps[g] == r.time.current {
		return
	}
	mask := r.spread(r.lanes(g))
	group := r.group(g)
	for i := range group {
		group[i] &= mask
	}
	r.stamps[g] = r.time.current
}

// seen returns the lanes in which all probes of an id are set. It uses the
// probes of Blocked, and like Blocked it has no branch that depends on them.
func (r *Rotating) seen(x, y uint64) uint64 {
	index, rest := bits.Mul64(x, uint64(len(r.stamps)))
	group := r.group(int(index))
	seen := r.lanes(int(index))
	for i := range r.probes {
		if i == maxProbes/2 {
			y = rest
		}
		y = bits.RotateLeft64(y, 9)
		at := y & (blockBits - 1) << r.logLanes
		seen &= group[at>>6] >> (at & 63)
	}
	return seen
}

// set sets the bits of an id in a lane.
func (r *Rotating) set(x, y uint64, lane int) {
	index, rest := bits.Mul64(x, uint64(len(r.stamps)))
	r.settle(int(index))
	group := r.group(int(index))
	ones := 0
	for i := range r.probes {
		if i == maxProbes/2 {
			y = rest
		}
		y = bits.RotateLeft64(y, 9)
		at := y&(blockBits-1)<<r.logLanes + uint64(lane)
		word := &group[at>>6]
		ones += int(^*word >> (at & 63) & 1)
		*word |= 1 << (at & 63)
	}
	r.ones[lane] += ones
	r.lengths[lane]++
}
