// Package webhook is a sink that sends each message as an HTTP request.
//
// The target gets what it needs to have an effect once: the key in
// Idempotency-Key, the number of the attempt, and the fencing token of the
// claim. What it answers decides what follows: its status whether the message is
// delivered, tried again or given up, Retry-After when, its body the result that
// is kept with the key.
//
// Nothing is sent to a private address unless that is allowed, whatever the name
// of the target resolves to at that moment. Redirects are not followed.
package webhook
