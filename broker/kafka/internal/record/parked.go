// Package record turns messages and keys into Kafka records, and has the headers of parked
// records.
package record

import (
	"encoding/binary"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/pipeline"
)

// Headers of parked records, as Kafka Connect and Spring name them.
const (
	connectPrefix    = "__connect.errors."
	ConnectTopic     = connectPrefix + "topic"
	ConnectPartition = connectPrefix + "partition"
	ConnectOffset    = connectPrefix + "offset"
	ConnectName      = connectPrefix + "connector.name"
	ConnectError     = connectPrefix + "exception.message"

	springPrefix    = "kafka_dlt-"
	SpringTopic     = springPrefix + "original-topic"
	SpringPartition = springPrefix + "original-partition"
	SpringOffset    = springPrefix + "original-offset"
	SpringTime      = springPrefix + "original-timestamp"
	SpringGroup     = springPrefix + "original-consumer-group"
	SpringError     = springPrefix + "exception-message"
)

// MaxErrorHeader bounds an error in a header, so that it does not make the record too
// large.
const MaxErrorHeader = 512

// Parked returns a copy of a record for a dead-letter topic, with its origin and the
// reason in the headers that Kafka Connect and Spring use. A record that was parked
// before keeps its first origin. The copy has pipeline.RedriveHeader, so that reading
// it is a redrive. A copy is never from the future, because brokers refuse such records
// (message.timestamp.after.max.ms), and never from before 1970. SpringTime has the timestamp
// of the record.
func Parked(r *kgo.Record, topic, group string, reason pipeline.Reason, attempts int, cause error) *kgo.Record {
	text := string(reason)
	if cause != nil {
		text = cause.Error()
	}
	text = strings.ToValidUTF8(text[:min(len(text), MaxErrorHeader)], "")
	from, redrives := semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset}, 0
	if len(r.Headers) > 0 {
		var m semel.Message
		Fill(&m, r)
		redrives = header.Redrives(&m)
		if first, ok := ParkedOrigin(&m); ok {
			from = first
		}
	}
	now := time.Now()
	out := &kgo.Record{Topic: topic, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp}
	if out.Timestamp.After(now) || out.Timestamp.UnixMilli() < 0 {
		out.Timestamp = now
	}
	out.Headers = AppendOwn(make([]kgo.RecordHeader, 0, len(r.Headers)+21), r.Headers, "")
	add := func(name string, value []byte) {
		out.Headers = append(out.Headers, kgo.RecordHeader{Key: name, Value: value})
	}
	partition, offset := []byte(strconv.Itoa(int(from.Partition))), strconv.AppendInt(nil, from.Offset, 10)
	add(HeaderReason, []byte(reason))
	add(HeaderError, []byte(text))
	add(header.Attempt, []byte(strconv.Itoa(attempts)))
	add(HeaderParkedAt, now.UTC().AppendFormat(nil, time.RFC3339Nano))
	add(pipeline.RedriveHeader, []byte(strconv.Itoa(redrives+1)))
	add(ConnectTopic, []byte(from.Source))
	add(ConnectPartition, partition)
	add(ConnectOffset, offset)
	add(ConnectName, []byte(group))
	add(ConnectError, []byte(text))
	add(SpringTopic, []byte(from.Source))
	add(SpringPartition, binary.BigEndian.AppendUint32(nil, uint32(from.Partition)))
	add(SpringOffset, binary.BigEndian.AppendUint64(nil, uint64(from.Offset)))
	add(SpringTime, binary.BigEndian.AppendUint64(nil, uint64(r.Timestamp.UnixMilli())))
	add(SpringGroup, []byte(group))
	add(SpringError, []byte(text))
	return out
}

// AppendOwn appends a record's own headers, without those of parking except for kept.
func AppendOwn(dst, headers []kgo.RecordHeader, kept string) []kgo.RecordHeader {
	for _, h := range headers {
		if !IsParking(h.Key) || h.Key == kept {
			dst = append(dst, h)
		}
	}
	return dst
}

func IsParking(name string) bool {
	switch name {
	case HeaderReason, HeaderError, header.Attempt, HeaderParkedAt, HeaderCaseless, pipeline.RedriveHeader:
		return true
	}
	return strings.HasPrefix(name, connectPrefix) || strings.HasPrefix(name, springPrefix)
}

// ParkedOrigin returns the origin of a parked message, if its headers have it: those of
// this package, of Kafka Connect or of Spring.
func ParkedOrigin(m *semel.Message) (semel.Origin, bool) {
	if topic, ok := m.Header(ConnectTopic); ok {
		partition, err := strconv.ParseInt(Header(m, ConnectPartition), 10, 32)
		offset, err2 := strconv.ParseInt(Header(m, ConnectOffset), 10, 64)
		if err == nil && err2 == nil {
			return semel.Origin{Source: string(topic), Partition: int32(partition), Offset: offset}, true
		}
	}
	topic, ok := m.Header(SpringTopic)
	partition, offset := Header(m, SpringPartition), Header(m, SpringOffset)
	if !ok || len(partition) != 4 || len(offset) != 8 {
		return semel.Origin{}, false
	}
	return semel.Origin{
		Source:    string(topic),
		Partition: int32(binary.BigEndian.Uint32([]byte(partition))),
		Offset:    int64(binary.BigEndian.Uint64([]byte(offset))),
	}, true
}

func Header(m *semel.Message, name string) string {
	value, _ := m.Header(name)
	return string(value)
}
