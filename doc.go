// Package semel makes a message, an event or a request take effect once. Every
// reliable transport may deliver it more than once.
//
// A [Guard] wraps a [Store]. Its Run method claims a [Key], runs the effect and
// completes the key. A second delivery of the same key returns nil; the effect does
// not run again. Each claim has a lease and a fencing token. The lease keeps a crash
// from losing the message. The token keeps a holder that was thought dead from
// overwriting its successor.
//
// These are the names that a user needs, in the order of need. All others are for
// authors of stores, who start at Store, and of pipelines, who start at [Batch].
//
//   - Run an effect once: [NewGuard], [GuardOptions], [ClaimOf], [Claim].
//   - Give duplicates its result: [Do], [DoCodec], [Codec], [JSON]. In bytes: [Func],
//     [Outcome], [Decision], [Result].
//   - After an error: [MayAck], [Permanent], [PermanentError], [InFlightError],
//     [Classify], [Class].
//   - Set more for a delivery: [Call], [Fingerprint], [Forever], [ExpiryPolicy],
//     [LatePolicy].
//   - Run many together: [BatchFunc], [BatchItem], [BatchOutcome].
//   - Say what the ids of a scope mean: [BindScope], [ScopeOwner].
//   - See what happens: [Observer], [Event], [Tracer], [Record], [State].
//   - Find the key of a message, with package key: [Message], [Header], [Origin].
//
// Two rules hold everywhere in this module:
//   - A delivery is called a duplicate only if an effect of the same key has
//     completed.
//   - When in doubt, Semel processes the message again, unless the caller chose
//     otherwise.
//
// After a call, the message may be acknowledged, must come again, or must be parked.
// [MayAck] decides the first:
//
//	error of Run, Do, DoBatch, DoTx   MayAck  what to do with the message
//	nil                               yes     acknowledge: the effect is complete, now or before
//	ErrResultNotKept                  yes     acknowledge: complete, but without a result
//	*PermanentError                   yes     park, then acknowledge: retries cannot fix it
//	ErrInFlight                       no      retry with a delay: another holder works on the key
//	ErrOutcomeUnknown, ExpiryHold     no      park until the key is resolved
//	ErrOutcomeUnknown, ErrLeaseLost   no      retry: the effect may have happened
//	ErrMismatch, ErrLate              no      park: a retry gets the same answer
//	ErrInvalidKey, ErrInvalidRequest  no      park, and fix the caller
//	any other                         no      retry
//
// The package imports only the standard library. Stores are in the packages
// under store: logstore, pgstore, redisstore, tiered and memstore. Every store passes the suite in
// store/storetest.
package semel
