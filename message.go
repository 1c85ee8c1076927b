package semel

import (
	"strings"
	"time"
)

// Message is one delivery. A message that is delivered twice is two Messages with
// the same [Key].
type Message struct {
	// ID is the transport's own name for the message, if it has one. It often
	// changes when a message is published again; see package key.
	ID string
	// RecordKey is the partitioning key of the transport. Nil means no key, which
	// differs from an empty key.
	RecordKey []byte
	// Headers are in the order of the transport. A name may occur several times.
	Headers []Header
	// CaselessHeaders means that the names of the headers have no case, as those of HTTP.
	// They are in lower case, and [Message.Header] finds them by a name in any case.
	CaselessHeaders bool
	// Body is the payload. Nil means no payload, for example a Kafka tombstone,
	// which differs from an empty payload.
	Body []byte
	// Time is the message time set by the producer or the broker, or zero.
	Time time.Time
	// Origin says where the delivery came from.
	Origin Origin
}

// Header is one header of a message.
type Header struct {
	Name  string
	Value []byte
}

// Header returns the value of the last header with this name. Case counts, except in
// CaselessHeaders.
func (m *Message) Header(name string) (value []byte, ok bool) {
	for i := len(m.Headers) - 1; i >= 0; i-- {
		if has := m.Headers[i].Name; has == name || m.CaselessHeaders && strings.EqualFold(has, name) {
			return m.Headers[i].Value, true
		}
	}
	return nil, false
}

// Origin is the place of a delivery in its source. It identifies a delivery,
// never a message: it changes when a message is published again or redriven. Two
// messages of a source never have the same place, even if their ids and bytes are the
// same.
type Origin struct {
	// Source is the name of the topic, queue or file.
	Source string
	// Identity tells what Partition and Offset count in from everything else that has
	// or had its name: a topic that was created again, a file that was replaced. The
	// three together stay the same for each delivery of the message, and no other
	// message ever has them. Identity is empty if the source has no positions; its
	// messages then have no key that is made of a position.
	Identity string
	// Partition is the partition or message group, if the source has them.
	Partition int32
	// Offset is the position in the partition, or the byte offset of a line in a
	// file. A source without positions numbers its deliveries.
	Offset int64
	// Delivery is the delivery count that the source reports, starting at 1. It is
	// 0 if the source does not count deliveries.
	Delivery int
}
