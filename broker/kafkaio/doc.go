// Package kafkaio reads from and writes to Kafka with franz-go.
//
// A [Transactor] moves records from topics to a topic so that each key takes
// effect once: outputs, what it remembers of the keys, and the consumed
// offsets are one Kafka transaction.
package kafkaio
