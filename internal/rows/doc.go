// Package rows has the rows of a table in memory: adds changes, finds the row of a key,
// also as of an earlier time, and forgets what no message needs any longer. It has no
// broker and no clock.
package rows
