package storetest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/vfs"
)

// openStore stands for the constructor of the store under test.
func openStore(_ string, _ func() time.Time) (semel.Store, error) {
	return nil, errors.New("no store here")
}

// The test of a store gives the suite a new location for each case, and a
// function that opens the store there.
func ExampleRun() {
	// func TestConformance(t *testing.T)
	_ = func(t *testing.T) {
		storetest.Run(t, storetest.Harness{
			New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
				dir := tb.TempDir()
				return func() (semel.Store, error) { return openStore(dir, now) }
			},
		})
	}
}

// openStoreOn stands for the constructor of a store that does its file work
// through vfs.
func openStoreOn(_ vfs.FS, _ string, _ func() time.Time) (semel.Store, error) {
	return nil, errors.New("no store here")
}

// The crash suite gives the store a file system that fails in all the ways in
// which disks and operating systems fail.
func ExampleRunCrash() {
	// func TestStoreSurvivesCrashes(t *testing.T)
	_ = func(t *testing.T) {
		storetest.RunCrash(t, storetest.CrashHarness{
			Open: func(fs vfs.FS, dir string, now func() time.Time) (semel.Store, error) {
				return openStoreOn(fs, dir, now)
			},
		})
	}
}
