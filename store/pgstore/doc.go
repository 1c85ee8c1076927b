// Package pgstore keeps keys in PostgreSQL 14 or newer. Any number of processes
// may share them.
//
// Each key has one row, and that row decides everything. Its primary key
// arbitrates between claims, and no second table can contradict it. Keys are kept
// as 128-bit keyed digests in a uuid column. The secret of the digests is stored
// in the database, so that all processes compute the same digest. All times are
// the server's.
//
// [Connect] with [Options].Migrate creates the tables. If the role of the program
// may not create tables, run [Migrate], or the SQL that [SQL] prints, under
// another role. The role of the store then needs SELECT, INSERT, UPDATE and
// DELETE on the tables, and USAGE on the schema and on the sequence. Clean-up by
// message time also needs TRUNCATE on the partitions.
//
// Expired keys are removed in one of two forms: row by row, or by the time inside
// their ids. [MigrateOptions].Cleanup chooses the form when the tables are
// created. Both remember a key for exactly its window; they differ in cost.
// [Store.Maintain] does the work.
//
// A failover to an asynchronous standby loses the keys that the standby had not
// received, and their effects may be repeated. Keys of [Guard.DoTx] are lost
// together with their writes. Fencing tokens may fall back to those of the
// standby. A synchronous standby loses nothing.
//
// The store needs no session state. Without [Options].Prepare it uses no named
// prepared statements, so it works behind PgBouncer in transaction mode.
// Transactions of a [Guard] use the query mode of the pool. [Connect] opens a
// pool that uses no named statements. Behind such a pooler, a pool given to [New]
// must not use the mode cache_statement.
package pgstore
