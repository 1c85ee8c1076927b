// Package kafkatxn moves records from Kafka topics to a Kafka topic so that each key
// takes effect once.
//
// A [Transactor] writes the outputs, the keys and the consumed offsets in one Kafka
// transaction. Readers of the output see each effect once if they read only committed
// records (isolation.level=read_committed).
package kafkatxn
