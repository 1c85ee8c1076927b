package redisstore

import (
	"context"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
)

// moduleForm keeps a filter by the BF commands of a module.
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

// add makes the filter if it is not there: never a scaling one, as BF.MADD
// would.
func (f *moduleForm) add(b rueidis.Builder, key string, digests []semel.Digest, until time.Time) ([]rueidis.Completed, error) {
	return []rueidis.Completed{
		b.BfInsert().Key(key).Capacity(f.capacity).Error(f.rate).Nonscaling().Items().Item(items(digests)...).Build(),
		b.Pexpireat().Key(key).MillisecondsTimestamp(until.UnixMilli()).Build(),
	}, nil
}

// added reads an answer that a full filter cuts short: it has true where a key
// was not there before, then one error, and nothing for the rest, which was not
// added. That nothing must not be read as "there before".
func (f *moduleForm) added(_ string, results []rueidis.RedisResult, seen []bool) (int, error) {
	answers, err := results[0].ToArray()
	if err != nil {
		return 0, fullError(err)
	}
	for i := range answers {
		fresh, err := answers[i].AsBool()
		if err != nil {
			return i, fullError(err)
		}
		if i < len(seen) && !fresh {
			seen[i] = true
		}
	}
	if len(answers) != len(seen) {
		return min(len(answers), len(seen)), fmt.Errorf("redisstore: filter: BF.INSERT answered for %d of %d: %w", len(answers), len(seen), semel.ErrOutcomeUnknown)
	}
	return len(seen), nil
}

func fullError(err error) error {
	if answer, ok := rueidis.IsRedisErr(err); ok && strings.Contains(answer.Error(), "filter is full") {
		return fmt.Errorf("redisstore: filter: %w: %w", semel.ErrStoreFull, err)
	}
	return storeError("filter", err)
}

// check refuses a filter that grows by itself, which has no rate, and one of
// another size or rate, as a filter made by hand may be.
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
		return refuse("grows, so that its rate is not bounded: it should be NONSCALING")
	}
	if n := number("Capacity"); n != f.capacity {
		return refuse("has a capacity of %d keys, not %d", n, f.capacity)
	}
	// The module does not tell the rate, but the size follows from it: a tenth
	// more or less is the rate halved or doubled.
	bytes := float64(f.capacity) * -math.Log(f.rate) / (math.Ln2 * math.Ln2) / 8
	if n := float64(number("Size")); math.Abs(n-bytes) > bytes/30+512 {
		return refuse("takes %.0f bytes, at the rate %.2g it would take %.0f", n, f.rate, bytes)
	}
	return nil
}
