package semel_test

import (
	"context"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

func benchGuard(b *testing.B) *semel.Guard {
	store, err := memstore.New(nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = store.Close() })
	g, err := semel.NewGuard(store, nil)
	if err != nil {
		b.Fatal(err)
	}
	return g
}

func nothing(context.Context, semel.Claim) ([]byte, error) { return nil, nil }

// BenchmarkDo measures a guard around memstore whose effect does nothing.
func BenchmarkDo(b *testing.B) {
	b.Run("fresh", func(b *testing.B) {
		g, n := benchGuard(b), 0
		b.ReportAllocs()
		for b.Loop() {
			n++
			if _, err := g.Do(b.Context(), semel.Key{ID: strconv.Itoa(n)}, nothing); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("duplicate", func(b *testing.B) {
		g := benchGuard(b)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := g.Do(b.Context(), orderKey, nothing); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("parallel", func(b *testing.B) {
		g := benchGuard(b)
		var n atomic.Int64
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if _, err := g.Do(b.Context(), semel.Key{ID: strconv.FormatInt(n.Add(1), 10)}, nothing); err != nil {
					b.Error(err)
					return
				}
			}
		})
	})
}

// BenchmarkDoBatch measures batches of 100 calls with new keys.
func BenchmarkDoBatch(b *testing.B) {
	g, n := benchGuard(b), 0
	calls := make([]semel.Call, 100)
	b.ReportAllocs()
	for b.Loop() {
		for i := range calls {
			n++
			calls[i].Key = semel.Key{ID: strconv.Itoa(n)}
		}
		for _, out := range g.DoBatch(b.Context(), calls, func(context.Context, []*semel.BatchItem) error { return nil }) {
			if out.Err != nil {
				b.Fatal(out.Err)
			}
		}
	}
}
