package suite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/tiered"
)

// layers lists the benchmarks of stacks.
func layers(e Env) []Benchmark {
	span := time.Duration(e.size(3000, 300)) * time.Millisecond
	seen := e.size(100_000, 2_000)
	measure := func(stacked bool) side {
		return func(ctx context.Context) (map[string]float64, error) {
			rate, err := mostlyDuplicates(ctx, span, seen, stacked)
			return map[string]float64{"tiered-duplicates": rate}, err
		}
	}
	return []Benchmark{{
		Name:        "tiered-duplicates",
		Work:        fmt.Sprintf("64 callers claim ids of 16 bytes, done in one step, one at a time each, for %v; nine in ten are among the last %s, one is new. A cache in memory above PostgreSQL. Peer: PostgreSQL alone", span, count(seen)),
		peerVersion: func() (string, error) { return "the durable store alone", nil },
		ours:        measure(true),
		peer:        measure(false),
		figures:     []figure{{name: "tiered-duplicates", unit: "claims/s", target: 5}},
	}}
}

func mostlyDuplicates(ctx context.Context, span time.Duration, seen int, stacked bool) (rate float64, err error) {
	err = onStore(ctx, 4, "", &prepared, nil, func(_ *pgxpool.Pool, durable *pgstore.Store) error {
		var store semel.Store = durable
		if stacked {
			cache, err := memstore.New(nil)
			if err != nil {
				return err
			}
			if store, err = tiered.Dual(cache, durable, nil); err != nil {
				return err
			}
		}
		known := newIDs(seen, 16)
		if _, err := sharedBatches(ctx, store, known, 1000, 2); err != nil {
			return err
		}
		joined := semel.Join(store, 0)
		rate, err = load(64, span, func(id []byte) error {
			// The ids of load are new. Nine in ten are replaced with a known one.
			text, isNew := string(id), rand.IntN(10) == 0
			if !isNew {
				text = known.at(rand.IntN(seen))
			}
			fresh, err := doneOnce(ctx, joined, text)
			if err == nil && fresh != isNew {
				err = errors.New("a new id was called a duplicate, or a known one new")
			}
			return err
		})
		return err
	})
	return rate, err
}
