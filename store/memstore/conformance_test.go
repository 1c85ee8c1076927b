package memstore_test

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/storetest"
	"github.com/semel-dev/semel/test/sampletest"
)

func TestConformance(t *testing.T) {
	for name, opts := range sampletest.Sampled(map[string]memstore.Options{
		"zero options":       {},
		"full records alone": {KeepIDs: true, MaxWindow: time.Second},
		"limited":            {MaxKeys: 1 << 20, MaxResult: 1000, MaxWindow: 10 * 365 * 24 * time.Hour},
	}, 1) {
		t.Run(name, func(t *testing.T) {
			storetest.Run(t, storetest.Harness{
				New: func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
					return func() (semel.Store, error) {
						o := opts
						o.Clock = now
						return memstore.New(&o)
					}
				},
			})
		})
	}
}

func TestConformanceByTheMonotonicClock(t *testing.T) {
	storetest.Run(t, storetest.Harness{
		Time: storetest.Bubble,
		New: func(testing.TB, func() time.Time) func() (semel.Store, error) {
			return func() (semel.Store, error) { return memstore.New(nil) }
		},
	})
}

func BenchmarkSuite(b *testing.B) {
	storetest.RunBenchmarks(b, storetest.Harness{New: func(_ testing.TB, now func() time.Time) func() (semel.Store, error) {
		return func() (semel.Store, error) { return memstore.New(&memstore.Options{Clock: now}) }
	}})
}
