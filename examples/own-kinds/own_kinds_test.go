package main

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
)

func TestShelf(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		New: func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
			return func() (semel.Store, error) { return open(1_000_000, now), nil }
		},
	})
}
