// Package storetest is the conformance suite for stores and stacks of stores.
//
// [Run] checks the contract of [semel.Store] and of the abilities that the
// store has. It skips no case: if [semel.Traits] disclaim a promise, the suite
// checks that the promise does not hold. It therefore detects traits that
// promise too little as well as too much. In every case, each Duplicate must
// have a requested completion behind it.
//
// [RunCrash] checks the promises of a durable store over crashes, full disks,
// failed syncs, flipped bits and truncated files. The store must do its file
// work through package vfs. [RunCopies] checks a store whose files a library
// writes, and [RunSilent] one whose server falls silent. [RunBenchmarks] measures.
//
// The random tests print their seed. Set SEMEL_SEED in the environment to
// repeat a run. With go test -short, cases with many attempts make a third of
// them.
package storetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
)

// Harness tells the suite how to create the store under test.
type Harness struct {
	// New prepares an empty location for the data of one test, for instance a
	// new directory. It returns the function that opens the store there. The
	// suite may open, close and reopen the store any number of times. It closes
	// each store that implements io.Closer before the test ends. New must
	// register any other clean-up with tb.Cleanup.
	//
	// A store that keeps no data returns a new empty store at every open.
	//
	// If Time is Injected, now is the wall clock of the store.
	New func(tb testing.TB, now func() time.Time) (open func() (semel.Store, error))
	// Time selects the store's clock. Defaults to Injected.
	Time Time
	// Transact claims the requests with Done in one transaction of the store,
	// and then commits or rolls back. It must be set if and only if the traits
	// include Transactional. Defaults to nil.
	Transact func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error
	// Collide returns two keys that the store cannot distinguish. It must be
	// set if and only if the traits do not include Exact. Defaults to nil.
	Collide func(store semel.Store) (first, second semel.Key)
}

// Time selects the clock of a store.
type Time int

const (
	// Injected: the store uses the function that Harness.New receives.
	Injected Time = iota
	// Bubble: the store uses time.Now and runs in a synctest bubble.
	Bubble
	// Wall: the store uses a clock that the suite cannot set, for instance a
	// server's. The suite uses short leases and windows, and polls the store
	// until they end.
	Wall
)

// Run runs the conformance suite.
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

// testCase is one behaviour. It uses only its env, which may record failures
// instead of failing a test. That is how the suite tests itself.
type testCase struct {
	name  string
	check func(e *env)
}

func allCases() []testCase {
	var all []testCase
	for _, group := range [][]testCase{
		claimCases, doneCases, leaseCases, tokenCases, holdCases, batchCases, windowCases,
		resultCases, keyCases, classCases, lifeCases, traitCases, abilityCases, randomCases,
	} {
		all = append(all, group...)
	}
	return all
}
