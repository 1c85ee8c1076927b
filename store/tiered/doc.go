// Package tiered stacks filters and caches above one durable store.
//
// The durable store decides. It gets every claim that a layer above cannot
// answer, and it is the first to get a completion. Only its answers are copied
// to the layers above:
//   - after a completion,
//   - after a granted claim with Done,
//   - after a duplicate that it recognised.
//
// If an answer is lost, nothing is copied.
//
// # Caches
//
// A cache answers only one question: whether a key is done. If so, it returns
// the stored result, and the stack does not ask the layers below. The stack
// ignores what a cache knows about claims. It leaves a payload with a different
// fingerprint to the durable store.
//
// A copy lives for at most half of the remaining life of its record, and for at
// most [Options].MaxAge. It therefore expires before its record, even if it was
// written late or if clocks differ, by up to that half. If a record is removed
// without the stack, a copy can still answer, for at most MaxAge.
//
// A claim with Done that names an owner always goes to the durable store. A
// copy does not contain the owner, so a claim that is repeated after a lost
// answer would be a duplicate of itself. The store never recognises a repeated
// claim with Done and without an owner, so caches may answer such claims.
//
// # Filters
//
// A filter answers only one question: whether a key is certainly new. That
// saves the reads of the caches below the filter and nothing else: the durable
// claim is never skipped. It is effective only if the filter has seen the keys
// of every writer; see [Layer]. The layers below check each "maybe
// seen".
//
// # Outages
//
// The stack skips a failed cache or filter for [Options].Retry at a time, so an
// outage costs one timeout per pause instead of one per call. If the layer's
// server may be down when the program starts, open the layer with [OpenCache]
// or [OpenFilter]. The layer counts as failed until it is open.
//
// [Options].OnOutage selects the behaviour when the durable store does not
// answer:
//   - [Stop] returns an error. This is the default.
//   - [Wait] retries until the store answers.
//   - [Pass] lets messages pass, which gives up the promise that an effect does
//     not repeat.
//
// No outage turns a message into a duplicate.
//
// # Removal
//
// Remove, Resolve and Purge reach all layers. After a removal through a stack,
// this stack reports no copy of the key as done. That holds even if a copy was
// being written at that moment, or if the cache was unreachable.
//
// Other processes that share the cache do not report the key either, unless the
// cache was unreachable. In that case Remove returns an error, and they may
// report the key for at most MaxAge. Other processes' own caches forget the key
// within MaxAge.
package tiered
