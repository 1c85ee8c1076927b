// Package pipeline moves messages from a source to a sink so that each key has
// its effect once.
//
// A [Runner] has one loop. It reads messages from a [Source], finds their keys, and
// gives them in batches to a [Session]. The session decides them, delivers the fresh
// ones and commits. The runner acknowledges settled messages to the source. It retries
// failed messages with backoff, and parks them with a [Parker] after the last attempt.
// The session determines the guarantee:
//
//   - [TwoPhase] works with any store and any [Sink]. It claims keys, delivers, and
//     completes the keys.
//   - The sessions of broker/postgres and broker/file commit keys and effects together.
//   - [NewLossy] asks a filter and can lose messages.
//
// From Kafka to Kafka, broker/kafka/kafkatxn has a loop of its own, which uses the types of
// this package.
//
// The runner acknowledges a message when its outcome is durable: its effect is done, or
// was done before, or the message is parked. The number of messages and bytes in
// progress is limited, so a slow sink slows the source.
//
// # Order
//
// A source delivers its messages in one or more partitions. A [Partition] is an ordered
// unit that a source can lose as a whole, such as a Kafka partition or a file. Within a
// partition, messages of the same group are delivered in order. Messages of different
// groups are not. With [OrderPartition], the partition is one group. With [OrderKey],
// each record key is a group; a message without a record key belongs to the group of
// its key. The source sets Item.Partition, and the runner sets Item.Group.
package pipeline
