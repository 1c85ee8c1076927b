package semel

import (
	"math"
	"time"
)

// Forever is the window of a key that is never forgotten.
const Forever time.Duration = math.MaxInt64

// Token fences a claim. Tokens of one key only grow, over take-overs and
// releases too, so that a target which remembers the highest token it has seen
// can refuse a holder that lost its lease. 0 is no token.
type Token uint64

// Owner names who claims. Name tells people which process holds a key. Nonce is
// chosen anew for every claim and never for two. Two claims of a key with equal
// Owners are one claim that was sent twice. A zero Owner never matches, not even
// itself.
type Owner struct {
	Name  string
	Nonce uint64
}

// Claim is the exclusive right to process a key now.
type Claim struct {
	// Token must accompany every later change of the record.
	Token Token
	// Attempt counts the claims of this record, from 1. It grows when a lease
	// ended without completion or release: the effect may have happened.
	Attempt int
	// LeaseEnd is when the right ends, by the store's clock.
	LeaseEnd time.Time
}

// State is the state of a record.
type State uint8

const (
	// Absent: the store knows nothing of the key.
	Absent State = iota
	// Claimed: a holder works on it, or died while it did.
	Claimed
	// Done: the effect is complete; its result may be stored.
	Done
	// Unknown: a holder that asked to hold was lost in the middle. The effect
	// may have happened. Only a resolution or the late holder ends this state.
	Unknown
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case Absent:
		return "absent"
	case Claimed:
		return "claimed"
	case Done:
		return "done"
	case Unknown:
		return "unknown"
	}
	return "invalid"
}

// ResultKind tells what a Result is.
type ResultKind uint8

const (
	// NoResult: the effect ended well and left nothing to replay.
	NoResult ResultKind = iota
	// Value: Data is the result, of any length, 0 included.
	Value
	// Failed: the effect ended with a permanent error, whose text is Data.
	Failed
	// NotKept: the effect ended well, but its result was too large to store.
	NotKept
)

// Result is what an effect left behind. The zero Result is no result.
type Result struct {
	Kind ResultKind
	Data []byte
}

// Record is what a store remembers of a key.
type Record struct {
	// Key has the readable scope and id where the store keeps them.
	Key Key
	// Digest is the store's digest of the key; zero if the store has none.
	Digest      Digest
	State       State
	Token       Token
	Attempt     int
	Holder      string
	Fingerprint Fingerprint
	// FirstSeen is the time of the first claim, or of completion where the
	// store keeps only that. LeaseEnd is zero unless claimed or unknown.
	// Expires is zero unless done, and zero if it is kept forever.
	FirstSeen, LeaseEnd, Expires time.Time
	// Result is set when State is Done. Its Data must not be changed.
	Result Result
	// ResultSize is the length of the result, also where a listing leaves the
	// Data out.
	ResultSize int
}

// Decision is a store's answer to a claim.
type Decision uint8

const (
	// Undecided is the zero Decision: the store did not answer for this key.
	Undecided Decision = iota
	// Fresh: the claim is granted; process the message.
	Fresh
	// Duplicate: a completed effect of this key stands behind it.
	Duplicate
	// InFlight: another holder's lease runs. The message must not be
	// acknowledged: wait, or return it to its source.
	InFlight
	// Mismatch: the key is known with another fingerprint.
	Mismatch
	// InDoubt: the record is [Unknown].
	InDoubt
	// Late: the message is older than the store can answer for, and no record
	// is left.
	Late
)

// String returns the decision's name as it is used in metrics and listings.
func (d Decision) String() string {
	switch d {
	case Undecided:
		return "undecided"
	case Fresh:
		return "fresh"
	case Duplicate:
		return "duplicate"
	case InFlight:
		return "in_flight"
	case Mismatch:
		return "mismatch"
	case InDoubt:
		return "unknown"
	case Late:
		return "late"
	}
	return "invalid"
}
