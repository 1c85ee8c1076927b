// Package records generates the input of the Kafka benchmarks, writes it to a topic, and
// checks an output topic.
package records

import (
	"encoding/hex"
	"math/rand/v2"
	"strconv"
)

const (
	// ValueBytes is the length of each value.
	ValueBytes = 200
	// every: one record in this many repeats an id.
	every = 10
	// near is the largest distance of a repeated id, in records.
	near = 100_000
)

// Input is a sequence of records that depends only on its seed. Every tenth record has
// the key of one of the 100,000 records before it, and another value.
type Input struct {
	Seed uint64
	// Records is the number of records.
	Records int
}

// Fresh reports whether record i is the first of its key.
func (Input) Fresh(i int) bool { return i%every != every-1 }

// FreshRecords is the number of distinct keys.
func (in Input) FreshRecords() int { return in.Records - in.Records/every }

// Append appends the key of record i, a UUID, and its value, a JSON object.
func (in Input) Append(key, value []byte, i int) ([]byte, []byte) {
	source := i
	random := rand.NewPCG(in.Seed, uint64(i))
	if !in.Fresh(i) {
		source = i - 1 - int(random.Uint64()%uint64(min(i, near)))
		if !in.Fresh(source) {
			source--
		}
	}
	key = in.appendID(key, source)
	from := len(value)
	value = append(value, `{"event_id":"`...)
	value = in.appendID(value, source)
	value = append(value, `","seq":`...)
	value = strconv.AppendInt(value, int64(i), 10)
	value = append(value, `,"type":"order.created","customer":`...)
	value = strconv.AppendUint(value, random.Uint64()%1_000_000, 10)
	value = append(value, `,"note":"`...)
	const end = `"}`
	for len(value)-from < ValueBytes-len(end) {
		value = append(value, byte('a'+random.Uint64()%26))
	}
	return key, append(value, end...)
}

// appendID appends the UUID of a record that is the first of its key.
func (in Input) appendID(dst []byte, i int) []byte {
	random := rand.NewPCG(^in.Seed, uint64(i))
	var id [16]byte
	for half := range 2 {
		n := random.Uint64()
		for b := range 8 {
			id[half*8+b] = byte(n >> (8 * b))
		}
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	for _, part := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10]} {
		dst = append(hex.AppendEncode(dst, part), '-')
	}
	return hex.AppendEncode(dst, id[10:])
}
