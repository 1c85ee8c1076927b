package semel

import (
	"math"
	"time"
)

// Forever is the window of a key that is never deleted.
const Forever time.Duration = math.MaxInt64

// Token fences a claim. Tokens of one key only grow: across take-overs, releases and the
// end of windows, and when the store is closed and opened again, even one that keeps no
// records. A target that remembers the highest token it has seen can therefore refuse a
// holder that lost its lease. 0 means no token.
type Token uint64

// Owner identifies the holder of a claim. Name shows operators which process
// holds a key. Nonce must be new for every claim and never used for two. Two
// claims of a key with equal Owners are one claim that was sent twice. A zero
// Owner never matches, not even itself.
type Owner struct {
	Name  string
	Nonce uint64
}

// Claim is the exclusive right to process a key now.
type Claim struct {
	// Token must accompany every later change of the record.
	Token Token
	// Attempt counts the claims of this record, starting at 1. It grows when a
	// lease ends without completion or release: the effect may have happened.
	Attempt int
	// LeaseEnd is when the claim ends, by the store's clock.
	LeaseEnd time.Time
}

// State is the state of a record.
type State uint8

const (
	// Absent: the store has no record of the key.
	Absent State = iota
	// Claimed: a holder is processing the key, or died while processing it.
	Claimed
	// Done: the effect is complete. Its result may be stored.
	Done
	// Unknown: a holder with Hold set was lost while processing. The effect may
	// have happened. Only a resolution or the late holder ends this state.
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

// ResultKind is the kind of a Result.
type ResultKind uint8

const (
	// NoResult: the effect succeeded and returned nothing to replay.
	NoResult ResultKind = iota
	// Value: Data is the result, of any length, including 0.
	Value
	// Failed: the effect ended with a permanent error. Data is its text.
	Failed
	// NotKept: the effect succeeded, but its result was too large to store.
	NotKept
)

// Result is the stored outcome of an effect. The zero Result is NoResult.
type Result struct {
	Kind ResultKind
	Data []byte
}

// Record is what a store remembers of a key.
type Record struct {
	// Key has the readable scope and id if the store keeps them.
	Key Key
	// Digest is the store's digest of the key; zero if the store has none.
	Digest  Digest
	State   State
	Token   Token
	Attempt int
	Holder  string
	// Orphaned: the record is Claimed, and the process that claimed it has ended, or has
	// closed the store, as semel once does while its command runs. Its effect may
	// still run, for instance as a request that was sent. Only an embedded store knows
	// this.
	Orphaned bool
	// Origin says where the delivery came from that holds or completed the key. It
	// is empty if that is not known.
	Origin      string
	Fingerprint Fingerprint
	// FirstSeen is the time of the first claim, or of completion if the store keeps
	// only that, and zero if it keeps neither. LeaseEnd is zero unless the record is
	// Claimed or Unknown. Expires is zero unless the record is Done, and zero if it is
	// kept forever.
	FirstSeen, LeaseEnd, Expires time.Time
	// Result is set if State is Done. Its Data must not be modified.
	Result Result
	// ResultSize is the length of the result in bytes. A listing sets it although
	// it leaves Data out.
	ResultSize int
}

// Decision is a store's answer to a claim.
type Decision uint8

const (
	// Undecided is the zero Decision: the store did not answer for this key.
	Undecided Decision = iota
	// Fresh: the claim is granted; process the message.
	Fresh
	// Duplicate: an effect of this key has completed.
	Duplicate
	// InFlight: another holder has a running lease. Do not acknowledge the message:
	// wait, or return it to its source.
	InFlight
	// Mismatch: the key was used before with another fingerprint.
	Mismatch
	// OutcomeUnknown: the record is [Unknown].
	OutcomeUnknown
	// Late: the message is older than the window, and no record is left.
	Late
	// Superseded: another message of the key takes effect instead, because it is earlier,
	// later or newer. No store answers this; it comes from a Kafka transaction whose rule
	// does not keep the first message.
	Superseded
)

// String returns the decision's name as used in metrics and listings.
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
	case OutcomeUnknown:
		return "unknown"
	case Late:
		return "late"
	case Superseded:
		return "superseded"
	}
	return "invalid"
}
