package semel

import "time"

// Message is one delivery. A message that is delivered twice is two Messages
// with one [Key].
type Message struct {
	// ID is the transport's own name for the message, if it has one. It often
	// changes when a message is published again: see package key.
	ID string
	// RecordKey is the partitioning key of the transport; nil is "none", which
	// is not the same as empty.
	RecordKey []byte
	// Headers keep their order and may repeat a name.
	Headers []Header
	// Body is the payload; nil is "none" (a Kafka tombstone), which is not the
	// same as empty.
	Body []byte
	// Time is the producer's or the broker's time of the message, or zero.
	Time time.Time
	// Origin says where the delivery came from.
	Origin Origin
}

// Header is one header of a message.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the last header with this exact name.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value, true
		}
	}
	return nil, false
}

// Origin is the place of a delivery in its source. It tells deliveries apart,
// never messages: it changes when a message is published or redriven again.
type Origin struct {
	// Source is the topic, queue or file.
	Source string
	// Partition is the partition or message group, if the source has them.
	Partition int32
	// Offset is the position in the partition, or the line's byte offset.
	Offset int64
	// Delivery counts the deliveries of this message that the source knows
	// of, from 1; 0 if the source does not count.
	Delivery int
}
