package record

import (
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/broker/header"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Names of headers of parked records, in addition to those of package header.
const (
	HeaderReason   = "semel-reason"
	HeaderError    = "semel-error"
	HeaderParkedAt = "semel-parked-at" // RFC 3339
	HeaderCaseless = "semel-caseless"  // if the names of the message's headers have no case
)

// Fill makes m the message of a record. They share their bytes. The headers are stored
// in m's own slice, which is reused.
func Fill(m *semel.Message, r *kgo.Record) {
	m.ID = ""
	m.RecordKey, m.Body, m.Time = r.Key, r.Value, TimeOf(r.Timestamp.UnixMilli())
	m.Headers = m.Headers[:0]
	for i := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: r.Headers[i].Key, Value: r.Headers[i].Value})
	}
	m.Origin = semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset}
}

// TimeOf returns the time of a record with a timestamp, which is -1 without a time.
func TimeOf(timestamp int64) time.Time {
	if timestamp == -1 {
		return time.Time{}
	}
	return time.UnixMilli(timestamp)
}

// Of returns the record of a message for a topic. They share their bytes.
func Of(m *semel.Message, topic string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Key: m.RecordKey, Value: m.Body, Timestamp: m.Time}
	if len(m.Headers) > 0 {
		r.Headers = make([]kgo.RecordHeader, 0, len(m.Headers)+6)
		for i := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: m.Headers[i].Name, Value: m.Headers[i].Value})
		}
	}
	return r
}

// AppendKeyHeaders appends the headers that name a key, and replaces those of the
// record. A scope that equals the pipeline's name is left out.
func AppendKeyHeaders(headers []kgo.RecordHeader, key semel.Key, name string) []kgo.RecordHeader {
	kept := make([]kgo.RecordHeader, 0, len(headers)+3)
	for _, h := range headers {
		if !header.IsKey(h.Key) {
			kept = append(kept, h)
		}
	}
	return appendKey(kept, key, []byte(name))
}

// AppendOrigin appends the headers that say when and where Semel first saw a message. It appends
// the headers of an earlier pipeline, if the message has any.
func AppendOrigin(headers []kgo.RecordHeader, m *semel.Message, seen time.Time) []kgo.RecordHeader {
	for i := range headers {
		if headers[i].Key == header.Origin {
			return headers
		}
	}
	add := func(name string, value []byte) {
		headers = append(headers, kgo.RecordHeader{Key: name, Value: value})
	}
	if origin, ok := m.Header(header.Origin); ok {
		if at, ok := m.Header(header.FirstSeen); ok {
			add(header.FirstSeen, at)
		}
		add(header.Origin, origin)
		return headers
	}
	add(header.FirstSeen, header.AppendTime(nil, seen))
	add(header.Origin, (&pipeline.Item{Message: *m}).AppendPlace(nil))
	return headers
}

func appendKey(headers []kgo.RecordHeader, key semel.Key, name []byte) []kgo.RecordHeader {
	text, id := header.OfKey(key.ID)
	headers = append(headers, kgo.RecordHeader{Key: text, Value: []byte(id)})
	if key.Scope != string(name) {
		headers = append(headers, kgo.RecordHeader{Key: header.Scope, Value: []byte(key.Scope)})
	}
	if len(name) > 0 {
		headers = append(headers, kgo.RecordHeader{Key: header.Pipeline, Value: name})
	}
	return headers
}

// ContentID appends the id of a record that is identified by its content.
func ContentID(dst, value []byte) []byte {
	if id, err := key.Content(value); err == nil {
		return append(dst, id...)
	}
	return key.AppendLine(dst, value)
}
