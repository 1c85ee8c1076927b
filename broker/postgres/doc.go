// Package postgres writes messages to PostgreSQL: a statement, a row of a table,
// or an upsert that knows versions, for each message.
//
// [Session] writes in the transaction that records the key, where the keys are
// in the same database: then a message has its effect once, whatever dies when.
// [Sink] is for keys that are elsewhere. [NewHandler] is for those who write the
// effect in Go, with the transaction in hand.
package postgres
