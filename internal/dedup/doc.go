// Package dedup is the engine of the verb dedup: it keeps the first or
// the last line of each key of its inputs.
//
// # The path of a line
//
// Several workers share the work (pass.go). A worker reads a block of whole lines
// while no other worker reads (reader.go). It parses the block: for each line, it
// computes the digest of its key and a print of its content (worker.go, csv.go).
// Then it commits the blocks whose turn it is in the order of the inputs, unless
// another worker commits, which then takes the block too. To commit a block, the
// committer decides all its lines in one call of the key set. It moves the kept
// lines together inside the block's memory, and writes them with one call
// (commit.go). Blocks come from a pool of fixed size, which bounds all memory but
// that of the keys.
//
// # Crash safety
//
// If there is a store, and the inputs and the output are files, the committer
// puts three things into one durable record of the store. These are the keys, the
// position after the last decided line, and the length and checksum of each
// output. The committer syncs the outputs before it writes that record. The next start
// cuts the outputs to the recorded lengths and continues at the recorded
// position (state.go). So no line is lost and no line is repeated. If an input
// or the output is a pipe, there is no position to return to. Lines are then
// written before their keys are recorded, so that a crash can repeat lines but
// not lose them.
package dedup
