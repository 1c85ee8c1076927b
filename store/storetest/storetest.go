// Package storetest is the suite that every store passes, and every stack of
// stores.
//
// [Run] holds a store to the contract of [semel.Store] and of the abilities it
// has. No case is skipped: where [semel.Traits] disclaim a promise, the suite
// asserts that the promise does not hold, so that a trait which says too little
// is noticed like one that says too much. Throughout, every answer Duplicate
// must have a completion behind it that somebody asked for.
//
// [RunCrash] holds a durable store to its promises over crashes, full disks,
// failed syncs, rotten bits and files that lost their ends. The store must do
// its file work through package vfs.
//
// The random tests print their seed; SEMEL_SEED in the environment repeats one.
// With go test -short, cases that try often try a third as often.
package storetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// Harness tells the suite how to make the store under test.
type Harness struct {
	// New prepares an empty place for the data of one test, for instance a new
	// directory, and returns the function that opens the store there. The
	// suite opens, closes and opens again at will; it closes each store that
	// implements io.Closer before the test ends. New itself registers with
	// tb.Cleanup whatever else must be cleaned.
	//
	// A store that keeps nothing returns a new empty store at every opening.
	//
	// The function now is the wall clock of the store, if Time is Injected.
	New func(tb testing.TB, now func() time.Time) (open func() (semel.Store, error))
	// Time says whose clock the store goes by. Defaults to Injected.
	Time Time
	// Transact claims the requests with Done, in one transaction of the store,
	// and then commits or rolls back. It must be set if and only if the traits
	// say Transactional. Defaults to nil.
	Transact func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error
	// Collide returns two keys which the store takes for one. It must be set
	// if and only if the traits do not say Exact. Defaults to nil.
	Collide func(store semel.Store) (first, second semel.Key)
}

// Time says whose clock a store goes by.
type Time int

const (
	// Injected: the store goes by the function given to Harness.New.
	Injected Time = iota
	// Bubble: the store goes by time.Now and runs inside a synctest bubble.
	Bubble
	// Wall: the store goes by a clock the suite cannot move, as a server does.
	// The suite waits for short leases and windows by asking the store.
	Wall
)

// Run runs the suite.
func Run(t *testing.T, h Harness) {
	t.Helper()
	for _, c := range allCases() {
		t.Run(c.name, func(t *testing.T) {
			if h.Time != Bubble {
				c.check(newEnv(t, h))
				return
			}
			synctest.Test(t, func(t *testing.T) { c.check(newEnv(t, h)) })
		})
	}
}

// testCase is one behaviour. It takes all it needs from its env, which may
// record failures instead of failing a test: so the suite is tested itself.
type testCase struct {
	name  string
	check func(e *env)
}

func allCases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{
		claimCases, doneCases, leaseCases, tokenCases, holdCases, batchCases, windowCases,
		resultCases, keyCases, lifeCases, traitCases, abilityCases, randomCases,
	} {
		all = append(all, group...)
	}
	return all
}
