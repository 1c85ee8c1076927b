// Package semel makes a message, an event or a request take effect once,
// although every reliable system delivers it more than once.
//
// A [Guard] wraps a [Store]. Its Do claims a [Key], runs the effect and
// completes the key with the effect's result; a second delivery of the same
// key gets the stored result and the effect does not run again. A claim has a
// lease, so that a crash cannot lose the message, and a fencing token, so that
// a holder that was thought dead cannot overwrite its successor.
//
// Two rules hold everywhere in this module. A delivery is called a duplicate
// only when a completed effect of the same key stands behind it. And doubt is
// resolved to "process again" unless the caller says otherwise.
//
// The package imports the standard library alone. Stores live in
// store/memstore and store/logstore; store/storetest is the suite that every
// store passes.
package semel
