// Package faults proves what the stores promise while workers, servers and the
// network between them fail.
//
// Workers are processes of this test binary. Their effects are lines of a
// journal, which another process appends and syncs, or rows of PostgreSQL where
// effect and key commit together. When a run has ended, a checker reads the
// journal (check.go) and says what was lost, what happened twice, and which
// duplicates had nothing behind them.
//
// A run has two phases: faults, in which nothing may be wrong, and quiet, in
// which everything must come to its end. Each fault has to prove that it
// happened.
//
//	go test . -race-keys 10000               a smaller race proof
//	go test . -kills 200 -rounds 20          longer
//	go test . -seed N                        the same random choices again
package faults
