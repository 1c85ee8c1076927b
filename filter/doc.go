// Package filter answers whether an id may have been seen before, in a few
// bits or bytes for each id. "Not seen" is certain. "Maybe seen" is wrong with
// a probability that is stated, so it must be confirmed by a store that keeps
// keys: who drops a message on "maybe seen" alone loses new messages at the
// error rate.
//
//	            remembers     forgets             bits/id   error at capacity   at twice the capacity
//	Bloom       for ever      –                   14.4      at most 0.1 %       5.6 %
//	Blocked     for ever      –                   15.6      at most 0.1 %       3.7 %
//	Rotating    for a window  by generation       24.9      at most 0.1 %       9.2 %
//	Table       for a window  by slice, and one   46.1      at most 1e-6        refuses at 1.2 times
//
// The figures are for the default options; a lower ErrorRate costs about 1.5
// bits for each halving (Rotating 1.7). A Table has one error rate. Bloom is the
// smallest; Blocked is the fast one when the filter is larger than the
// processor's cache; Rotating serves a window by count as well as by time;
// Table is for a window whose ids may have to be given up again, such as claims
// whose handler failed.
//
// A filter has a capacity. Beyond it Add refuses with [ErrFull] or, if the
// options ask so, goes on and Over and ErrorRate tell. ErrorRate always follows
// from what is set in the filter, not from what was asked for.
//
// Ids are hashed with SipHash-2-4-128 under a secret [Seed], so that ids chosen
// by an attacker collide no more often than others. Whoever reads the
// serialised form has the seed.
//
// No filter is safe for concurrent use, except that any number of Has and
// HasDigest may run at once while no other method does. No method blocks.
package filter
