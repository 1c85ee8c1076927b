package repartition

import (
	"encoding/binary"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
	"github.com/semel-dev/semel/broker/kafka/kafkatxn/internal/state"
)

// AppendHeld appends a held record, which was read from a partition at an offset. If a copy
// was read there, r is its original. All numbers are varints:
//
//	offset, time in milliseconds since the Unix epoch
//	key, value: length plus one, or 0 if it is null; bytes
//	number of headers; for each its name and its value
//	of an original only: its topic (as a value), its partition and its offset
func AppendHeld(dst []byte, in cluster.Partition, offset int64, r *kgo.Record) []byte {
	dst = binary.AppendVarint(binary.AppendVarint(dst, offset), r.Timestamp.UnixMilli())
	dst = appendNullable(appendNullable(dst, r.Key), r.Value)
	dst = binary.AppendUvarint(dst, uint64(len(r.Headers)))
	for _, h := range r.Headers {
		dst = appendNullable(appendNullable(dst, []byte(h.Key)), h.Value)
	}
	if r.Topic != in.Topic {
		dst = appendNullable(dst, []byte(r.Topic))
		dst = binary.AppendVarint(binary.AppendVarint(dst, int64(r.Partition)), r.Offset)
	}
	return dst
}

func appendNullable(dst, value []byte) []byte {
	if value == nil {
		return binary.AppendUvarint(dst, 0)
	}
	return append(binary.AppendUvarint(dst, uint64(len(value))+1), value...)
}

// ErrHeld is the error of bytes that AppendHeld did not write.
var ErrHeld = errors.New("kafka: not a held record")

// ParseHeld is the reverse of AppendHeld. The record shares the bytes.
func ParseHeld(in cluster.Partition, b []byte) (r *kgo.Record, offset int64, err error) {
	c := state.Cursor{Rest: b}
	nullable := func() []byte {
		n := c.Uvarint()
		if n == 0 {
			return nil
		}
		return slices.Clip(c.Next(n - 1))
	}
	offset = c.Varint()
	r = &kgo.Record{Topic: in.Topic, Partition: in.Number, Offset: offset, Timestamp: time.UnixMilli(c.Varint())}
	r.Key, r.Value = nullable(), nullable()
	for n := c.Uvarint(); n > 0 && !c.Wrong; n-- {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(nullable()), Value: nullable()})
	}
	if len(c.Rest) > 0 {
		r.Topic, r.Partition, r.Offset = string(nullable()), int32(c.Varint()), c.Varint()
	}
	if c.Wrong || len(c.Rest) > 0 {
		err = ErrHeld
	}
	return r, offset, err
}
