package storetest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/vfs"
)

// CopyHarness tells RunCopies how to create a durable store whose files a library writes.
type CopyHarness struct {
	// Open opens the store in an existing directory of the operating system, or creates a new
	// one there if the directory is empty. The store must implement io.Closer.
	Open func(dir string, now func() time.Time) (semel.Store, error)
	// Large and Transact have the same meaning as in [CrashHarness].
	Large    int
	Transact func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error
}

// RunCopies proves the trait Durable of a store that cannot do its file work through package
// vfs, because a library does it. It copies the directory between the calls of a workload,
// while the store is open. A copy is what a process leaves that is killed at that moment.
// The store is opened there, and every acknowledged change must be in it.
//
// A copy also has what is not synced, so RunCopies proves nothing about power loss. The
// trait PowerSafe of such a store is the word of its library. If the library lets you
// replace its file system, put package vfs behind it, and run [RunCrash].
func RunCopies(t *testing.T, h CopyHarness) {
	t.Helper()
	t.Run("a copy of the directory has every acknowledged change", func(t *testing.T) { copies(t, h) })
}

func copies(tb testing.TB, h CopyHarness) {
	root := tb.TempDir()
	dir := filepath.Join(root, "store")
	if err := os.Mkdir(dir, 0o700); err != nil {
		tb.Fatal(err)
	}
	place := dir // where the store is opened next
	e := &crashEnv{TB: tb, seed: seed(tb), harness: CrashHarness{
		Open:     func(_ vfs.FS, _ string, now func() time.Time) (semel.Store, error) { return h.Open(place, now) },
		Large:    h.Large,
		Transact: h.Transact,
	}}
	if e.harness.Large == 0 {
		e.harness.Large = 20_000
	}
	e.random = rand.New(rand.NewPCG(e.seed, 0))
	r := newCrashRun(e, nil, nothingFails)
	calls, taken := 0, 0
	check := func() {
		taken++
		place = filepath.Join(root, fmt.Sprint("copy-", taken))
		defer func() { place = dir }()
		err := os.CopyFS(place, os.DirFS(dir))
		for try := 0; errors.Is(err, fs.ErrNotExist) && try < 100; try++ { // the store has just renamed a file
			if err = os.RemoveAll(place); err == nil {
				err = os.CopyFS(place, os.DirFS(dir))
			}
		}
		if err != nil {
			tb.Fatalf("copy the directory: %v", err)
		}
		where := r.where
		r.where = fmt.Sprintf("copied before call %d", calls)
		e.verify(r, nil, true)
		r.where = where
	}
	every := times(12) // a workload has about 60 calls
	r.between = func() {
		if calls++; !tb.Failed() && r.store != nil && calls%max(60/max(every, 1), 1) == 0 {
			check()
		}
	}
	r.workload()
	if tb.Failed() {
		r.close()
		return
	}
	if !e.traits.Durable {
		tb.Errorf("RunCopies is for stores with the trait Durable")
	}
	check() // the store is still open
	r.close()
	if taken < 3 {
		tb.Errorf("only %d copies were taken", taken)
	}
}
