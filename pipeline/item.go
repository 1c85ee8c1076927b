package pipeline

import "github.com/semel-dev/semel"

// Item is one message on its way through a pipeline, and its outcome. It has one
// owner at a time: the source, the runner, the session or the sink. Only the owner
// may use it.
type Item struct {
	// Message is what was delivered. The source sets it and never changes it
	// again.
	Message semel.Message
	// Partition is the ordered unit of the source that the message belongs to.
	Partition *Partition
	// Ref belongs to the source.
	Ref any

	// Decision, Result and Err are the outcome. A session sets them, or a sink for
	// what it was given. With a nil Err the message is settled, by its effect or by
	// an earlier one.
	Decision semel.Decision
	Err      error
	Result   semel.Result
	// Delivered: the sink delivered the message although its Decision is not Fresh.
	// A session that only observes sets it.
	Delivered bool
	// Parked is the reason for which the message was parked, or empty. The runner
	// sets it before it acknowledges the message.
	Parked Reason

	// Attempt is the number of the delivery of this key, from 1, counted over all
	// processes; 0 before the first. The session sets it before it delivers.
	Attempt int
	// Token is the fencing token of the claim under which the message is delivered;
	// 0 if the key and the effect commit together. The session sets it.
	Token semel.Token
	// Held belongs to the session: what it holds for the message between two
	// calls, such as a claim. While it is not nil, the runner keeps the item until
	// it is processed again or abandoned. A session sets it to nil when the message
	// is settled or abandoned.
	Held any

	// Call has the message's key and what a store is asked with. The runner
	// sets it.
	Call semel.Call
	// Digest is the key's digest, if the session has prepared it.
	Digest semel.Digest
	// Group tells which items must be delivered in order: those of equal Group.
	// The runner sets it; it is never 0.
	Group uint64
	// Tries is how many deliveries of the item failed since it was read. Those that
	// found the sink unavailable do not count. The runner sets it.
	Tries int
	// Redrive counts how often the message was redriven from a [DeadLetterStore].
	Redrive int

	block *block // the memory that the item is part of, or nil
}

// Bytes returns the approximate size of the message in memory.
func (it *Item) Bytes() int64 {
	n := len(it.Message.ID) + len(it.Message.RecordKey) + len(it.Message.Body)
	for i := range it.Message.Headers {
		n += len(it.Message.Headers[i].Name) + len(it.Message.Headers[i].Value)
	}
	return int64(n) + 256
}

// RedriveHeader is the name of the header that a redriven message gets. Its value
// is how often the message was redriven. It keeps brokers and targets that
// deduplicate from dropping the message as a repetition.
const RedriveHeader = "semel-redrive"

// delivered reports whether a settled item had its effect now, rather than before.
func (it *Item) delivered() bool { return it.Decision == semel.Fresh || it.Delivered }
