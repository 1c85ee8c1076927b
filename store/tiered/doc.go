// Package tiered stacks stores: filters and caches above one durable store.
//
// The durable store decides. Every claim that a layer above it cannot answer
// goes there, every completion is written there first, and only what it has
// answered is copied upwards: after a completion, after a claim with Done that
// was granted, and after a duplicate that it recognised. An answer that did not
// come is copied nowhere.
//
// A cache answers one thing alone: that a key is done. It does so without the
// layers below being asked, with the stored result. What a cache knows of
// claims is ignored, and a payload with another fingerprint is left to the
// durable store to judge. A copy lives for at most half of what remains of its
// record, and for [Options].MaxAge at most, so that it is gone before the
// record is, however late it was written and however far clocks are apart
// within that half; and so that a record removed behind the back of a stack is
// forgotten there too. A claim with Done that names an owner always goes to the
// durable store: a copy does not say who made its key done, so that a claim which
// is repeated after a lost answer would be a duplicate of itself. A claim with Done
// and without an owner is never recognised, and caches may answer it.
//
// A filter answers one thing alone: that a key is certainly new. That saves the
// reads of the caches below the filter, and nothing else: the durable claim is
// never skipped. It counts only where the filter has seen the keys of every
// writer, see [Options].SoleWriter. "Maybe seen" is confirmed below.
//
// # Outages
//
// A cache or filter that fails is left out, for [Options].Retry at a time: an
// outage costs one time-out, not one for each call. One whose server may be down
// when the program starts is opened by [OpenCache] or [OpenFilter]; until it is
// open it counts as failed. What happens when the
// durable store does not answer is [Options].OnOutage: an error, which is the
// default, waiting, or passing, which gives up the promise that an effect does
// not repeat. No outage makes a message a duplicate.
//
// # Removal
//
// Remove, Resolve and Purge reach all layers. A key that was removed through a
// stack is not called done by any copy that this stack reads, also if a copy
// was under way at that moment or the cache could not be reached; and by none
// that another process reads from a cache they share, unless the cache could
// not be reached, which is an error of Remove, and then for MaxAge at most.
// Other processes' own caches forget the key within MaxAge.
package tiered
