// Package pipeline moves messages from a source to a sink so that each key has
// its effect once.
//
// A [Runner] knows one loop. It reads messages from a [Source], finds their keys, and
// hands them in batches to a [Session], which decides them, delivers the fresh ones
// and commits. Settled messages are acknowledged to the source. Failed messages are
// retried with backoff, and parked in a [DeadLetterStore] after the last attempt. The
// session decides the guarantee:
//
//   - [TwoPhase]: any store and any [Sink]. Claim, deliver, complete; then the
//     source is told.
//   - store is sink: keys and effects commit in one transaction, as in
//     broker/postgres.
//
// Kafka to Kafka, where the source is the sink, has a loop of its own in
// broker/kafkaio, with the words of this package.
//
// No message is acknowledged before its fate is durable: its effect is done, or was
// done before, or the message is parked. The number of messages and bytes under way
// is bounded, so a slow sink slows the source.
//
// # Order
//
// A source gives its messages in one or more partitions. A [Partition] is an ordered
// unit that a source can lose as a whole: a Kafka partition or a file. Within a
// partition, messages of the same group are delivered in order, and
// messages of different groups are not. With [OrderPartition] the partition is one
// group. With [OrderKey] each record key is a group, or each key for messages without
// a record key. [Item] has both: Partition, which the source sets, and Group, which
// the runner sets.
package pipeline
