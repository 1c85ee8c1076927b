package cluster

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
)

// Limits says what topics accept. A topic whose settings the user may not see is
// missing. Nil Limits belong to a topic that does not exist yet. Limits are immutable.
//
// The client counts a record before compression, and so do Limits: a record that fits
// is never refused.
type Limits map[string]Limit

// Limit says what a topic accepts.
type Limit struct {
	Bytes int // of a batch (max.message.bytes)
	// before and after are how far the time of a record may be from the clock
	// (message.timestamp.before.max.ms and message.timestamp.after.max.ms). 0 is without
	// a limit.
	before, after time.Duration
}

const (
	// unknownLimit is the limit of a topic whose settings the user may not see. It is
	// below Kafka's default.
	unknownLimit = 1_000_012
	// mostLimit is the largest batch that a client makes: brokers must be able to read
	// the request.
	mostLimit = 64 << 20
	// BatchOverhead is the size of an empty batch.
	BatchOverhead = 61
	// countedOverhead is the most that the client counts for the length of a batch.
	countedOverhead = 4
)

// ReadLimits reads the limits of topics, each in its own request: a hidden topic hides
// no other. It retries transient errors for LimitsWithin for each topic. The error
// names the topic and wraps semel.ErrStoreUnavailable, and kerr.UnknownTopicOrPartition
// if the topic does not exist.
func ReadLimits(ctx context.Context, adm *kadm.Client, topics ...string) (Limits, error) {
	l := Limits{}
	for _, topic := range topics {
		configs, err := TopicSettings(ctx, adm, topic)
		if err != nil {
			return nil, err
		}
		all := Settings(configs, topic)
		if n, err := strconv.Atoi(all["max.message.bytes"]); err == nil {
			l[topic] = Limit{Bytes: n, before: timeLimit(all, "before"), after: timeLimit(all, "after")}
		}
	}
	return l, nil
}

// timeLimit returns how far the time of a record may be before or after the clock. Brokers
// from before Kafka 3.6 do not say it, and some topics give each record the time of the
// broker.
func timeLimit(settings map[string]string, side string) time.Duration {
	n, err := strconv.ParseInt(settings["message.timestamp."+side+".max.ms"], 10, 64)
	if err != nil || settings["message.timestamp.type"] == "LogAppendTime" || n > math.MaxInt64/int64(time.Millisecond) {
		return 0
	}
	return max(time.Duration(n)*time.Millisecond, 1)
}

// TopicSettings returns the settings of a topic, or none if the user may not see them.
func TopicSettings(ctx context.Context, adm *kadm.Client, topic string) (kadm.ResourceConfigs, error) {
	configs, err := askSettings(ctx, adm, topic)
	switch auth := (*kadm.AuthError)(nil); {
	case errors.As(err, &auth), errors.Is(err, kerr.UnsupportedVersion):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("kafka: settings of topic %s: %w: %w", topic, semel.ErrStoreUnavailable, err)
	}
	return configs, nil
}

// askSettings reads the settings of a topic, and retries while brokers may not know it
// yet.
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
		if !AsksAgain(ctx, began, tries, err) {
			return nil, err
		}
	}
}

// Of returns the largest batch for a topic.
func (l Limits) Of(topic string) int {
	limit, ok := l[topic]
	if !ok {
		limit.Bytes = unknownLimit
	}
	return min(limit.Bytes, mostLimit)
}

// Client returns the largest batch for a topic as the client counts it, with the
// length.
func (l Limits) Client(topic string) int32 {
	n := l.Of(topic)
	return int32(max(n+len(binary.AppendUvarint(nil, uint64(n)+1)), 512)) // the client accepts no less
}

// Check returns nil if a topic accepts a record, and otherwise a permanent error that
// wraps kerr.MessageTooLarge.
func (l Limits) Check(topic string, r *kgo.Record) error {
	size := batchSize(r)
	if size+countedOverhead <= int(l.Client(topic)) {
		return nil
	}
	most := "max.message.bytes of it, before compression; raise it, and redrive the message or start again"
	switch limit, ok := l[topic]; {
	case l == nil:
		most = "what is assumed, because it was not there; start again when it is"
	case !ok:
		most = "what is assumed, because its settings may not be seen; allow DescribeConfigs on it"
	case limit.Bytes > mostLimit:
		most = "the most that is written"
	}
	return semel.Permanent(fmt.Errorf("a record of %d bytes for topic %s, which takes %d (%s): %w", size, topic, l.Of(topic), most, kerr.MessageTooLarge))
}

// CheckTime returns nil if a topic accepts the time of a record, and otherwise a permanent
// error that wraps kerr.InvalidTimestamp. now may be the start of the transaction.
func (l Limits) CheckTime(topic string, r *kgo.Record, now time.Time) error {
	limit, side := l[topic], "after"
	if r.Timestamp.IsZero() { // the client gives it the current time
		return nil
	}
	switch ahead := r.Timestamp.Sub(now); { // is at most 292 years
	case limit.after > 0 && ahead > limit.after:
	case limit.before > 0 && ahead < -limit.before:
		side = "before"
	default:
		return nil
	}
	return semel.Permanent(fmt.Errorf("topic %s does not take a record of %s: raise its message.timestamp.%s.max.ms, and redrive the message or start again: %w",
		topic, r.Timestamp.UTC().Format(time.RFC3339), side, kerr.InvalidTimestamp))
}

// IsTooLarge reports whether a record or its batch was refused for its size.
func IsTooLarge(err error) bool {
	return errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge)
}

// batchSize returns the size of a batch with only this record, before compression.
func batchSize(r *kgo.Record) int {
	field := func(n int) int { return varintSize(int64(n)) + n }
	n := 1 + 1 + 1 + field(len(r.Key)) + field(len(r.Value)) + varintSize(int64(len(r.Headers)))
	for i := range r.Headers {
		n += field(len(r.Headers[i].Key)) + field(len(r.Headers[i].Value))
	}
	return BatchOverhead + field(n)
}

// varintSize returns the size of a number in a record.
func varintSize(n int64) int {
	var b [binary.MaxVarintLen64]byte
	return binary.PutVarint(b[:], n)
}

// Settings returns all visible settings of a topic.
func Settings(configs kadm.ResourceConfigs, topic string) map[string]string {
	all := map[string]string{}
	config, err := configs.On(topic, nil)
	if err != nil || config.Err != nil {
		return all
	}
	for _, c := range config.Configs {
		all[c.Key] = c.MaybeValue()
	}
	return all
}

// Setting returns a topic's setting, or "".
func Setting(configs kadm.ResourceConfigs, topic, name string) string {
	return Settings(configs, topic)[name]
}
