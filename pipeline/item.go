package pipeline

import (
	"strconv"
	"time"

	"github.com/semel-dev/semel"
)

// Item is one message on its way through a pipeline, and its outcome. It has one
// owner at a time: the source, the runner, the session or the sink. Only the owner
// may use it.
type Item struct {
	// Message is the message. The source sets it and does not change it later.
	Message semel.Message
	// Partition is the ordered unit of the source that has the message. The source
	// sets it.
	Partition *Partition
	// Ref belongs to the source.
	Ref any
	// Returned: the source kept the message after Return, and delivers it again. The source sets
	// it. Messages that come again take turns with those that were read ahead.
	Returned bool

	// Decision, Result and Err are the outcome. The session sets them; the sink sets
	// Result and Err of the items it delivers. With a nil Err the message is settled,
	// by its own effect or by that of an earlier delivery. A source sets Err of a message
	// that it cannot read, such as a malformed row: its Body is then what the source has.
	Decision semel.Decision
	Err      error
	Result   semel.Result
	// Delivered: the sink delivered the message although its Decision is not Fresh.
	// A session that only observes sets it.
	Delivered bool
	// Filtered: the session's FilterMap filtered the message out, so that the sink did
	// not get it. The session sets it.
	Filtered bool
	// Parked is the reason why the message was parked, or empty. The runner sets it
	// before it acknowledges the message.
	Parked Reason

	// Attempt is the number of this delivery of the key, from 1. Deliveries by all
	// processes count. It is 0 before the first. The session sets it before it delivers.
	Attempt int
	// Token is the fencing token of the claim under which the message is delivered. It
	// is 0 if the key and the effect commit together. The session sets it.
	Token semel.Token
	// Held belongs to the session. It keeps here what it holds for the message between
	// two calls, such as a claim. While Held is not nil, the runner keeps the item
	// until it is processed again or abandoned. The session sets Held to nil when the
	// message is settled or abandoned.
	Held any
	// Trace belongs to the Tracer, between its Begin and End.
	Trace any

	// Call has the message's key and the other parameters of its claim. The runner
	// sets it.
	Call semel.Call
	// Digest is the key's digest, if the session has prepared it.
	Digest semel.Digest
	// Group is equal for items that must be delivered in order. The runner sets it; it
	// is never 0.
	Group uint64
	// Tries counts the failed deliveries of the item since it was read. It leaves out
	// those that did not reach the target. The runner sets it.
	Tries int
	// Redrive counts how often the message was redriven from a [DeadLetterStore].
	Redrive int
	// Seen is when a pipeline first saw the message, as far as that is known. The runner
	// sets it if the source does not.
	Seen time.Time

	wrapped *semel.Message            // the message as it was read, if Message was inside it
	place   func(semel.Origin) string // of the source's traits, or nil
	block   *block                    // the memory that the item is part of, or nil
}

// AppendPlace appends where the message was read, in the words of its source. By default
// these are source, partition and offset, as in "orders 3/1274".
func (it *Item) AppendPlace(dst []byte) []byte {
	o := it.Message.Origin
	if it.place != nil {
		return append(dst, it.place(o)...)
	}
	dst = append(append(dst, o.Source...), ' ')
	dst = append(strconv.AppendInt(dst, int64(o.Partition), 10), '/')
	return strconv.AppendInt(dst, o.Offset, 10)
}

// Bytes returns the approximate size of the message in memory.
func (it *Item) Bytes() int64 {
	n := len(it.Message.ID) + len(it.Message.RecordKey) + len(it.Message.Body)
	for i := range it.Message.Headers {
		n += len(it.Message.Headers[i].Name) + len(it.Message.Headers[i].Value)
	}
	return int64(n) + 256
}

// Unwrapped reports whether Message was inside the message that the source read.
func (it *Item) Unwrapped() bool { return it.wrapped != nil }

// original returns the message as it was read.
func (it *Item) original() *semel.Message {
	if it.wrapped != nil {
		return it.wrapped
	}
	return &it.Message
}

// wrap makes Message the message as it was read, for its source.
func (it *Item) wrap() {
	if it.wrapped != nil {
		it.Message, it.wrapped = *it.wrapped, nil
	}
}

// RedriveHeader is the name of a header of redriven messages. Its value is how often
// the message was redriven. It keeps brokers and targets that deduplicate from dropping
// the message as a duplicate.
const RedriveHeader = "semel-redrive"

// delivered reports whether a settled item had its effect now, not in an earlier
// delivery.
func (it *Item) delivered() bool {
	return !it.Filtered && (it.Decision == semel.Fresh || it.Delivered)
}
