// Package filter tells whether an id may have been seen before, and takes a few
// bits for each id. "Not seen" is certain. "Maybe seen" is wrong at a stated
// error rate, so confirm it with a store that keeps keys. A program that drops
// messages on "maybe seen" alone loses new messages at the error rate.
//
//	            remembers     forgets         bits/id   error at capacity   at twice the capacity
//	Blocked     always        never           15.6      at most 0.1 %       3.7 %
//	Rotating    for a window  by generation   24.9      at most 0.1 %       9.2 %
//
// The figures are for the default options. Each halving of ErrorRate costs about
// 1.5 bits for each id, and 1.7 bits in a Rotating filter. Below 1e-5 it costs
// more: a Blocked filter takes 39 bits for each id at 1e-6, and 92 bits at 1e-9.
//
// Rotating forgets ids that are older than its window.
//
// A filter has a capacity. At capacity Add returns [ErrFull]. With [Report] it
// continues instead, and Over and ErrorRate show the result. ErrorRate is
// computed from the bits that are set, not from the rate in the options.
//
// Ids are hashed with SipHash-2-4-128 under a secret random seed. An attacker who
// does not know the seed cannot choose ids that collide more often than others.
//
// A filter has no serialised form. A filter that is restored from a copy lacks
// the ids that were added after the copy, and its "not seen" is no longer
// certain. After a restart, start with an empty filter above a store.
//
// No filter is safe for concurrent use, with one exception: calls of Has may run
// concurrently while no other method runs. No method blocks.
package filter
