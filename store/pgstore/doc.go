// Package pgstore keeps keys in PostgreSQL 14 or newer, shared by any number of
// processes.
//
// One row for each key decides everything: its primary key is the arbiter
// between claims, and no second table can disagree with it. Keys are kept as
// 128-bit keyed digests in a uuid column; the secret of the digests lives in
// the database, so that all processes agree. All times are the server's.
//
// The tables are made by [Migrate], or by the SQL that [SQL] prints, under a
// role that may create them. The role of the store itself needs no more than
// SELECT, INSERT, UPDATE and DELETE on the tables and USAGE on the schema and
// on the sequence.
//
// The store holds neither sessions nor named prepared statements unless it is
// told to (see [Options].Prepare), so that it works behind PgBouncer in
// transaction mode.
package pgstore
