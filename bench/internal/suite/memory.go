package suite

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

const watermillModule = "github.com/ThreeDotsLabs/watermill"

// memory lists the benchmarks of the store in memory.
func memory(e Env) []Benchmark {
	million, tenMillion := e.size(1e6, 1e4), e.size(1e7, 1e5)
	growth := worst{
		rate:   e.size(800_000, 100_000),
		window: time.Duration(e.size(5000, 100)) * time.Millisecond,
		length: time.Duration(e.size(10_000, 300)) * time.Millisecond,
	}
	return []Benchmark{
		{
			Name:        "memstore-claim",
			Work:        fmt.Sprintf("claim %s new ids of 36 bytes one by one, on one core (memstore: Claim of one key as done, Expect set to the number of ids; Watermill: IsDuplicate of NewMapExpiringKeyRepository, which has no such option; window 1 h)", count(million)),
			peerVersion: linked(watermillModule),
			procs:       1,
			ours: func(ctx context.Context) (map[string]float64, error) {
				s, err := memstore.New(&memstore.Options{Expect: int64(million)})
				if err != nil {
					return nil, err
				}
				ids := newIDs(million, 36)
				took, err := claimAll(ctx, s, ids, 1)
				return map[string]float64{"memstore-claim": float64(million) / took.Seconds()}, err
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				seen, err := middleware.NewMapExpiringKeyRepository(time.Hour)
				if err != nil {
					return nil, err
				}
				ids := newIDs(million, 36)
				start := time.Now()
				for i := range million {
					duplicate, err := seen.IsDuplicate(ctx, ids.at(i))
					if err := wantFresh(!duplicate, err); err != nil {
						return nil, err
					}
				}
				return map[string]float64{"memstore-claim": float64(million) / time.Since(start).Seconds()}, nil
			},
			figures: []figure{{name: "memstore-claim", unit: "claims/s", target: 2}},
		},
		{
			Name:        "memstore-memory-per-id",
			Work:        fmt.Sprintf("memory of %s claimed ids of 36 bytes, each a separate string (live heap after collection; memstore has Expect set to the number of ids)", count(million)),
			peerVersion: linked(watermillModule),
			ours: func(ctx context.Context) (map[string]float64, error) {
				before := liveBytes()
				s, err := memstore.New(&memstore.Options{Expect: int64(million)})
				if err != nil {
					return nil, err
				}
				random := newRandom()
				for range million {
					if err := claimOne(ctx, s, random.uuid()); err != nil {
						return nil, err
					}
				}
				kept := liveBytes() - before
				runtime.KeepAlive(s)
				return map[string]float64{"memstore-memory-per-id": kept / float64(million)}, nil
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				before := liveBytes()
				seen, err := middleware.NewMapExpiringKeyRepository(time.Hour)
				if err != nil {
					return nil, err
				}
				random := newRandom()
				for range million {
					duplicate, err := seen.IsDuplicate(ctx, random.uuid())
					if err := wantFresh(!duplicate, err); err != nil {
						return nil, err
					}
				}
				kept := liveBytes() - before
				runtime.KeepAlive(seen)
				return map[string]float64{"memstore-memory-per-id": kept / float64(million)}, nil
			},
			figures: []figure{{name: "memstore-memory-per-id", unit: "B/id", lessIsBetter: true, target: 8}},
		},
		{
			Name:        "memstore-batch",
			Work:        fmt.Sprintf("claim %s new ids of 16 bytes in batches of 64, on one core, growing from empty (peer: map[[16]byte]uint32, its mutex locked for each id)", count(tenMillion)),
			peerVersion: standard("map[[16]byte]uint32 behind a mutex"),
			procs:       1,
			ours: func(ctx context.Context) (map[string]float64, error) {
				s, err := memstore.New(nil)
				if err != nil {
					return nil, err
				}
				took, err := claimAll(ctx, s, newIDs(tenMillion, 16), 64)
				return map[string]float64{"memstore-batch": float64(tenMillion) / took.Seconds()}, err
			},
			peer: func(context.Context) (map[string]float64, error) {
				ids := newIDs(tenMillion, 16)
				start := time.Now()
				if err := claimInMap(ids); err != nil {
					return nil, err
				}
				return map[string]float64{"memstore-batch": float64(tenMillion) / time.Since(start).Seconds()}, nil
			},
			figures: []figure{{name: "memstore-batch", unit: "claims/s", target: 0.9}},
		},
		{
			Name: "memstore-worst-claim",
			Work: fmt.Sprintf("longest single claim of ids of 36 bytes at %s claims/s with a window of %v, for %v, on all cores: growing to %s ids, then expiring as fast as growing",
				count(growth.rate), growth.window, growth.length, count(int(float64(growth.rate)*growth.window.Seconds()))),
			peerVersion: linked(watermillModule),
			ours: func(ctx context.Context) (map[string]float64, error) {
				s, err := memstore.New(&memstore.Options{MaxWindow: growth.window})
				if err != nil {
					return nil, err
				}
				reqs := []semel.ClaimRequest{{Key: semel.Key{Scope: "bench"}, Window: growth.window, Done: true}}
				answers := make([]semel.ClaimAnswer, 1)
				longest, err := growth.run(func(id string) (bool, error) {
					reqs[0].Key.ID = id
					err := s.Claim(ctx, reqs, answers)
					return answers[0].Decision == semel.Fresh, err
				})
				return map[string]float64{"memstore-worst-claim": longest.Seconds() * 1e3}, err
			},
			peer: func(ctx context.Context) (map[string]float64, error) {
				seen, err := middleware.NewMapExpiringKeyRepository(growth.window)
				if err != nil {
					return nil, err
				}
				longest, err := growth.run(func(id string) (bool, error) {
					duplicate, err := seen.IsDuplicate(ctx, id)
					return !duplicate, err
				})
				return map[string]float64{"memstore-worst-claim": longest.Seconds() * 1e3}, err
			},
			figures: []figure{{name: "memstore-worst-claim", unit: "ms", lessIsBetter: true, target: 50}},
		},
	}
}

// claimAll claims all ids as done, in batches.
func claimAll(ctx context.Context, s semel.Store, ids *ids, batch int) (time.Duration, error) {
	reqs := make([]semel.ClaimRequest, batch)
	for i := range reqs {
		reqs[i] = semel.ClaimRequest{Key: semel.Key{Scope: "bench"}, Window: time.Hour, Done: true}
	}
	answers := make([]semel.ClaimAnswer, batch)
	start := time.Now()
	for from := 0; from < ids.count; from += batch {
		n := min(batch, ids.count-from)
		for i := range n {
			reqs[i].Key.ID = ids.at(from + i)
		}
		if err := s.Claim(ctx, reqs[:n], answers[:n]); err != nil {
			return 0, err
		}
		for i := range n {
			if err := wantFresh(answers[i].Decision == semel.Fresh, answers[i].Err); err != nil {
				return 0, err
			}
		}
	}
	return time.Since(start), nil
}

// claimOne claims one id as done.
func claimOne(ctx context.Context, s semel.Store, id string) error {
	reqs := [1]semel.ClaimRequest{{Key: semel.Key{Scope: "bench", ID: id}, Window: time.Hour, Done: true}}
	var answers [1]semel.ClaimAnswer
	if err := s.Claim(ctx, reqs[:], answers[:]); err != nil {
		return err
	}
	return wantFresh(answers[0].Decision == semel.Fresh, answers[0].Err)
}

// claimInMap adds ids to a map.
func claimInMap(ids *ids) error {
	var mu sync.Mutex
	seen := map[[16]byte]uint32{}
	expires := uint32(time.Now().Add(time.Hour).Unix())
	claim := func(id [16]byte) (known bool) {
		mu.Lock()
		defer mu.Unlock()
		if _, known = seen[id]; !known {
			seen[id] = expires
		}
		return known
	}
	for i := range ids.count {
		if err := wantFresh(!claim([16]byte([]byte(ids.at(i)))), nil); err != nil {
			return err
		}
	}
	return nil
}

// worst measures the longest claim at a steady rate.
type worst struct {
	rate           int
	window, length time.Duration
}

func (w worst) run(claim func(id string) (fresh bool, err error)) (time.Duration, error) {
	random := newRandom()
	var longest time.Duration
	start := time.Now()
	for i := 0; ; i++ {
		id := random.uuid()
		before := time.Since(start)
		if before > w.length {
			return longest, nil
		}
		// If the loop is late, claims follow without a pause. If it is early, it spins,
		// because a sleep could end late and hide a long claim.
		for due := time.Duration(float64(i) / float64(w.rate) * 1e9); before < due; before = time.Since(start) {
			runtime.Gosched()
		}
		fresh, err := claim(id)
		took := time.Since(start) - before
		if err := wantFresh(fresh, err); err != nil {
			return 0, err
		}
		longest = max(longest, took)
	}
}
