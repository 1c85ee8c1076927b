// Package dedup keeps the first line of each key of its inputs: the engine of
// the verb dedup.
//
// # The path of a line
//
// One goroutine reads: it cuts the inputs into blocks of whole lines (see
// reader.go). Workers parse blocks side by side: for each line the digest of
// its key and a print of its content (parse.go, csv.go). One goroutine, the
// committer, takes the blocks in the order of the inputs, decides all lines of
// a block in one call of the key set, moves the lines that stay together
// inside the block's own memory, and writes them with one call (commit.go).
// Blocks come from a pool that is filled once, which bounds all queues.
//
// # What a crash leaves
//
// With a store, an output file and inputs that are files, the committer puts
// three things into one durable record of the store: the keys, the position
// behind the last line decided, and the length and checksum of each output.
// The outputs are synced before that record is written. The next start cuts
// the outputs to the recorded lengths and goes on at the recorded position
// (state.go), so nothing is lost and nothing repeated. Where one side is a
// pipe there is no position to return to: lines are written before their keys
// are recorded, so that they can only come again.
package dedup
