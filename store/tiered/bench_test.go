package tiered_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/tiered"
)

// BenchmarkDuplicates claims keys of which nine in ten are done. It completes the rest, with the
// claim or later, key by key and in batches. It compares the durable store alone with stacks
// above it.
func BenchmarkDuplicates(b *testing.B) {
	client := connect(b, shared.Redis(b))
	memory, redis := cacheOf(inMemory(memstore.Options{})), cacheOf(inRedis(client))
	for _, below := range []struct {
		name  string
		place place
	}{
		{"disk", onDisk}, {"redis", inRedis(client)}, {"postgres", inPostgres(poolOf(b, shared.Database(b)))},
	} {
		for _, above := range []struct {
			name   string
			layers []func(testing.TB, func() time.Time) func() (tiered.Layer, error)
		}{
			{"alone", nil},
			{"memory", []func(testing.TB, func() time.Time) func() (tiered.Layer, error){memory}},
			{"filter and memory", []func(testing.TB, func() time.Time) func() (tiered.Layer, error){memoryFilter, memory}},
			{"redis cache", []func(testing.TB, func() time.Time) func() (tiered.Layer, error){redis}},
		} {
			for _, c := range []struct {
				size int
				done bool
			}{{1, false}, {1, true}, {100, false}, {100, true}} {
				b.Run(fmt.Sprintf("%s/%s/batch %d/one step %t", below.name, above.name, c.size, c.done), func(b *testing.B) {
					store, err := stacked(below.place, above.layers, tiered.Options{})(b, time.Now)()
					if err != nil {
						b.Fatal(err)
					}
					if c, ok := store.(closing); ok {
						b.Cleanup(func() { _ = c.Close() })
						if above.layers == nil {
							store = c.Unwrap()
						}
					}
					w := &workload{B: b, store: store, size: c.size, done: c.done}
					w.round() // create tables, scripts and connections
					b.ResetTimer()
					for range b.N {
						w.round()
					}
					b.ReportMetric(float64(b.N*c.size)/b.Elapsed().Seconds(), "keys/s")
				})
			}
		}
	}
}

// workload claims new keys and, nine times as often, keys that are done.
type workload struct {
	*testing.B
	store semel.Store
	size  int
	done  bool // complete with the claim
	keys  uint64
	turn  uint64
}

func (w *workload) key(i uint64) semel.Key {
	var id [16]byte
	binary.BigEndian.PutUint64(id[:], i*0x9e3779b97f4a7c15)
	binary.BigEndian.PutUint64(id[8:], i)
	return semel.Key{Scope: "bench", ID: string(id[:])}
}

// round processes one batch.
func (w *workload) round() {
	ctx := context.Background()
	reqs := make([]semel.ClaimRequest, w.size)
	answers := make([]semel.ClaimAnswer, w.size)
	before := w.keys
	for i := range reqs {
		w.turn++
		reqs[i] = semel.ClaimRequest{Owner: semel.Owner{Name: "bench", Nonce: w.turn}, Lease: time.Minute, Window: 24 * time.Hour, Done: w.done}
		if w.turn%10 == 0 || before == 0 {
			w.keys++
			reqs[i].Key = w.key(w.keys)
		} else {
			reqs[i].Key = w.key(1 + w.turn*0x9e3779b97f4a7c15>>20%before)
		}
	}
	if err := w.store.Claim(ctx, reqs, answers); err != nil {
		w.Fatal(err)
	}
	var done []semel.CompleteRequest
	for i, a := range answers {
		switch {
		case a.Decision == semel.Fresh && !w.done:
			done = append(done, semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Window: 24 * time.Hour})
		case a.Decision != semel.Fresh && a.Decision != semel.Duplicate:
			w.Fatalf("%s is answered %s, %v", reqs[i].Key, a.Decision, a.Err)
		}
	}
	if len(done) == 0 {
		return
	}
	errs := make([]error, len(done))
	if err := w.store.Complete(ctx, done, errs); err != nil || errs[0] != nil {
		w.Fatal(err, errs[0])
	}
}

// BenchmarkGuards runs 64 callers of one guard. Nine in ten of the keys that
// they deliver are done.
func BenchmarkGuards(b *testing.B) {
	client := connect(b, shared.Redis(b))
	for _, below := range []struct {
		name  string
		place place
	}{
		{"redis", inRedis(client)}, {"postgres", inPostgres(poolOf(b, shared.Database(b)))},
	} {
		for _, above := range []struct {
			name   string
			layers []func(testing.TB, func() time.Time) func() (tiered.Layer, error)
		}{
			{"alone", nil},
			{"memory", []func(testing.TB, func() time.Time) func() (tiered.Layer, error){cacheOf(inMemory(memstore.Options{}))}},
			{"redis cache", []func(testing.TB, func() time.Time) func() (tiered.Layer, error){cacheOf(inRedis(client))}},
		} {
			b.Run(below.name+"/"+above.name, func(b *testing.B) {
				store, err := stacked(below.place, above.layers, tiered.Options{})(b, time.Now)()
				if err != nil {
					b.Fatal(err)
				}
				if above.layers == nil {
					store, _ = semel.As[interface {
						semel.Store
						semel.Inspector
					}](store.(interface{ Unwrap() semel.Store }).Unwrap())
				}
				guard, err := semel.NewGuard(store, nil)
				if err != nil {
					b.Fatal(err)
				}
				w := &workload{}
				var turn, keys atomic.Uint64
				b.SetParallelism(32)
				b.RunParallel(func(pb *testing.PB) {
					for pb.Next() {
						t := turn.Add(1)
						i := keys.Load()
						if t%10 == 0 || i < 100 {
							i = keys.Add(1)
						} else {
							i = 1 + t*0x9e3779b97f4a7c15>>20%(i-64)
						}
						if _, err := guard.Do(context.Background(), w.key(i), func(context.Context, semel.Claim) ([]byte, error) { return nil, nil }); err != nil && !errors.Is(err, semel.ErrInFlight) {
							b.Error(err)
						}
					}
				})
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
			})
		}
	}
}
