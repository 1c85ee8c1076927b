package storetest

import (
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/sampletest"
)

// volatile and full are the minimum and the maximum that the reference store
// can promise. alone is what it can promise to one process.
var (
	volatile = semel.Traits{Exact: true, Results: true}
	full     = semel.Traits{Durable: true, DurableClaims: true, Shared: true, Transactional: true, Exact: true, Results: true, Origins: true}
	alone    = semel.Traits{Durable: true, Exact: true, Results: true}
)

func TestReferenceStorePassesWithEachTraitOnAndOff(t *testing.T) {
	t.Parallel()
	with := func(t semel.Traits, change func(*semel.Traits)) semel.Traits { change(&t); return t }
	all := map[string]semel.Traits{
		"volatile":      volatile,
		"full":          full,
		"durable":       with(full, func(t *semel.Traits) { t.Shared = false }),
		"short claims":  with(full, func(t *semel.Traits) { t.DurableClaims = false }),
		"not exact":     with(full, func(t *semel.Traits) { t.Exact = false }),
		"no results":    with(full, func(t *semel.Traits) { t.Results = false }),
		"small results": with(full, func(t *semel.Traits) { t.MaxResult = 1000 }),
		"coarse time":   with(volatile, func(t *semel.Traits) { t.Tick = time.Minute }),
	}
	for name, traits := range sampletest.Sampled(all, 3) {
		t.Run(name, func(t *testing.T) { Run(t, harnessOf(traits, none)) })
	}
}

func TestReferenceStorePassesInABubble(t *testing.T) {
	t.Parallel()
	h := harnessOf(full, none)
	h.Time = Bubble
	Run(t, h)
}

func TestReferenceStorePassesWithTheWallClock(t *testing.T) {
	t.Parallel()
	h := harnessOf(full, none)
	h.Time = Wall
	Run(t, h)
}
