// Package outbox reads the transactional outbox that package
// github.com/semel-dev/semel/outbox writes: a source for pipelines whose messages
// are rows of a PostgreSQL table. A row is deleted when its message is settled. No
// transaction is open while messages are delivered.
//
// A [Source] reads the table. Any number of processes may read one outbox. Each owns
// a share of its 64 shards, by leases in the database. The source needs no session
// state, so it works behind PgBouncer in transaction mode.
//
// A [WALSource] reads the write-ahead log through a replication slot, in the order of
// commits. One process reads it, and others wait as standbys.
package outbox
