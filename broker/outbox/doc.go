// Package outbox reads the transactional outbox that package
// github.com/semel-dev/semel/outbox writes: a source for pipelines whose messages
// are rows of a PostgreSQL table. A row is deleted when its message is settled.
//
// Any number of processes may read one outbox. Each owns a share of its 64 shards,
// by leases in the database. No transaction is open while messages are delivered.
// The source needs no session state, so it works behind PgBouncer in transaction
// mode.
package outbox
