package pipeline

import (
	"time"

	"github.com/semel-dev/semel"
)

// Item is one message on its way through a pipeline. Who has it at the moment,
// source, runner, session or sink, is the only one to touch it.
type Item struct {
	// Message is what was delivered. The source sets it and never changes it
	// again.
	Message semel.Message
	// Lane is the ordered unit of the source that the message belongs to.
	Lane *Lane
	// Ref is the source's own.
	Ref any

	// Decision, Result and Err are the outcome. A session, or a sink for what
	// it was given, sets them: with an Err of nil the message is settled, by
	// its effect or by an earlier one.
	Decision semel.Decision
	Err      error
	Result   semel.Result

	// Attempt counts the deliveries of this key that were begun, from 1, by
	// whomever; 0 before the first. The session sets it before it delivers.
	Attempt int
	// Token is the fencing token of the claim under which the message is
	// delivered; 0 if the key and the effect commit together. The session
	// sets it.
	Token semel.Token

	// Digest is the session's own: that of the key, where it was prepared.
	Digest semel.Digest
	// Call has the message's key and what a store is asked with. The runner
	// sets it.
	Call semel.Call
	// Redrive counts how often the message came back from a [Lot].
	Redrive int

	// What every item needs stands together: it is fewer lines of a processor's
	// cache.

	source   *feed
	block    *block         // that it is part of, or nil
	next     *Item          // the one behind it in its group
	group    uint64         // its group, of which the scheduler keeps a chain
	size     int64          // its Bytes
	done     bool           // settled, or forgotten
	busy     bool           // a worker has it; the scheduler's lock guards it
	away     bool           // the sink could not be reached for it, when
	told     bool           // the observer was told that it waits on
	observed semel.Decision // by a TwoPhase session that delivers all the same
	reason   string         // why it is not processed: it has no key, or is parked
	due      time.Time      // of the next try
	read     time.Time      // when it came from the source

	hold    *hold               // what a TwoPhase session holds for it
	asked   *semel.ClaimRequest // for it, whose answer was lost
	twin    *Item               // by whose outcome a TwoPhase session decides on it
	parking string              // why it is put aside
	seen    uint64              // so many had been delivered, when it was away
	passed  float32             // how often it would have been taken since by lot
	tries   int                 // deliveries that failed and count
	since   time.Time           // when it began to wait for another holder
}

// Group tells which items must be delivered in order: those with an equal
// group. It is never 0 once the runner has the item.
func (it *Item) Group() uint64 { return it.group }

// Tries returns how many deliveries of the item failed since it was read, not
// counting those that found the sink unavailable.
func (it *Item) Tries() int { return it.tries }

// Bytes returns about how much memory the message takes.
func (it *Item) Bytes() int64 {
	n := len(it.Message.ID) + len(it.Message.RecordKey) + len(it.Message.Body)
	for i := range it.Message.Headers {
		n += len(it.Message.Headers[i].Name) + len(it.Message.Headers[i].Value)
	}
	return int64(n) + 256
}

// RedriveHeader is the name of the header that a message gets when it comes
// back from a Lot. Its value is how often it did. It keeps the dedup of brokers
// and targets from taking the message for a repetition.
const RedriveHeader = "semel-redrive"

// Parked returns why the message was put aside, or "".
func (it *Item) Parked() string {
	if it.reason == alreadyParked {
		return it.reason
	}
	return it.parking
}

// delivered reports whether a settled item had its effect now, rather than before.
func (it *Item) delivered() bool {
	return it.Decision == semel.Fresh || it.observed != semel.Undecided
}

// waits reports whether it is not yet time for an item.
func (it *Item) waits() bool { return !it.due.IsZero() && time.Now().Before(it.due) }
