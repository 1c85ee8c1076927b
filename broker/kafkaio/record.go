package kafkaio

import (
	"encoding/base64"
	"strconv"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Reset says where to read a partition from, of which the group has committed no
// offset, or one that is no longer there.
type Reset uint8

const (
	// ResetStart reads from the oldest record.
	ResetStart Reset = iota
	// ResetEnd reads what comes from now on. What is there is skipped, and what
	// is written while nobody reads is lost.
	ResetEnd
	// ResetFail stops with an error.
	ResetFail
)

// options returns the policy in the client's words.
func (r Reset) options() []kgo.Opt {
	start := kgo.NewOffset().AtStart()
	switch r {
	case ResetEnd:
		return []kgo.Opt{kgo.ConsumeStartOffset(kgo.NewOffset().AtEnd()), kgo.ConsumeResetOffset(start)}
	case ResetFail:
		return []kgo.Opt{kgo.ConsumeStartOffset(start.AtCommitted()), kgo.ConsumeResetOffset(kgo.NoResetOffset())}
	default:
		return []kgo.Opt{kgo.ConsumeStartOffset(start), kgo.ConsumeResetOffset(start)}
	}
}

// Names of headers that go with records.
const (
	headerKey       = "semel-key"
	headerKeyBase64 = "semel-key-base64"
	headerScope     = "semel-scope"
	headerAttempt   = "semel-attempt" // of an output from the second on
	headerToken     = "semel-token"
	headerPipeline  = "semel-pipeline"
	headerReason    = "semel-reason"
	headerError     = "semel-error"
	headerParkedAt  = "semel-parked-at" // RFC 3339
)

// fill makes m the message of a record. They share their bytes; m's headers are
// kept in its own slice, which is used again.
func fill(m *semel.Message, r *kgo.Record) {
	m.ID = ""
	m.RecordKey, m.Body, m.Time = r.Key, r.Value, r.Timestamp
	m.Headers = m.Headers[:0]
	for i := range r.Headers {
		m.Headers = append(m.Headers, semel.Header{Name: r.Headers[i].Key, Value: r.Headers[i].Value})
	}
	m.Origin = semel.Origin{Source: r.Topic, Partition: r.Partition, Offset: r.Offset}
}

// recordPool lends a client room for the records of a batch, until all of them are
// recycled.
type recordPool struct {
	mu   sync.Mutex
	idle [][]kgo.Record
	room int // records that idle has room for
}

// idleRecords is for how many records there is room that waits to be lent again:
// about as many as a fetch brings.
const idleRecords = 32 << 10

var _ kgo.PoolRecords = (*recordPool)(nil)

// GetRecords implements kgo.PoolRecords.
func (p *recordPool) GetRecords(n int) []kgo.Record {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := len(p.idle) - 1
	for i := last; i >= max(last-8, 0); i-- { // most are of one size
		if room := p.idle[i]; cap(room) >= n {
			p.idle[i], p.idle[last] = p.idle[last], nil
			p.idle = p.idle[:last]
			p.room -= cap(room)
			return room // the client lengthens it
		}
	}
	return nil
}

// PutRecords implements kgo.PoolRecords.
func (p *recordPool) PutRecords(room []kgo.Record) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) > 0 && p.room+cap(room) > idleRecords { // the last one may be of a size that nobody asks for
		last := len(p.idle) - 1
		p.room -= cap(p.idle[last])
		p.idle = p.idle[:last]
	}
	if p.room+cap(room) <= idleRecords {
		p.idle = append(p.idle, room)
		p.room += cap(room)
	}
}

// recordOf returns the record of a message for a topic. They share their bytes.
func recordOf(m *semel.Message, topic string) *kgo.Record {
	r := &kgo.Record{Topic: topic, Key: m.RecordKey, Value: m.Body, Timestamp: m.Time}
	if len(m.Headers) > 0 {
		r.Headers = make([]kgo.RecordHeader, 0, len(m.Headers)+6)
		for i := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: m.Headers[i].Name, Value: m.Headers[i].Value})
		}
	}
	return r
}

// appendKeyHeaders appends the headers that name a key, in place of those that
// came with the record. A scope that is the pipeline's name is not said twice.
func appendKeyHeaders(headers []kgo.RecordHeader, key semel.Key, name string) []kgo.RecordHeader {
	kept := make([]kgo.RecordHeader, 0, len(headers)+3)
	for _, h := range headers {
		if !isKeyHeader(h.Key) {
			kept = append(kept, h)
		}
	}
	return appendKey(kept, key, []byte(name))
}

func isKeyHeader(name string) bool {
	switch name {
	case headerKey, headerKeyBase64, headerScope, headerAttempt, headerToken, headerPipeline:
		return true
	}
	return false
}

func appendKey(headers []kgo.RecordHeader, key semel.Key, name []byte) []kgo.RecordHeader {
	header, id := keyHeader(key.ID)
	headers = append(headers, kgo.RecordHeader{Key: header, Value: []byte(id)})
	if key.Scope != string(name) {
		headers = append(headers, kgo.RecordHeader{Key: headerScope, Value: []byte(key.Scope)})
	}
	if len(name) > 0 {
		headers = append(headers, kgo.RecordHeader{Key: headerPipeline, Value: name})
	}
	return headers
}

// keyHeader returns the header that names an id, and its value.
func keyHeader(id string) (name, value string) {
	if printable(id) {
		return headerKey, id
	}
	return headerKeyBase64, base64.StdEncoding.EncodeToString([]byte(id))
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

// redrivesOf returns how often a record came back after it was put aside.
func redrivesOf(m *semel.Message) int {
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

// isPlain reports whether all of an id is ASCII that can be shown, as most are.
func isPlain(id string) bool {
	for i := range len(id) {
		if id[i] < ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}
