// Package logstore is the embedded, durable store for one process.
//
// Keys live in an append-only log of segments and in a memory index that takes
// 10 to 13 bytes per key. Changes that arrive together form one record with a
// checksum, which is written and synced once. A single caller does not wait for
// other callers. The index gives the possible position of a key in the log. The
// store compares the whole 128-bit digest there before it reports a duplicate.
// It deletes a segment as a whole when all its keys have expired.
//
// If the keys take more than Options.MaxIndexBytes, the oldest leave memory for sorted
// files. A filter of about 10 bits per key stays, so a new key still needs no read, and a
// known one needs one read.
//
// In retry mode a claim lives in memory only, because the leases of a process
// end with it. A message therefore costs one durable write, at its completion. If
// effects outlive their process, set Options.DurableClaims: then claims and leases
// are durable before they are answered. With ClaimRequest.Hold the claim always is.
// If the process dies, or the durable lease ends, the key is unknown until it is
// resolved or its late holder completes it.
//
// After a failed write or sync the store stops with semel.ErrStoreFailed. The
// outcome of unanswered calls is then unknown until the store is opened again.
// A full disk does not stop the store: it reserves space before it changes
// anything. Until there is space, it refuses changes with semel.ErrStoreFull.
//
// The store recognises a repeated completion for as long as it remembers the
// key, by the token or by 32 bits of it. It recognises a repeated Done claim
// the same way, by its owner's nonce.
//
// With [Tx], a sink in the same process commits keys, source positions and
// output lengths in one record. FORMAT.md describes the file format.
package logstore
