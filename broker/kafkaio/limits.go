package kafkaio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// limits are the largest batches that topics take, in bytes: max.message.bytes. A
// topic is missing whose settings may not be seen. It is not changed once it is
// made.
//
// The client counts a record before it compresses it, and so do limits: what
// fits by them is never refused.
type limits map[string]int

const (
	// unknownLimit is what is taken for the limit of a topic whose settings may
	// not be seen. It is below Kafka's default.
	unknownLimit = 1_000_012
	// mostLimit is the largest batch that a client here makes: a request with it
	// must fit into what brokers read at once.
	mostLimit = 64 << 20
	// batchOverhead is what a batch has beside its records.
	batchOverhead = 61
	// countedOverhead is what the client counts for the length of a batch, at
	// most.
	countedOverhead = 4
)

// readLimits asks for the limits of topics. An error may mend by itself.
func readLimits(ctx context.Context, adm *kadm.Client, topics ...string) (limits, error) {
	l := limits{}
	configs, err := adm.DescribeTopicConfigs(ctx, topics...)
	if refused := (*kerr.Error)(nil); errors.As(err, &refused) && !refused.Retriable {
		return l, nil // not allowed to look
	} else if err != nil {
		return nil, fmt.Errorf("kafkaio: settings of topics: %w: %w", semel.ErrStoreUnavailable, err)
	}
	for _, topic := range topics {
		if n, err := strconv.Atoi(setting(configs, topic, "max.message.bytes")); err == nil {
			l[topic] = n
		}
	}
	return l, nil
}

// of returns the largest batch for a topic.
func (l limits) of(topic string) int {
	n, ok := l[topic]
	if !ok {
		n = unknownLimit
	}
	return min(n, mostLimit)
}

// client returns the largest batch for a topic as the client counts it, which adds
// the length.
func (l limits) client(topic string) int32 {
	n := l.of(topic)
	return int32(max(n+len(binary.AppendUvarint(nil, uint64(n)+1)), 512)) // less it does not take
}

// check says whether a topic takes a record. If not, the error wraps
// kerr.MessageTooLarge and is permanent.
func (l limits) check(topic string, r *kgo.Record) error {
	size := batchSize(r)
	if size+countedOverhead <= int(l.client(topic)) {
		return nil
	}
	most := "max.message.bytes of it, before compression; raise it and start again"
	switch n, ok := l[topic]; {
	case !ok:
		most = "what is assumed, because its settings may not be seen; allow DescribeConfigs on it"
	case n > mostLimit:
		most = "the most that is written"
	}
	return semel.Permanent(fmt.Errorf("a record of %d bytes for topic %s, which takes %d (%s): %w", size, topic, l.of(topic), most, kerr.MessageTooLarge))
}

// isTooLarge reports whether a record or its batch was refused for its size.
func isTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// batchSize returns how many bytes a batch with this record alone has, before
// compression.
func batchSize(r *kgo.Record) int {
	field := func(n int) int { return varintSize(int64(n)) + n }
	n := 1 + 1 + 1 + field(len(r.Key)) + field(len(r.Value)) + varintSize(int64(len(r.Headers)))
	for i := range r.Headers {
		n += field(len(r.Headers[i].Key)) + field(len(r.Headers[i].Value))
	}
	return batchOverhead + field(n)
}

// varintSize returns how many bytes a number takes in a record.
func varintSize(n int64) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutVarint(b[:], n)
}
