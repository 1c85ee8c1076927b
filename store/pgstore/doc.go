// Package pgstore keeps keys in PostgreSQL 14 or newer, shared by any number of
// processes.
//
// One row for each key decides everything: its primary key is the arbiter
// between claims, and no second table can disagree with it. Keys are kept as
// 128-bit keyed digests in a uuid column; the secret of the digests lives in
// the database, so that all processes agree. All times are the server's.
//
// [Connect] with [Options].Migrate creates the tables. If the role of the program may
// not create tables, run [Migrate], or the SQL that [SQL] prints, under another role.
// The role of the store then needs SELECT, INSERT, UPDATE and DELETE on the tables, and
// USAGE on the schema and on the sequence. Clean-up by message time also needs TRUNCATE
// on the partitions.
//
// Keys are forgotten in one of two forms: row by row, or by the time inside their
// ids. [MigrateOptions].Cleanup chooses the form when the tables are created. A
// key is remembered for exactly its window in both; they differ in cost.
// [Store.Maintain] does the work.
//
// A failover to an asynchronous standby forgets the keys that the standby had not
// received. Their effects may be repeated; keys of [Guard.DoTx] are gone together with
// their writes. Fencing tokens may fall to those that the standby had. A synchronous
// standby forgets nothing.
//
// The store needs no session and, without [Options].Prepare, no named prepared
// statement, so that it works behind PgBouncer in transaction mode. Transactions of a
// [Guard] use the mode of the pool. [Connect] opens a pool that names no statements. A
// pool given to [New] must not have the mode cache_statement behind such a pooler.
package pgstore
