package tiered_test

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/tiered"
)

// doubtful is a filter that reports every key as maybe seen.
type doubtful struct{}

func (doubtful) MayContain(_ context.Context, _ []semel.Key, maybe []bool) error {
	for i := range maybe {
		maybe[i] = true
	}
	return nil
}

func (doubtful) Add(context.Context, []semel.Key) error { return nil }

func (doubtful) Rate() float64 { return 1 }

func TestFalsePositivesOfFiltersAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exact, err := tiered.NewMemoryFilter(&tiered.FilterOptions{Capacity: 1000})
		if err != nil {
			t.Fatal(err)
		}
		b := &bundle{TB: t, durable: newFaulty(newMemory(t, nil)), events: new([]tiered.Event)}
		b.Store, err = tiered.New(b.durable, &tiered.Options{
			OnOutage: tiered.Pass, Layers: []tiered.Layer{{Filter: doubtful{}}, {Filter: exact}, {Cache: newMemory(t, nil)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string, first int64) {
			t.Helper()
			layers := b.Status().Layers
			if layers[0].FalsePositives != first || layers[1].FalsePositives != 0 {
				t.Errorf("after %s: %d and %d false positives, want %d and 0", what, layers[0].FalsePositives, layers[1].FalsePositives, first)
			}
		}
		b.done("a")
		check("a new key, which the second filter rules out", 0)
		b.want(semel.Duplicate, "a")
		check("a duplicate", 0)
		layers := b.Status().Layers
		if !layers[0].Filter || layers[0].Fill != -1 || !layers[1].Filter || layers[1].Fill <= 0 || layers[1].Fill > 0.01 || layers[2].Filter {
			t.Errorf("the status is %+v", layers)
		}

		b.Store, err = tiered.New(b.durable, &tiered.Options{
			OnOutage: tiered.Pass, Layers: []tiered.Layer{{Filter: doubtful{}}, {Cache: newMemory(t, nil)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		count := func(what string, want int64) {
			t.Helper()
			if got := b.Status().Layers[0].FalsePositives; got != want {
				t.Errorf("after %s: %d false positives, want %d", what, got, want)
			}
		}
		b.want(semel.Duplicate, "a")
		count("a duplicate", 0)
		b.want(semel.Fresh, "b")
		count("a new key", 1)
		b.want(semel.InFlight, "b")
		count("a key that is under way", 1)
		answers := make([]semel.ClaimAnswer, 3)
		if err := b.Claim(t.Context(), []semel.ClaimRequest{b.request("a"), b.request("c"), b.request("d")}, answers); err != nil {
			t.Fatal(err)
		}
		count("two new keys next to one that the cache answers", 3)
		b.durable.is(refuses)
		b.want(semel.Fresh, "e")
		count("a claim that no layer decided", 3)
	})
}
