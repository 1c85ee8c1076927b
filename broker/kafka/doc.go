// Package kafka reads from Kafka and writes to it, with franz-go.
//
// A [Source] reads topics as a member of a consumer group, and a [Sink] writes a
// topic. A [Parker] parks messages in a dead-letter topic, and a [DeadLetterTopic]
// lists, redrives and settles them. [Examine] checks whether the brokers keep what a
// pipeline promises, and an [Admin] ends transactions that hang.
//
// Package kafkatxn, below this one, moves records from Kafka to Kafka in transactions.
package kafka
