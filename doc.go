// Package semel makes a message, an event or a request take effect once. Every
// reliable transport may deliver it more than once.
//
// A [Guard] wraps a [Store]. Its Do method claims a [Key], runs the effect and
// completes the key with the effect's result. A second delivery of the same key
// gets the stored result; the effect does not run again. Each claim has a lease
// and a fencing token. The lease keeps a crash from losing the message. The token
// keeps a holder that was thought dead from overwriting its successor.
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
//	error of Do, DoBatch or DoTx      MayAck  what to do with the message
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
