package redisstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

const (
	bitsPerBlock  = 512
	bytesPerBlock = bitsPerBlock / 8
	maxBlocks     = 512 << 20 / bytesPerBlock // the longest string of a server
	// probesPerWord is the number of positions of 9 bits in a word.
	probesPerWord = 7
	maxProbes     = 4 * probesPerWord
)

// bitsForm keeps a filter in a string. GETRANGE reads the block of a key.
// BITFIELD sets the bits of a key and returns their previous values, in one
// step.
type bitsForm struct {
	capacity int64
	blocks   uint64
	probes   int

	mu sync.Mutex // guards the fields below
	// current is the filter that was added to last. count is how many keys it
	// holds, as far as is known. untold is how many of these keys this process
	// has not yet added to the counter on the server.
	current       string
	count, untold int64
}

func newBitsForm(o *FilterOptions) (*bitsForm, error) {
	blocks, probes := blockedSize(float64(o.Capacity), o.sliceRate())
	if blocks > maxBlocks {
		return nil, fmt.Errorf("redisstore: FilterOptions.Capacity: %d keys at the rate %g take %.0f MiB for a slice, but a string holds at most %d MiB: %w",
			o.Capacity, o.Rate, blocks*bytesPerBlock/(1<<20), maxBlocks*bytesPerBlock>>20, semel.ErrInvalidRequest)
	}
	return &bitsForm{capacity: o.Capacity, blocks: uint64(blocks), probes: probes}, nil
}

// blockedSize returns the number of blocks, and the number of bits for each
// key, with which n keys keep a rate. For each number of bits, bisection finds
// the highest load.
func blockedSize(n, rate float64) (blocks float64, probes int) {
	blocks = math.Inf(1)
	for k := 1; k <= maxProbes; k++ {
		low, high := 0.0, float64(bitsPerBlock)
		for range 40 {
			if load := (low + high) / 2; blockedRate(load, k) <= rate {
				low = load
			} else {
				high = load
			}
		}
		if b := math.Ceil(n / low); b < blocks {
			blocks, probes = b, k
		}
	}
	return max(1, blocks), probes
}

// blockedRate returns the rate of a filter whose blocks hold load keys on
// average. It is the mean rate of a block with i keys over the Poisson
// distribution of i (Putze, Sanders and Singler, "Cache-, Hash- and
// Space-Efficient Bloom Filters", 2007).
func blockedRate(load float64, probes int) float64 {
	k := float64(probes)
	chance, sum := math.Exp(-load), 0.0
	for i := 1.0; i < load+12*math.Sqrt(load)+30; i++ {
		chance *= load / i
		sum += chance * math.Pow(-math.Expm1(k*i*math.Log1p(-1.0/bitsPerBlock)), k)
	}
	return sum
}

// place returns the offset of the block of a digest, in bits.
func (f *bitsForm) place(d *semel.Digest) uint64 {
	block, _ := bits.Mul64(binary.LittleEndian.Uint64(d[:8]), f.blocks)
	return block * bitsPerBlock
}

// positions writes the positions of a digest's bits in its block into room, and
// returns them.
func (f *bitsForm) positions(d *semel.Digest, room *[maxProbes]uint64) []uint64 {
	seed := binary.LittleEndian.Uint64(d[8:])
	word := seed
	for i := range f.probes {
		if i > 0 && i%probesPerWord == 0 {
			word = mix(seed + uint64(i))
		}
		room[i] = word % bitsPerBlock
		word /= bitsPerBlock
	}
	return room[:f.probes]
}

// mix derives a word from another one (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func (f *bitsForm) look(b rueidis.Builder, key string, digests []semel.Digest) []rueidis.Completed {
	commands := make([]rueidis.Completed, len(digests))
	for i := range digests {
		from := int64(f.place(&digests[i]) / 8)
		commands[i] = b.Getrange().Key(key).Start(from).End(from + bytesPerBlock - 1).Build()
	}
	return commands
}

func (f *bitsForm) looked(results []rueidis.RedisResult, digests []semel.Digest, seen []bool) error {
	var room [maxProbes]uint64
	for i := range results {
		block, err := results[i].AsBytes()
		if err != nil {
			return storeError("filter", err)
		}
		missing := func(at uint64) bool {
			return at/8 >= uint64(len(block)) || block[at/8]&(0x80>>(at%8)) == 0
		}
		seen[i] = seen[i] || !slices.ContainsFunc(f.positions(&digests[i], &room), missing)
	}
	return nil
}

func (f *bitsForm) add(b rueidis.Builder, key string, digests []semel.Digest, until time.Time) ([]rueidis.Completed, error) {
	untold, err := f.begin(key)
	if err != nil {
		return nil, err
	}
	var room [maxProbes]uint64
	commands := make([]rueidis.Completed, 0, len(digests)+3)
	for i := range digests {
		block := f.place(&digests[i])
		args := make([]string, 0, 4*f.probes)
		for _, at := range f.positions(&digests[i], &room) {
			args = append(args, "SET", "u1", strconv.FormatUint(block+at, 10), "1")
		}
		commands = append(commands, b.Arbitrary("BITFIELD").Keys(key).Args(args...).Build())
	}
	counter := key + ":keys"
	return append(commands,
		b.Pexpireat().Key(key).MillisecondsTimestamp(until.UnixMilli()).Build(),
		b.Incrby().Key(counter).Increment(untold).Build(),
		b.Pexpireat().Key(counter).MillisecondsTimestamp(until.UnixMilli()).Build(),
	), nil
}

// begin takes the keys that are not yet counted on the server, and refuses if
// the filter is full. A module refuses by itself, but a string would accept
// more keys at a growing rate.
func (f *bitsForm) begin(key string) (untold int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current != key {
		f.current, f.count, f.untold = key, 0, 0
	}
	if f.count+f.untold >= f.capacity {
		return 0, fmt.Errorf("redisstore: filter: the slice is full with %d keys: %w", f.capacity, semel.ErrStoreFull)
	}
	untold, f.untold = f.untold, 0
	return untold, nil
}

func (f *bitsForm) added(key string, results []rueidis.RedisResult, n int) error {
	var fresh int64
	for _, result := range results[:n] {
		before, err := result.AsIntSlice()
		if err != nil {
			return storeError("filter", err)
		}
		if slices.Contains(before, 0) {
			fresh++
		}
	}
	count, err := results[n+1].AsInt64()
	if err != nil {
		return storeError("filter", err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.current == key {
		f.count = max(f.count, count)
		f.untold += fresh
	}
	return nil
}

// check does nothing: the settings say all about a filter in this form.
func (f *bitsForm) check(context.Context, rueidis.Client, string) error { return nil }

// moduleForm keeps a filter with the BF commands of a module.
type moduleForm struct {
	capacity int64
	rate     float64
}

func newModuleForm(o *FilterOptions) *moduleForm { return &moduleForm{o.Capacity, o.sliceRate()} }

func items(digests []semel.Digest) []string {
	list := make([]string, len(digests))
	for i := range digests {
		list[i] = string(digests[i][:])
	}
	return list
}

func (f *moduleForm) look(b rueidis.Builder, key string, digests []semel.Digest) []rueidis.Completed {
	return []rueidis.Completed{b.BfMexists().Key(key).Item(items(digests)...).Build()}
}

func (f *moduleForm) looked(results []rueidis.RedisResult, digests []semel.Digest, seen []bool) error {
	answers, err := results[0].ToArray()
	if err != nil {
		return storeError("filter", err)
	}
	if len(answers) != len(digests) {
		return fmt.Errorf("redisstore: filter: BF.MEXISTS answered for %d of %d: %w", len(answers), len(digests), semel.ErrCorrupt)
	}
	for i := range answers {
		there, err := answers[i].AsBool()
		if err != nil {
			return storeError("filter", err)
		}
		seen[i] = seen[i] || there
	}
	return nil
}

// add creates the filter if it does not exist. The filter is never a scaling
// one, which BF.MADD would create.
func (f *moduleForm) add(b rueidis.Builder, key string, digests []semel.Digest, until time.Time) ([]rueidis.Completed, error) {
	return []rueidis.Completed{
		b.BfInsert().Key(key).Capacity(f.capacity).Error(f.rate).Nonscaling().Items().Item(items(digests)...).Build(),
		b.Pexpireat().Key(key).MillisecondsTimestamp(until.UnixMilli()).Build(),
	}, nil
}

// added reads an answer that a full filter cuts short. The answer has true for
// each key that was not there before, then one error, and nothing for the
// remaining keys, which were not added.
func (f *moduleForm) added(_ string, results []rueidis.RedisResult, n int) error {
	answers, err := results[0].ToArray()
	if err != nil {
		return fullError(err)
	}
	for i := range answers {
		if _, err := answers[i].AsBool(); err != nil {
			return fullError(err)
		}
	}
	if len(answers) != n {
		return fmt.Errorf("redisstore: filter: BF.INSERT answered for %d of %d: %w", len(answers), n, semel.ErrOutcomeUnknown)
	}
	return nil
}

func fullError(err error) error {
	if answer, ok := rueidis.IsRedisErr(err); ok && strings.Contains(answer.Error(), "filter is full") {
		return fmt.Errorf("redisstore: filter: %w: %w", semel.ErrStoreFull, err)
	}
	return storeError("filter", err)
}

// check refuses a scaling filter, which has no fixed rate, and a filter of
// another size or rate. Someone may have made such a filter by hand.
func (f *moduleForm) check(ctx context.Context, client rueidis.Client, key string) error {
	info, err := client.Do(ctx, client.B().BfInfo().Key(key).Build()).AsMap()
	if answer, ok := rueidis.IsRedisErr(err); ok && strings.Contains(strings.ToLower(answer.Error()), "not found") {
		return nil
	}
	if err != nil {
		return storeError("filter", err)
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("redisstore: filter: the filter in %s "+format+": %w", append(append([]any{key}, args...), semel.ErrInvalidRequest)...)
	}
	number := func(field string) int64 {
		m, ok := info[field]
		if !ok {
			return -1
		}
		n, err := m.AsInt64()
		if err != nil {
			return -1
		}
		return n
	}
	if n := number("Expansion rate"); n > 0 || number("Number of filters") != 1 {
		return refuse("is a scaling filter, whose rate has no bound; make it NONSCALING")
	}
	if n := number("Capacity"); n != f.capacity {
		return refuse("has a capacity of %d keys, not %d", n, f.capacity)
	}
	// The module does not report the rate, but the rate follows from the size.
	// A tenth more or less is half or twice the rate.
	bytes := float64(f.capacity) * -math.Log(f.rate) / (math.Ln2 * math.Ln2) / 8
	if n := float64(number("Size")); math.Abs(n-bytes) > bytes/30+512 {
		return refuse("takes %.0f bytes, at the rate %.2g it would take %.0f", n, f.rate, bytes)
	}
	return nil
}
