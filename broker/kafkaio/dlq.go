package kafkaio

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Headers of records that were put aside, as Kafka Connect and Spring name them.
const (
	connectPrefix    = "__connect.errors."
	connectTopic     = connectPrefix + "topic"
	connectPartition = connectPrefix + "partition"
	connectOffset    = connectPrefix + "offset"
	connectName      = connectPrefix + "connector.name"
	connectError     = connectPrefix + "exception.message"

	springPrefix    = "kafka_dlt-"
	springTopic     = springPrefix + "original-topic"
	springPartition = springPrefix + "original-partition"
	springOffset    = springPrefix + "original-offset"
	springTime      = springPrefix + "original-timestamp"
	springGroup     = springPrefix + "original-consumer-group"
	springError     = springPrefix + "exception-message"
)

// maxErrorHeader bounds the text of an error in a header: a record must not
// become too large by why it failed.
const maxErrorHeader = 512

// parkedRecord returns a copy of a record for a topic of messages that were put
// aside, with its origin and the reason in the headers that Kafka Connect and
// Spring use. A record that was put aside before keeps its first origin. The
// copy has pipeline.RedriveHeader: whoever reads it redrives it.
func parkedRecord(r *kgo.Record, topic, group string, reason pipeline.Reason, attempts int, cause error) *kgo.Record {
	text := string(reason)
	if cause != nil {
		text = cause.Error()
	}
	text = strings.ToValidUTF8(text[:min(len(text), maxErrorHeader)], "")
	from, redrives := semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset}, 0
	if len(r.Headers) > 0 {
		var m semel.Message
		fill(&m, r)
		redrives = redrivesOf(&m)
		if first, ok := ParkedOrigin(&m); ok {
			from = first
		}
	}
	out := &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
	out.Headers = appendOwn(make([]kgo.RecordHeader, 0, len(r.Headers)+21), r.Headers, "")
	add := func(name string, value []byte) {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: name, Value: value})
	}
	partition, offset := []byte(strconv.Itoa(int(from.Partition))), strconv.AppendInt(nil, from.Offset, 10)
	add(headerReason, []byte(reason))
	add(headerError, []byte(text))
	add(headerAttempt, []byte(strconv.Itoa(attempts)))
	add(headerParkedAt, time.Now().UTC().AppendFormat(nil, time.RFC3339Nano))
	add(pipeline.RedriveHeader, []byte(strconv.Itoa(redrives+1)))
	add(connectTopic, []byte(from.Source))
	add(connectPartition, partition)
	add(connectOffset, offset)
	add(connectName, []byte(group))
	add(connectError, []byte(text))
	add(springTopic, []byte(from.Source))
	add(springPartition, binary.BigEndian.AppendUint32(nil, uint32(from.Partition)))
	add(springOffset, binary.BigEndian.AppendUint64(nil, uint64(from.Offset)))
	add(springTime, binary.BigEndian.AppendUint64(nil, uint64(r.Timestamp.UnixMilli())))
	add(springGroup, []byte(group))
	add(springError, []byte(text))
	return out
}

// appendOwn appends the headers that are a record's own, which are those that do not
// say that it was put aside, and the one of the name kept.
func appendOwn(dst, headers []kgo.RecordHeader, kept string) []kgo.RecordHeader {
	for _, h := range headers {
		if !isParking(h.Key) || h.Key == kept {
			dst = append(dst, h)
		}
	}
	return dst
}

func isParking(name string) bool {
	switch name {
	case headerReason, headerError, headerAttempt, headerParkedAt, pipeline.RedriveHeader:
		return true
	}
	return strings.HasPrefix(name, connectPrefix) || strings.HasPrefix(name, springPrefix)
}

// ParkedOrigin returns where a message that was read from a topic of failed
// records came from, if its headers say so: those of this package, of Kafka
// Connect or of Spring.
func ParkedOrigin(m *semel.Message) (semel.Origin, bool) {
	if topic, ok := m.Header(connectTopic); ok {
		partition, err := strconv.ParseInt(header(m, connectPartition), 10, 32)
		offset, err2 := strconv.ParseInt(header(m, connectOffset), 10, 64)
		if err == nil && err2 == nil {
			return semel.Origin{Source: string(topic), Partition: int32(partition), Offset: offset}, true
		}
	}
	topic, ok := m.Header(springTopic)
	partition, offset := header(m, springPartition), header(m, springOffset)
	if !ok || len(partition) != 4 || len(offset) != 8 {
		return semel.Origin{}, false
	}
	return semel.Origin{
		Source:    string(topic),
		Partition: int32(binary.BigEndian.Uint32([]byte(partition))),
		Offset:    int64(binary.BigEndian.Uint64([]byte(offset))),
	}, true
}

func header(m *semel.Message, name string) string {
	value, _ := m.Header(name)
	return string(value)
}
