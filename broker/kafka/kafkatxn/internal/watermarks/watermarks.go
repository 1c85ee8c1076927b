// Package watermarks knows how far each partition of the inputs has come if a repartition stage
// brings their records together.
package watermarks

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
)

// Times has the greatest time of the records of each source, which is a partition of an
// input. All times are in milliseconds since the Unix epoch. Later records of a source are
// newer than its greatest time, or out of order. So the smallest of these times says how far
// all sources together have come. One goroutine uses a Times at a time.
type Times struct {
	greatest map[string][]int64 // by input and partition; unknown before the first record
	low      int64              // the smallest of these times, if valid
	valid    bool
}

// unknown is the time of a source before its first record. All other times are greater.
const unknown = -1

// New returns the Times of inputs. sizes has their numbers of partitions. All times are
// unknown.
func New(sizes map[string]int32) *Times {
	t := &Times{greatest: map[string][]int64{}}
	for input, partitions := range sizes {
		t.grow(input, int(partitions))
	}
	return t
}

func (t *Times) grow(input string, partitions int) {
	list := t.greatest[input]
	for len(list) < partitions {
		list = append(list, unknown)
	}
	t.greatest[input], t.valid = list, false
}

// See notes that a source has come to a time, and reports whether the time is greater than
// the one before. A partition with a new number belongs to its input from then on. See
// ignores other inputs.
func (t *Times) See(source cluster.Partition, time int64) bool {
	list, ok := t.greatest[source.Topic]
	if !ok || source.Number < 0 {
		return false
	}
	if int(source.Number) >= len(list) {
		t.grow(source.Topic, int(source.Number)+1)
		list = t.greatest[source.Topic]
	}
	before := list[source.Number]
	if time <= before {
		return false
	}
	list[source.Number] = time
	t.valid = t.valid && before != t.low
	return true
}

// Low returns the smallest time, up to which all sources have come. It reports false if the
// time of a source is unknown, or if there are no sources.
func (t *Times) Low() (time int64, ok bool) {
	if !t.valid {
		t.low, t.valid = math.MaxInt64, true
		for _, list := range t.greatest {
			for _, time := range list {
				t.low = min(t.low, time)
			}
		}
	}
	return t.low, t.low != unknown && t.low != math.MaxInt64
}

// Clone returns a copy.
func (t *Times) Clone() *Times {
	c := &Times{greatest: maps.Clone(t.greatest), low: t.low, valid: t.valid}
	for input, list := range c.greatest {
		c.greatest[input] = slices.Clone(list)
	}
	return c
}

// Append appends the times. All numbers are uvarints:
//
//	smallest time that is known, or 0
//	for each input: length of its name, name, number of partitions; for each partition
//	its time - smallest + 1, or 0 if it is unknown
func (t *Times) Append(dst []byte) []byte {
	first := int64(math.MaxInt64)
	for _, list := range t.greatest {
		for _, time := range list {
			if time != unknown {
				first = min(first, time)
			}
		}
	}
	if first == math.MaxInt64 {
		first = 0
	}
	dst = binary.AppendUvarint(dst, uint64(first))
	for _, input := range slices.Sorted(maps.Keys(t.greatest)) {
		list := t.greatest[input]
		dst = append(binary.AppendUvarint(dst, uint64(len(input))), input...)
		dst = binary.AppendUvarint(dst, uint64(len(list)))
		for _, time := range list {
			later := uint64(0)
			if time != unknown {
				later = uint64(time-first) + 1
			}
			dst = binary.AppendUvarint(dst, later)
		}
	}
	return dst
}

// MaxSize returns the greatest number of bytes that Append appends.
func (t *Times) MaxSize() int {
	n := binary.MaxVarintLen64
	for input, list := range t.greatest {
		n += len(input) + (2+len(list))*binary.MaxVarintLen64
	}
	return n
}

// ErrTimes is the error of bytes that Append did not write.
var ErrTimes = errors.New("not a progress record of a repartition stage")

// Add adds the times that another Times has appended. Its
// error is ErrTimes; some of the times may be added then.
func (t *Times) Add(b []byte) error {
	c := state.Cursor{Rest: b}
	first := c.Uvarint()
	for len(c.Rest) > 0 && !c.Wrong {
		input, n := string(c.Bytes()), c.Uvarint()
		if n > uint64(len(c.Rest)) {
			return ErrTimes
		}
		for i := range n {
			if later := c.Uvarint(); later > 0 {
				t.See(cluster.Partition{Topic: input, Number: int32(i)}, int64(first+later-1))
			}
		}
	}
	if c.Wrong {
		return ErrTimes
	}
	return nil
}
