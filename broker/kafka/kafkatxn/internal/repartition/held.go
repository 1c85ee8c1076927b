package repartition

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel/broker/kafka/internal/cluster"
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
	number := func() uint64 {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			err, b = ErrHeld, nil
			return 0
		}
		b = b[size:]
		return n
	}
	signed := func() int64 {
		n := number()
		return int64(n>>1) ^ -int64(n&1)
	}
	nullable := func() []byte {
		n := number()
		if n == 0 {
			return nil
		}
		if n-1 > uint64(len(b)) {
			err, n = ErrHeld, 1
		}
		part := b[: n-1 : n-1]
		b = b[n-1:]
		return part
	}
	offset = signed()
	r = &kgo.Record{Topic: in.Topic, Partition: in.Number, Offset: offset, Timestamp: time.UnixMilli(signed())}
	r.Key, r.Value = nullable(), nullable()
	for n := number(); n > 0 && err == nil; n-- {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: string(nullable()), Value: nullable()})
	}
	if len(b) > 0 {
		r.Topic, r.Partition, r.Offset = string(nullable()), int32(signed()), signed()
	}
	if len(b) > 0 {
		err = ErrHeld
	}
	return r, offset, err
}
