// Package stream describes windows over the times of messages, and aggregates of the
// messages in them.
//
// An [Aggregate] gives one final result for each group of messages and window. The
// package only defines aggregates; it has no broker, store or clock. A
// broker/kafka/kafkatxn.Transactor computes them: windows, results, keys and offsets are
// in one Kafka transaction.
package stream
