// Package dedup is the engine of the verb dedup: it keeps the first or
// the last line of each key of its inputs.
//
// # The path of a line
//
// One goroutine reads the inputs and cuts them into blocks of whole lines
// (reader.go). Workers parse blocks concurrently. They compute, for each line,
// the digest of its key and a print of its content (worker.go, csv.go). One
// goroutine, the committer, takes the blocks in the order of the inputs. It
// decides all lines of a block in one call of the key set, moves the kept lines
// together inside the block's memory, and writes them with one call
// (commit.go). Blocks come from a pool of fixed size, which bounds all queues.
//
// # Crash safety
//
// If there is a store, and the inputs and the output are files, the committer
// puts three things into one durable record of the store: the keys, the
// position after the last decided line, and the length and checksum of each
// output. It syncs the outputs before it writes that record. The next start
// cuts the outputs to the recorded lengths and continues at the recorded
// position (state.go). So no line is lost and no line is repeated. If an input
// or the output is a pipe, there is no position to return to. Lines are then
// written before their keys are recorded, so that a crash can repeat lines but
// not lose them.
package dedup
