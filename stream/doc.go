// Package stream describes windows over the times of messages, and aggregates of the
// messages in them.
//
// An [Aggregate] gives one final result for each group of messages and window. The
// package defines what is computed, without a broker, a store or a clock. A
// broker/kafka/kafkatxn.Transactor computes it: windows, results, keys and offsets are in
// one Kafka transaction.
package stream
