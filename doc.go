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
// The package imports only the standard library. Stores live in store/memstore,
// store/logstore and other packages under store. Every store passes the suite in
// store/storetest.
package semel
