// Package logstore is the embedded, durable store for one process.
//
// Keys live in an append-only log of segments and in an index in memory that
// takes 10 to 13 bytes a key. Each group of changes that arrive together is one
// record with a checksum, written and synced once; a lone caller waits for
// nobody. The index tells where in the log a key may be; every hit is confirmed
// there against the key's whole 128-bit digest before anything is called a
// duplicate. Segments whose keys have expired are deleted whole.
//
// A claim in retry mode lives in memory only, for the leases of a process end
// with it: a message costs one durable write, at its completion. With
// ClaimRequest.Hold the claim is durable before it is answered, and a key whose
// process died is unknown until it is resolved or its late holder completes it.
//
// After a write or sync that failed the store stops with semel.ErrStoreFailed,
// and what was not answered is not known; opening it again finds out. A full
// disk is not such a failure: space is reserved before anything is changed, and
// changes are refused with semel.ErrStoreFull until there is some.
//
// A completion that is repeated with its token is recognised for as long as the
// key is remembered, by the token or by 32 bits of it. So is a Done claim that
// is repeated with its owner's nonce.
//
// [Tx] lets a sink that lives beside the store commit keys, source positions
// and output lengths in one record. The format of the files is described in
// docs/format.md.
package logstore
