package kafkaio

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// limits are the largest batches that topics take, in bytes: max.message.bytes. A
// topic is missing whose settings may not be seen. Nil are those of a topic that is
// not there yet. It is not changed once it is made.
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

// readLimits asks for the limits of topics, of each by itself: one that may not be
// seen hides no other. An error that may pass is no answer: it is asked again, for
// at most limitsWithin for each topic, and then returned. The error names the topic
// and wraps semel.ErrStoreUnavailable, and kerr.UnknownTopicOrPartition if the
// topic is not there.
func readLimits(ctx context.Context, adm *kadm.Client, topics ...string) (limits, error) {
	l := limits{}
	for _, topic := range topics {
		configs, err := topicSettings(ctx, adm, topic)
		if err != nil {
			return nil, err
		}
		if n, err := strconv.Atoi(setting(configs, topic, "max.message.bytes")); err == nil {
			l[topic] = n
		}
	}
	return l, nil
}

// limitsWithin is for how long a broker may not know a topic that was just made, or
// what its settings and offsets are.
const limitsWithin = 3 * time.Second

// topicSettings returns the settings of a topic, or none if they may not be seen.
func topicSettings(ctx context.Context, adm *kadm.Client, topic string) (kadm.ResourceConfigs, error) {
	configs, err := askSettings(ctx, adm, topic)
	switch auth := (*kadm.AuthError)(nil); {
	case errors.As(err, &auth), errors.Is(err, kerr.UnsupportedVersion):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("kafkaio: settings of topic %s: %w: %w", topic, semel.ErrStoreUnavailable, err)
	}
	return configs, nil
}

// askSettings asks for the settings of a topic, again while the brokers may not know
// it yet.
func askSettings(ctx context.Context, adm *kadm.Client, topic string) (kadm.ResourceConfigs, error) {
	began := time.Now()
	for tries := 1; ; tries++ {
		configs, err := adm.DescribeTopicConfigs(ctx, topic)
		if err == nil {
			var config kadm.ResourceConfig
			if config, err = configs.On(topic, nil); err == nil {
				err = config.Err
			}
		}
		if err == nil {
			return configs, nil
		}
		if !asksAgain(ctx, began, tries, err) {
			return nil, err
		}
	}
}

// asksAgain waits, and reports whether brokers that did not know what they were asked
// may know it by now.
func asksAgain(ctx context.Context, began time.Time, tries int, err error) bool {
	refused, ok := errors.AsType[*kerr.Error](err)
	return ok && refused.Retriable && time.Since(began) < limitsWithin && pause(ctx, min(500*time.Millisecond, 25*time.Millisecond<<min(tries, 5)))
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
	most := "max.message.bytes of it, before compression; raise it, and redrive the message or start again"
	switch n, ok := l[topic]; {
	case l == nil:
		most = "what is assumed, because it was not there; start again when it is"
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
