package filter

import (
	"math"
	"math/bits"
	"time"

	"github.com/semel-dev/semel"
)

// Rotating is a blocked Bloom filter over a sliding window. It has several
// generations, each with a window's ids divided by the number of generations
// less one: ids go into the current one, and when that has had its share of
// time or of ids, the oldest is forgotten and becomes the current one. So an
// id is remembered for a whole window after it was last added, and for up to
// one share longer.
//
// Eight generations are the default because that is where the bits per id are
// fewest: with two, half of the bits hold what is older than the window, and
// with many each generation must have its small part of the error.
//
// The generations lie bit by bit next to each other, so that one look at the
// probes of an id answers for all of them, and a block is cleared of forgotten
// generations when an id next falls into it: there is no pause when the
// window moves.
type Rotating struct {
	hasher hasher
	// words holds the groups of lanes. A group is a block of 512 positions; a
	// position is a lane of one bit for each generation.
	words []uint64
	// stamps has for each group the generation that was current when the
	// group was last written: lanes of later ones hold what is forgotten.
	stamps      []int64
	generations int
	logLanes    uint // log2(generations)
	probes      int
	capacity    int
	share       int // ids in one generation
	window      time.Duration
	full        WhenFull
	time        timeline // counts generations, also where they go by count
	lengths     [maxGenerations]int
	ones        [maxGenerations]int
}

const maxGenerations = 16

// NewRotating returns an empty filter. A nil opts asks for the defaults. The
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
		hasher: newHasher(o.Seed),
		words:  make([]uint64, groups*blockBits/64*o.Generations),
		stamps: make([]int64, groups),

		generations: o.Generations, logLanes: uint(bits.TrailingZeros(uint(o.Generations))),
		probes: k, capacity: o.Capacity, share: share,
		window: o.Window, full: o.WhenFull,
		time: timeline{slice: sliceOf(o.Window, o.Generations-1)},
	}, nil
}

// shareOf is how many ids one generation holds.
func shareOf(capacity, generations int) int { return (capacity-1)/(generations-1) + 1 }

// rateOf is the error rate of one generation: an id is wrongly seen if any one
// of them calls it so.
func rateOf(rate float64, generations int) float64 {
	return -math.Expm1(math.Log1p(-rate) / float64(generations))
}

// sliceOf divides a window into slices that together are no shorter.
func sliceOf(window time.Duration, slices int) int64 {
	n := int64(slices)
	return max(1, (int64(window)+n-1)/n)
}

// Advance tells the filter the time. Generations older than the window are
// forgotten; it takes the same short time however many they are. A time before
// the last one changes nothing. What is added before the first call counts as
// added at that call. In a window by count it does nothing.
//
// The time must be that of one clock, also over a restart: a clock that jumps
// ahead ends the window early.
func (r *Rotating) Advance(now time.Time) {
	if r.window == 0 {
		return
	}
	before := r.time.current
	r.forget(before, r.time.advance(now))
}

// Add adds an id, also one that is seen already, so that it is remembered for
// a window from now, and reports whether it may have been added within the
// window before: false is certain. When the current generation is full it
// returns [ErrFull], or goes on, as [WhenFull] says; with ErrFull maybeSeen
// still holds, but the id is not remembered any longer than before.
func (r *Rotating) Add(id []byte) (maybeSeen bool, err error) {
	x, y := r.hasher.id(id)
	return r.add(x, y)
}

// AddDigest is Add for a digest. One filter takes either ids or digests: it
// does not know the digest of an id.
func (r *Rotating) AddDigest(d semel.Digest) (maybeSeen bool, err error) {
	x, y := r.hasher.digest(d)
	return r.add(x, y)
}

// Has reports whether an id may have been added within the window: false is
// certain.
func (r *Rotating) Has(id []byte) bool {
	x, y := r.hasher.id(id)
	return r.seen(x, y) != 0
}

// HasDigest is Has for a digest.
func (r *Rotating) HasDigest(d semel.Digest) bool {
	x, y := r.hasher.digest(d)
	return r.seen(x, y) != 0
}

// Len returns how many ids the generations hold together. An id that was added
// again in a later generation counts in both.
func (r *Rotating) Len() int {
	n := 0
	for _, length := range r.lengths {
		n += length
	}
	return n
}

// Capacity returns how many ids a window was made for. All generations
// together hold one share more.
func (r *Rotating) Capacity() int { return r.capacity }

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

// ErrorRate returns the probability with which an id that was not added within
// the window is now called seen. It follows from the bits that are set, and
// reads up to 4,096 groups of blocks, evenly spread.
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

// timeline counts slices of time of one length, from the first time it is
// given.
type timeline struct {
	slice   int64 // nanoseconds
	origin  int64 // Unix nanoseconds at which slice 0 starts
	current int64 // number of the current slice
	started bool
}

// advance moves to the slice of now and returns its number. The first call
// fixes the origin; a time before the current slice changes nothing.
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

// lanes returns the lanes of a group that hold generations still remembered.
func (r *Rotating) lanes(g int) uint64 {
	all := uint64(1)<<r.generations - 1
	behind := r.time.current - r.stamps[g]
	if behind == 0 {
		return all
	}
	if behind >= int64(r.generations) {
		return 0
	}
	// The lanes that follow the stamp's belong to generations that started
	// since; what they hold is older.
	reused := uint64(1)<<behind - 1
	shift := r.lane(r.stamps[g] + 1)
	reused = (reused<<shift | reused>>(r.generations-shift)) & all
	return all &^ reused
}

// spread repeats lanes over a word.
func (r *Rotating) spread(lanes uint64) uint64 {
	return lanes * (math.MaxUint64 / (1<<r.generations - 1))
}

// settle clears a group of what is forgotten.
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

// seen returns the lanes in which all probes of an id are set. Its probes are
// those of Blocked, and like there no branch depends on them.
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

func (r *Rotating) add(x, y uint64) (bool, error) {
	seen := r.seen(x, y)
	lane := r.lane(r.time.current)
	if seen>>lane&1 == 1 {
		return true, nil
	}
	if r.lengths[lane] >= r.share {
		switch {
		case r.window == 0:
			r.time.current++
			r.forget(r.time.current-1, r.time.current)
			lane = r.lane(r.time.current)
		case r.full == Refuse:
			return seen != 0, ErrFull
		}
	}
	// An id that only older generations have is added again, although it may
	// be a false positive: were it not, it would be forgotten with them.
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
	return seen != 0, nil
}
