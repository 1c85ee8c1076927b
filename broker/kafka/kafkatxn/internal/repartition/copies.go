package repartition

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Header is the name of the last header of a copy. Its value describes the original record.
// All numbers are little-endian:
//
//	version (1), flags (1): 1 is a key that is not null
//	length of the topic's name (2), partition (4), offset (8)
//	time (8): milliseconds since the Unix epoch
//	topic, key
const (
	Header         = "semel-origin"
	originVersion  = 1
	originHasKey   = 1
	originHeadSize = 24
)

// Wrap turns a record into its copy for a topic. The key of the copy is the id, or null. The
// time of the copy is now, so that the broker does not delete the copy of an old record.
func Wrap(r *kgo.Record, topic string, partition int32, id []byte, now time.Time) {
	data := make([]byte, originHeadSize, originHeadSize+len(r.Topic)+len(r.Key)+len(id))
	data[0] = originVersion
	if r.Key != nil {
		data[1] = originHasKey
	}
	binary.LittleEndian.PutUint16(data[2:], uint16(len(r.Topic)))
	binary.LittleEndian.PutUint32(data[4:], uint32(r.Partition))
	binary.LittleEndian.PutUint64(data[8:], uint64(r.Offset))
	binary.LittleEndian.PutUint64(data[16:], uint64(r.Timestamp.UnixMilli()))
	data = append(append(data, r.Topic...), r.Key...)
	end := len(data)
	r.Key = nil
	if len(id) > 0 {
		r.Key = append(data, id...)[end:]
	}
	r.Headers = append(slices.Clip(r.Headers), kgo.RecordHeader{Key: Header, Value: data[:end:end]})
	r.Topic, r.Partition, r.Timestamp = topic, partition, now
}

// progressHeader is the only header of a progress record.
const progressHeader = "semel-progress"

// Progress returns a progress record, which a copier writes between the copies of a
// partition. It says how far the copier has come with each of its sources.
func Progress(topic string, partition int32, times []byte, now time.Time) *kgo.Record {
	return &kgo.Record{Topic: topic, Partition: partition, Value: times, Timestamp: now, Headers: []kgo.RecordHeader{{Key: progressHeader}}}
}

// IsProgress reports whether a record is a progress record.
func IsProgress(r *kgo.Record) bool {
	return len(r.Headers) == 1 && r.Headers[0].Key == progressHeader
}

// Originals turns copies back into their records. One goroutine uses it.
type Originals struct {
	topics map[string]string // interned names
}

// Unwrap is the reverse of Wrap. It leaves records that are not copies unchanged.
func (o *Originals) Unwrap(r *kgo.Record) {
	last := len(r.Headers) - 1
	if last < 0 || r.Headers[last].Key != Header {
		return
	}
	data := r.Headers[last].Value
	if len(data) < originHeadSize || data[0] != originVersion {
		return
	}
	rest := data[originHeadSize:]
	name := int(binary.LittleEndian.Uint16(data[2:]))
	if len(rest) < name {
		return
	}
	topic, ok := o.topics[string(rest[:name])]
	if !ok {
		if o.topics == nil {
			o.topics = map[string]string{}
		}
		topic = string(rest[:name])
		o.topics[topic] = topic
	}
	r.Topic = topic
	r.Partition = int32(binary.LittleEndian.Uint32(data[4:]))
	r.Offset = int64(binary.LittleEndian.Uint64(data[8:]))
	r.Timestamp = time.UnixMilli(int64(binary.LittleEndian.Uint64(data[16:])))
	if r.Key = nil; data[1]&originHasKey != 0 {
		r.Key = rest[name:]
	}
	if r.Headers = r.Headers[:last]; last == 0 {
		r.Headers = nil
	}
}
