package record

import (
	"encoding/base64"
	"strconv"
	"unicode"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/key"
	"github.com/semel-dev/semel/pipeline"
)

// Names of record headers.
const (
	HeaderKey       = "semel-key"
	HeaderKeyBase64 = "semel-key-base64"
	HeaderScope     = "semel-scope"
	HeaderAttempt   = "semel-attempt" // of an output, from the second attempt on
	HeaderToken     = "semel-token"
	HeaderPipeline  = "semel-pipeline"
	HeaderReason    = "semel-reason"
	HeaderError     = "semel-error"
	HeaderParkedAt  = "semel-parked-at" // RFC 3339
)

// Fill makes m the message of a record. They share their bytes. The headers are stored
// in m's own slice, which is reused.
func Fill(m *semel.Message, r *kgo.Record) {
	m.ID = ""
	m.RecordKey, m.Body, m.Time = r.Key, r.Value, r.Timestamp
	m.Headers = m.Headers[:0]
	for i := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: r.Headers[i].Key, Value: r.Headers[i].Value})
	}
	m.Origin = semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset}
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
		if !IsKeyHeader(h.Key) {
			kept = append(kept, h)
		}
	}
	return appendKey(kept, key, []byte(name))
}

func IsKeyHeader(name string) bool {
	switch name {
	case HeaderKey, HeaderKeyBase64, HeaderScope, HeaderAttempt, HeaderToken, HeaderPipeline:
		return true
	}
	return false
}

func appendKey(headers []kgo.RecordHeader, key semel.Key, name []byte) []kgo.RecordHeader {
	header, id := KeyHeader(key.ID)
	headers = append(headers, kgo.RecordHeader{Key: header, Value: []byte(id)})
	if key.Scope != string(name) {
		headers = append(headers, kgo.RecordHeader{Key: HeaderScope, Value: []byte(key.Scope)})
	}
	if len(name) > 0 {
		headers = append(headers, kgo.RecordHeader{Key: HeaderPipeline, Value: name})
	}
	return headers
}

// KeyHeader returns the header that names an id, and its value.
func KeyHeader(id string) (name, value string) {
	if printable(id) {
		return HeaderKey, id
	}
	return HeaderKeyBase64, base64.StdEncoding.EncodeToString([]byte(id))
}

// printable reports whether an id can be shown as text.
func printable(id string) bool {
	if isPlain(id) {
		return true
	}
	if !utf8.ValidString(id) {
		return false
	}
	for _, c := range id {
		if !unicode.IsPrint(c) {
			return false
		}
	}
	return true
}

// Redrives returns how often a record was redriven.
func Redrives(m *semel.Message) int {
	value, ok := m.Header(pipeline.RedriveHeader)
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(string(value))
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// isPlain reports whether an id is printable ASCII, as most are.
func isPlain(id string) bool {
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// ContentID appends the id of a record that is identified by its content.
func ContentID(dst, value []byte) []byte {
	if id, err := key.Content(value); err == nil {
		return append(dst, id...)
	}
	return key.AppendLine(dst, value)
}
