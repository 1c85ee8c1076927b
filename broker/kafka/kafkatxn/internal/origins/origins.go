// Package origins knows how far each partition has come whose records a repartition stage
// mixes.
package origins

import (
	"encoding/binary"
	"errors"
	"maps"
	"math"
	"slices"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
)

// Times has the greatest time of the records of each origin, which is a partition of an
// input. All times are in milliseconds since the Unix epoch. No record of the origin can be
// older, but for those that are late. So the smallest of these times says how far a mix of
// all origins has come. One goroutine uses it at a time.
type Times struct {
	greatest map[string][]int64 // by input and partition; unknown before the first record
	low      int64              // the smallest
	valid    bool               // low is right
}

// unknown is the time of an origin before its first record. All others are greater.
const unknown = -1

// New returns the Times of inputs, which have numbers of partitions. Nothing is known of
// their records yet.
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

// See notes the time of a record, or an earlier one, and reports whether that is news. A
// partition that is new belongs to its input from then on. Another input is ignored.
func (t *Times) See(origin cluster.Partition, time int64) bool {
	list, ok := t.greatest[origin.Topic]
	if !ok || origin.Number < 0 {
		return false
	}
	if int(origin.Number) >= len(list) {
		t.grow(origin.Topic, int(origin.Number)+1)
		list = t.greatest[origin.Topic]
	}
	before := list[origin.Number]
	if time <= before {
		return false
	}
	list[origin.Number] = time
	t.valid = t.valid && before != t.low
	return true
}

// Low returns the smallest time, up to which all origins have come. It reports false if
// there is an origin of which nothing is known, or none at all.
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

// MaxSize is the greatest length of what Append appends.
func (t *Times) MaxSize() int {
	n := binary.MaxVarintLen64
	for input, list := range t.greatest {
		n += len(input) + (2+len(list))*binary.MaxVarintLen64
	}
	return n
}

// ErrTimes is the error of bytes that Append has not made.
var ErrTimes = errors.New("no times of the inputs of a repartition stage")

// Add adds what another Times has appended, and reports whether there is news. Its error is
// ErrTimes; then it may have added a part.
func (t *Times) Add(b []byte) (news bool, err error) {
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			err, b = ErrTimes, nil
			return 0
		}
		b = b[size:]
		return n
	}
	first := number()
	for len(b) > 0 {
		n := number()
		if n > uint64(len(b)) {
			return news, ErrTimes
		}
		input := string(b[:n])
		b = b[n:]
		if n = number(); n > uint64(len(b)) {
			return news, ErrTimes
		}
		for i := range n {
			if later := number(); later > 0 && t.See(cluster.Partition{Topic: input, Number: int32(i)}, int64(first+later-1)) {
				news = true
			}
		}
	}
	return news, err
}
