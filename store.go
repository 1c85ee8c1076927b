package semel

import (
	"context"
	"iter"
	"time"
)

// Store keeps records. Every call takes many keys in one round trip. If a key
// occurs twice in one call, the requests are decided in the order of the call.
//
// Each method fills its second argument with one answer for each request. Both
// slices must have the same length. Otherwise the call fails with
// ErrInvalidRequest, and neither records nor answers change. A call without
// requests is allowed.
//
// If the call itself returns an error, some answers are missing. An answer that
// is still zero is unknown: the change may or may not have been made. [Classify]
// says whether to send the request again. A call whose context ended before it
// changes nothing and fails with ErrStoreUnavailable and the error of the
// context. A call after Close fails with ErrClosed.
//
// Repeating a request is safe for every method:
//   - A claim repeated by the same [Owner] is the same claim. See Claim and
//     [ClaimRequest].Done.
//   - A completion repeated with the same token succeeds.
//   - A release that is repeated succeeds or gets a [*StaleTokenError]. It
//     changes nothing, even if another holder has the key by then.
//   - An extension that is repeated sets the end of the lease again.
//
// Leases and windows use the store's clock. A store may read the clock of its own
// process. If that clock steps back, no lease or window ends early or lasts
// longer. A store on a server uses the server's clock, including its steps.
//
// Tokens of a key only grow, see [Token].
//
// All methods are safe for concurrent use. Requests and answers belong to the
// caller. A store keeps no reference to them after it returns. The exception is
// the bytes of a Result that it hands out, which must not be modified.
type Store interface {
	// Claim requests the right to process keys. It blocks for one round trip, or
	// for one durable write if the store makes claims durable.
	//
	// If the holder repeats a claim, it is granted again with the same token and
	// attempt. Its lease then ends at the later of the old and the new end. This
	// also holds after the lease has ended, until another claim is granted or the
	// store has forgotten the claim. A repeated claim gets:
	//   - Duplicate if the key has been completed.
	//   - OutcomeUnknown if the record is Unknown.
	//   - InFlight if another holder took the key over.
	//   - Mismatch if the repetition has another fingerprint.
	Claim(ctx context.Context, reqs []ClaimRequest, answers []ClaimAnswer) error
	// Complete marks claimed keys as done. When an answer is nil, the record is as
	// durable as [Traits] promises. A stale token gets a [*StaleTokenError] and
	// changes nothing. The holder of an Unknown record can still complete it with
	// its token.
	Complete(ctx context.Context, reqs []CompleteRequest, answers []error) error
	// Release gives claims back, so that the next claim of the key is Fresh. A
	// stale token gets a [*StaleTokenError] and changes nothing. The holder of an
	// Unknown record can still release it with its token.
	Release(ctx context.Context, reqs []ReleaseRequest, answers []error) error
	// Extend sets the end of leases to a later or an earlier time. A stale token
	// gets a [*StaleTokenError] and changes nothing. This includes a token whose
	// lease ended and whose key was taken over. A lease that ended but was not
	// taken over is extended. An Unknown record cannot be extended, not even with
	// its holder's token.
	Extend(ctx context.Context, reqs []ExtendRequest, answers []ExtendAnswer) error
	// Traits returns the promises of the store. It does not block. The answer does
	// not change while the store is open.
	Traits() Traits
}

// ClaimRequest requests the claim of one key.
type ClaimRequest struct {
	Key   Key
	Owner Owner
	// Lease is how long the claim lasts, measured from when the store receives the
	// request. It must be above 0 unless Done is set.
	Lease time.Duration
	// Window is how long the key is remembered after completion. It must be above
	// 0; [Forever] is allowed. It is used if Done is set, and to decide Late.
	// Otherwise the window of the completion is used.
	Window time.Duration
	// Fingerprint is the digest of the payload, or zero.
	Fingerprint Fingerprint
	// Hold makes the record Unknown if the lease ends without completion or
	// release. Without Hold, the key can be claimed again.
	Hold bool
	// Done records the key as done in the same step, without lease or result. Use
	// it for effects that commit together with the claim, or to fill a store from
	// another. Use it even if you would rather lose a message than repeat it. A
	// granted Done claim gets Fresh and token 0.
	//
	// The store keeps enough of the Owner to recognise a Done claim that is
	// repeated after a lost answer. The repetition is Fresh again, and its Claim is
	// empty. A different Owner gets Duplicate, and so does a repetition without
	// Done. A store with a compact form may forget the Owner after a while; its
	// documentation says when. In a transaction, the effect commits with the claim:
	// a claim repeated after the commit is a Duplicate.
	Done bool
	// Time is the message's own time, or zero. A key without a record is Late if
	// its message is older than Window.
	Time time.Time
	// Origin says for people where this delivery comes from, in at most
	// MaxOriginBytes. If the claim is granted, it replaces the origin of the
	// record. A store without [Traits].Origins ignores it. Empty means unknown.
	Origin string
}

// ClaimAnswer answers a ClaimRequest.
type ClaimAnswer struct {
	Decision Decision
	// Claim is the granted claim if Fresh, and the current holder's claim if
	// InFlight or OutcomeUnknown. For a Mismatch it has what the record holds. A Done
	// claim gets only the attempt, and nothing if it repeats an earlier request.
	Claim Claim
	// Holder is the name of the current holder if InFlight or OutcomeUnknown. It is empty
	// if the holder claimed without a name. If an uncommitted transaction holds the
	// key, Holder says so and Claim is empty.
	Holder string
	// Result is the stored result if Duplicate.
	Result Result
	// Err refuses only this key; Decision is then Undecided. It wraps
	// ErrInvalidKey, ErrInvalidRequest, ErrStoreFull or ErrCorrupt.
	Err error
}

// CompleteRequest marks a claimed key as done.
type CompleteRequest struct {
	Key    Key
	Token  Token
	Result Result
	// Window is how long the key is remembered from now. It must be above 0.
	Window time.Duration
}

// ReleaseRequest gives a claim back.
type ReleaseRequest struct {
	Key   Key
	Token Token
	// Unknown makes the record Unknown instead of absent. Set it if the holder does
	// not know whether the effect happened.
	Unknown bool
}

// ExtendRequest sets the end of a lease to Lease from now.
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

// Traits says what a store promises. store/storetest tests each trait both ways:
// a promised trait must hold, and a trait not promised must be seen to fail.
type Traits struct {
	// Durable: a completion survives the end of the process once it is answered. It
	// survives power loss if the store's sync policy says so.
	Durable bool
	// PowerSafe: Durable, and safe against power loss at any moment. storetest proves it
	// for a store that does its file work through package vfs. For a store on a server,
	// or on a library with files of its own, it is the word of that server or library. No test
	// can take away data that the operating system still has.
	PowerSafe bool
	// DurableClaims: a granted claim survives the end of the process in the same way as
	// a completion. After a reopen it has its owner, token, attempt and lease. Until that
	// lease ends, no other owner gets the key. Without this trait a claim ends with the
	// process. With Hold, its key is then unknown.
	DurableClaims bool
	// Shared: several processes may use one store concurrently.
	Shared bool
	// Transactional: keys can commit in one transaction with other data.
	Transactional bool
	// Exact: a Duplicate decision compares at least 120 bits of a keyed digest.
	Exact bool
	// Results: results are stored and replayed.
	Results bool
	// MaxResult is the maximum size in bytes of a stored result. A larger result is
	// refused with ErrResultTooLarge, and the claim stays. 0 means no limit.
	MaxResult int64
	// Origins: a record shows the origin of the claim that holds or completed it.
	Origins bool
	// Tick is the resolution of windows. A key may be remembered up to one tick
	// longer than its window, never shorter.
	Tick time.Duration
	// Batching: how Join sends concurrent single requests to the store.
	Batching Batching
}

// Batching says how [Join] batches concurrent single requests. The zero value means
// one call of a method at a time, with any number of requests.
type Batching struct {
	// Off: the store batches requests itself. It gets each call as it comes. Calls
	// that it answers from memory must not wait for calls that take a round trip.
	Off bool
	// Calls is how many calls of a method may run concurrently. 0 means 1.
	Calls int
	// Least is the minimum number of requests with which a further concurrent call
	// starts.
	Least int
	// Most is the maximum number of requests in one call. 0 means no limit.
	Most int
}

// The interfaces below are optional. [As] finds them in a store or in the store
// that it wraps.

// Inspector reads records without claiming. It never changes a record.
type Inspector interface {
	// Look fills one record for each key. State is Absent if there is no record.
	Look(ctx context.Context, keys []Key, records []Record) error
	// List yields records in no particular order, without their result data. It
	// ends when it reaches the end, the caller stops, or an error occurs. The error
	// is yielded last. A record that changes during the listing is yielded in its
	// old form, its new form, or both.
	List(ctx context.Context, opts ListOptions) iter.Seq2[Record, error]
	// Count reports how much the store holds.
	Count(ctx context.Context) (Counts, error)
}

// ListOptions selects records.
type ListOptions struct {
	// Scope selects one scope; nil selects all.
	Scope *string
	// State selects one state; Absent selects all.
	State State
}

// Selects reports whether the options select a record. A record without a readable
// key is in no scope.
func (o *ListOptions) Selects(r *Record) bool {
	return (o.State == Absent || o.State == r.State) && (o.Scope == nil || r.Key.ID != "" && r.Key.Scope == *o.Scope)
}

// ResolveRequest settles the record of a key whose state is Unknown.
type ResolveRequest struct {
	Key Key
	// As is Done or Absent.
	As State
	// Result and Window are those of the Done record. The window must be above 0.
	Result Result
	Window time.Duration
}

// Resolver settles records by an operator's decision.
type Resolver interface {
	// Resolve ends the Unknown state of a key. It returns ErrNotUnknown if the record is
	// in any other state.
	Resolve(ctx context.Context, req ResolveRequest) error
	// Remove deletes the record of a key in any state. It reports whether there was
	// a record.
	Remove(ctx context.Context, key Key) (bool, error)
}

// DigestResolver finds and settles a record by the digest that List shows, for operators
// of a store that keeps no readable keys. Its methods return an error that wraps
// errors.ErrUnsupported if the store needs the key itself.
type DigestResolver interface {
	// LookDigest returns the record of a digest without claiming it. State is
	// Absent if there is no record. It blocks like Look of [Inspector].
	LookDigest(ctx context.Context, d Digest) (Record, error)
	// ResolveDigest is Resolve of [Resolver] for the record of a digest. The request's Key
	// does not count.
	ResolveDigest(ctx context.Context, d Digest, req ResolveRequest) error
	// RemoveDigest is Remove of Resolver for the record of a digest.
	RemoveDigest(ctx context.Context, d Digest) (bool, error)
}

// Purger deletes expired records immediately. Without it, a store deletes them
// when convenient.
type Purger interface {
	// Purge returns the number of deleted records. The number may be approximate.
	Purge(ctx context.Context) (int64, error)
}

// ScopeBinder remembers what a scope belongs to. Use it through [BindScope] and
// [CheckScope].
type ScopeBinder interface {
	// BindScope binds a scope to an owner, which is the text of a ScopeOwner, unless
	// the scope is bound already. It returns the owner to which the scope is bound.
	// With an empty owner it binds nothing, and returns an empty text for a scope that
	// is not bound. It blocks for one round trip or durable write. If calls are made
	// concurrently, all return the same owner.
	BindScope(ctx context.Context, scope, owner string) (bound string, err error)
}

// Counts is how much a store holds. Done may include expired records that are not
// yet deleted.
type Counts struct {
	Claimed, Done, Unknown int64
	// MemoryBytes and DiskBytes are the space that the records take, as far as the
	// store knows.
	MemoryBytes, DiskBytes int64
	// Oldest is the age of the oldest record that the store still answers for: the
	// effective window. It is 0 if there are no records.
	Oldest time.Duration
}
