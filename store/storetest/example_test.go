package storetest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
)

// openStore stands for the constructor of the store under test.
func openStore(_ string, _ func() time.Time) (semel.Store, error) {
	return nil, errors.New("no store here")
}

// A store's own test gives the suite a new place for each case, and a way to
// open the store there.
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
