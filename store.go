package semel

import (
	"context"
	"iter"
	"time"
)

// Store keeps records. Every call takes many keys and costs one round trip. Keys
// that occur twice in one call are decided in the order of the call.
//
// Each verb fills its second argument with one answer for each request. The two
// slices must have the same length. Otherwise the call is refused with
// ErrInvalidRequest, and neither records nor answers change. A call without
// requests is allowed.
//
// An error of the call as a whole means that some answers are missing. An answer
// that is still zero is unknown: the change may or may not have been made. Then
// [Classify] says whether to ask again.
//
// Asking again is safe for every verb:
//   - A claim that is repeated by the same [Owner] is the same claim: see Claim,
//     and [ClaimRequest].Done.
//   - A completion that is repeated with the same token succeeds.
//   - A release that is repeated succeeds or gets a [*StaleTokenError]. It
//     changes nothing, whoever holds the key by then.
//   - An extension that is repeated sets the end of the lease once more.
//
// Leases and windows go by the store's clock. A store that reads the clock of its
// process does not follow it backwards: a clock that steps back neither ends nor
// prolongs a lease or a window. A store on a server goes by the server's clock,
// with its steps.
//
// All methods may be called at once from many goroutines. Requests and answers
// belong to the caller. A store keeps no reference to them after it returned,
// except the bytes of a Result it hands out, which nobody may change.
type Store interface {
	// Claim asks for the right to process keys. It blocks for one round trip,
	// or for one durable write where the store makes claims durable.
	//
	// A claim that its holder repeats is granted again with the same token and
	// attempt. Its lease ends at the later of the old and the new end, never
	// sooner. This holds also after the lease has ended, until another claim is
	// granted or the store has forgotten the claim. A repeated claim is a
	// Duplicate if the key was completed meanwhile, InDoubt if the record is
	// Unknown, and InFlight if another holder took the key over. A repetition
	// with another fingerprint is a Mismatch.
	Claim(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) error
	// Complete marks claimed keys done. When an answer is nil the record is as
	// durable as [Traits] promise. A stale token is answered with a
	// [*StaleTokenError] and changes nothing. The holder of an Unknown record
	// completes it with its token as well.
	Complete(ctx context.Context, reqs []CompleteRequest, answers []error) error
	// Release gives claims back, so that the next claim of the key is fresh.
	// A stale token is answered with a [*StaleTokenError] and changes nothing.
	// The holder of an Unknown record releases it with its token as well.
	Release(ctx context.Context, reqs []ReleaseRequest, answers []error) error
	// Extend sets the ends of leases, to a later or an earlier time. A stale
	// token is answered with a [*StaleTokenError] and changes nothing, also one
	// whose lease ended and whose key was taken over. A lease that ended and was
	// not taken over is extended. An Unknown record is not extended: even its
	// holder's token is stale for that.
	Extend(ctx context.Context, reqs []ExtendRequest, answers []ExtendAnswer) error
	// Traits says what the store promises. It does not block and its answer
	// does not change while the store is open.
	Traits() Traits
}

// ClaimRequest asks for one key.
type ClaimRequest struct {
	Key   Key
	Owner Owner
	// Lease is how long the right lasts, from the store's receipt of the
	// request. It must be above 0 unless Done is set.
	Lease time.Duration
	// Window is how long the key is remembered from completion. It must be
	// above 0; [Forever] is allowed. It counts when Done is set and for the
	// decision Late; otherwise the window of the completion counts.
	Window time.Duration
	// Fingerprint of the payload, or none.
	Fingerprint Fingerprint
	// Hold makes the record Unknown, instead of claimable, when the lease ends
	// without completion or release.
	Hold bool
	// Done records the key as done in the same step, without lease or result:
	// for effects that commit together with the claim, for filling a store
	// from another, and for those who would rather lose a message than repeat
	// it. A Done claim that is granted is answered with Fresh and token 0.
	//
	// The store keeps enough of the Owner to recognise a Done claim that is
	// repeated after a lost answer. The repetition is Fresh again, and its Claim
	// is empty. Another Owner gets Duplicate, and so does one who repeats the
	// request without Done. A store with a compact form may forget the Owner
	// after a while. Its documentation says when. In a transaction the effect
	// commits with the claim: repeated after the commit, the claim is a
	// Duplicate.
	Done bool
	// Time is the message's own time, or zero. A key without record is Late
	// when its message is older than Window.
	Time time.Time
}

// ClaimAnswer answers a ClaimRequest.
type ClaimAnswer struct {
	Decision Decision
	// Claim is what was granted when Fresh, and the present holder's claim
	// when InFlight or InDoubt (of a Mismatch, what the record has). A claim with
	// Done gets the attempt alone, and nothing if it repeats itself.
	Claim Claim
	// Holder is the name of the present holder when InFlight or InDoubt. It is
	// empty if the holder claimed without a name. A key may be held by a
	// transaction that has not committed: then Holder says so, and Claim is empty.
	Holder string
	// Result is the stored result when Duplicate.
	Result Result
	// Err refuses this key alone: it wraps ErrInvalidKey, ErrInvalidRequest,
	// ErrStoreFull or ErrCorrupt, and Decision is Undecided.
	Err error
}

// CompleteRequest marks a claimed key done.
type CompleteRequest struct {
	Key    Key
	Token  Token
	Result Result
	// Window is how long the key is remembered, from now. It must be above 0.
	Window time.Duration
}

// ReleaseRequest gives a claim back.
type ReleaseRequest struct {
	Key   Key
	Token Token
	// Unknown makes the record Unknown instead of absent: the holder does not
	// know whether the effect happened.
	Unknown bool
}

// ExtendRequest moves the end of a lease to Lease from now.
type ExtendRequest struct {
	Key   Key
	Token Token
	Lease time.Duration
}

// ExtendAnswer answers an ExtendRequest.
type ExtendAnswer struct {
	LeaseEnd time.Time
	Err      error
}

// Traits says what a store promises. store/storetest proves each of them both
// ways: what is claimed must hold, and what is disclaimed must be seen to fail.
type Traits struct {
	// Durable: an answered completion survives the end of the process and, if
	// the store's sync policy says so, loss of power.
	Durable bool
	// PowerSafe: Durable, and safe against loss of power at any moment.
	PowerSafe bool
	// Shared: several processes may use one store at once.
	Shared bool
	// Transactional: keys can commit in one transaction with other data.
	Transactional bool
	// Fenced: tokens of a key only grow, also over release, expiry and reopen.
	Fenced bool
	// Exact: a Duplicate rests on at least 120 bits of a keyed digest.
	Exact bool
	// Results: results are stored and replayed.
	Results bool
	// MaxResult is the longest result in bytes that is stored; a longer one is
	// refused with ErrResultTooLarge and the claim stays. 0 is no limit.
	MaxResult int64
	// Tick is the coarseness of windows: a key may be remembered up to one
	// tick longer than its window, never shorter.
	Tick time.Duration
}

// The abilities below are separate because not every store has them. A wrapper
// of stores forwards each one its inner store has.

// Looker looks records up without claiming. A Looker never changes a record.
type Looker interface {
	// Look fills one record for each key; State is Absent where there is none.
	Look(ctx context.Context, keys []Key, records []Record) error
}

// Lister lists records in no particular order, without their result data.
type Lister interface {
	// List yields records until the sequence ends, the caller stops, or an
	// error, which is yielded last. A record that changes while the listing
	// runs is yielded in its old form, its new form, or both.
	List(ctx context.Context, opts ListOptions) iter.Seq2[Record, error]
}

// ListOptions selects records.
type ListOptions struct {
	// Scope selects one scope; nil selects all.
	Scope *string
	// State selects one state; Absent selects all.
	State State
}

// Resolver settles records by hand.
type Resolver interface {
	// Resolve ends the Unknown state of a key: as Done, with the given result
	// and window, or as Absent. It answers ErrNotUnknown if the record is in
	// any other state.
	Resolve(ctx context.Context, key Key, as State, result Result, window time.Duration) error
	// Remove forgets a key in whatever state it is. It reports whether there
	// was a record.
	Remove(ctx context.Context, key Key) (bool, error)
}

// Purger forgets what has expired, now rather than when it is convenient.
type Purger interface {
	// Purge returns how many records it forgot, or about how many.
	Purge(ctx context.Context) (int64, error)
}

// Counter tells how much a store holds.
type Counter interface {
	Count(ctx context.Context) (Counts, error)
}

// Counts is how much a store holds. Expired records that are not yet forgotten
// may be among Done.
type Counts struct {
	Claimed, Done, Unknown int64
	// MemoryBytes and DiskBytes are what the records take, as far as the store
	// knows.
	MemoryBytes, DiskBytes int64
	// Oldest is the age of the oldest record that still answers: the effective
	// window. 0 if there is none.
	Oldest time.Duration
}

// KeyFilter remembers keys approximately, as a Bloom filter does: it may call a key
// known that was never added, and never calls a key new that was. All methods may be
// called by many goroutines.
type KeyFilter interface {
	// MayContain sets maybe[i] to false if keys[i] was certainly not added, and to
	// true if it may have been.
	MayContain(ctx context.Context, keys []Key, maybe []bool) error
	// Add adds keys. It refuses a key that would let the rate grow. After an error
	// it is not known which keys were added.
	Add(ctx context.Context, keys []Key) error
	// Rate is the probability with which MayContain sets true for a key that was
	// never added. It does not block.
	Rate() float64
}
