// Package postgres writes messages to PostgreSQL: a statement or a row of a
// table for each message. With a key and a version, a table keeps the newest
// version of each row.
//
// [Session] writes in the transaction that records the key, if the keys are in
// the same database. A message then has its effect once, whatever fails. [Sink]
// is for keys in another store. [NewHandler] runs an effect that is written in
// Go in that transaction.
package postgres
