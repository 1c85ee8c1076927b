// Package pipeline moves messages from a source to a sink so that each key has
// its effect once.
//
// A [Runner] knows one loop. It reads messages from a [Source], finds their
// keys, and hands them in batches to a [Session], which decides them, delivers
// the fresh ones and commits. What is settled is acknowledged to the source,
// what failed is tried again or put aside in a [DeadLetterStore]. The session behind the
// loop decides the guarantee:
//
//   - [TwoPhase]: any store and any [Sink]. Claim, deliver, complete; then the
//     source is told.
//   - store is sink: keys and effects commit in one transaction, as in
//     broker/pgsink.
//
// Kafka to Kafka, where the source is the sink, has a loop of its own in
// broker/kafkaio, with the words of this package.
//
// No message is acknowledged before its fate is durable: done, known to be
// done, or put aside. Order is kept within a group of a partition. The number of
// messages and bytes under way is bounded, so a slow sink slows the source.
package pipeline
