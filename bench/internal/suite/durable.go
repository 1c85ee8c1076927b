package suite

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/bench/internal/engine"
	"github.com/semel-dev/semel/store/logstore"
)

// durable lists the benchmarks of claims in the embedded store.
func durable(e Env) []Benchmark {
	span := time.Duration(e.size(3000, 200)) * time.Millisecond
	list := []Benchmark{{
		Name:        "logstore-one-caller",
		Work:        fmt.Sprintf("one caller claims new ids of 16 bytes one after the other for %v, each durable before the next (peer: write and sync as many bytes each time, in a file that is preallocated in the same way)", span),
		peerVersion: standard("pwrite and fdatasync"),
		ours: func(ctx context.Context) (map[string]float64, error) {
			rate, err := e.storeCallers(ctx, 1, span)
			return map[string]float64{"logstore-one-caller": rate}, err
		},
		peer: func(ctx context.Context) (map[string]float64, error) {
			rate, err := e.rawSyncs(ctx, span)
			return map[string]float64{"logstore-one-caller": rate}, err
		},
		figures: []figure{{name: "logstore-one-caller", unit: "claims/s", target: 0.85}},
	}}
	for _, c := range []struct {
		callers int
		target  float64
	}{{64, 2}, {1024, 4}} {
		name := fmt.Sprintf("logstore-%d-callers", c.callers)
		list = append(list, Benchmark{
			Name:        name,
			Work:        fmt.Sprintf("%d callers claim new ids of 16 bytes one at a time for %v, each durable before its caller's next (Pebble: Get, Set and one synced batch for all callers that wait)", c.callers, span),
			peerVersion: linked(engine.Module("pebble")),
			ours: func(ctx context.Context) (map[string]float64, error) {
				rate, err := e.storeCallers(ctx, c.callers, span)
				return map[string]float64{name: rate}, err
			},
			peer: func(context.Context) (map[string]float64, error) {
				rate, err := e.pebbleCallers(c.callers, span)
				return map[string]float64{name: rate}, err
			},
			figures: []figure{{name: name, unit: "claims/s", target: c.target}},
		})
	}
	list = append(list, durableClaims(e, span)...)
	for _, b := range []struct {
		engine string
		keys   int
		target float64
	}{
		{"pebble", 1_024_000, 12},
		{"badger", 1_024_000, 0},
		// These engines become slower with every key. More keys would measure that.
		{"bbolt", 307_200, 0},
		{"sqlite", 307_200, 0},
	} {
		name, keys := "logstore-batch-"+b.engine, e.size(b.keys, 10_240)
		list = append(list, Benchmark{
			Name:        name,
			Work:        fmt.Sprintf("claim %s new random ids of 16 bytes in batches of 1024, each batch durable before the next, growing from empty", count(keys)),
			peerVersion: linked(engine.Module(b.engine)),
			ours: func(ctx context.Context) (map[string]float64, error) {
				rate, err := e.storeBatches(ctx, keys)
				return map[string]float64{name: rate}, err
			},
			peer: func(context.Context) (map[string]float64, error) {
				rate, err := e.engineBatches(b.engine, keys)
				return map[string]float64{name: rate}, err
			},
			figures: []figure{{name: name, unit: "claims/s", target: b.target}},
		})
	}
	return list
}

// durableClaims lists the benchmarks of Options.DurableClaims.
func durableClaims(e Env, span time.Duration) []Benchmark {
	const callers, answers, messages = 64, "logstore-64-callers-durable-claims", "logstore-64-callers-durable-messages"
	work := fmt.Sprintf("%d callers claim and complete new ids of 16 bytes one at a time for %v, each claim and each completion durable before the next. ", callers, span)
	return []Benchmark{{
		Name:        answers,
		Work:        work + "Peer: logstore-64-callers, where a claim is done in one step. A claim and its completion count as two answers",
		peerVersion: standard("logstore, done in one step"),
		ours: func(ctx context.Context) (map[string]float64, error) {
			rate, err := e.storeMessages(ctx, callers, span, true)
			return map[string]float64{answers: 2 * rate}, err
		},
		peer: func(ctx context.Context) (map[string]float64, error) {
			rate, err := e.storeCallers(ctx, callers, span)
			return map[string]float64{answers: rate}, err
		},
		figures: []figure{{name: answers, unit: "answers/s", target: 0.6}},
	}, {
		Name:        messages,
		Work:        work + "Peer: without the option, where only the completion is durable",
		peerVersion: standard("logstore without DurableClaims"),
		ours: func(ctx context.Context) (map[string]float64, error) {
			rate, err := e.storeMessages(ctx, callers, span, true)
			return map[string]float64{messages: rate}, err
		},
		peer: func(ctx context.Context) (map[string]float64, error) {
			rate, err := e.storeMessages(ctx, callers, span, false)
			return map[string]float64{messages: rate}, err
		},
		figures: []figure{{name: messages, unit: "messages/s"}},
	}}
}

// claimBatch is the number of ids in a batch that becomes durable in one step.
const claimBatch = 1024

func (e *Env) storeBatches(ctx context.Context, keys int) (rate float64, err error) {
	dir, err := e.fresh("logstore")
	if err != nil {
		return 0, err
	}
	s, err := logstore.Open(dir, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	took, err := claimAll(ctx, s, newIDs(keys, 16), claimBatch)
	return float64(keys) / took.Seconds(), err
}

func (e *Env) engineBatches(name string, keys int) (rate float64, err error) {
	dir, err := e.fresh(name)
	if err != nil {
		return 0, err
	}
	db, err := engine.Open(name, dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	ids := newIDs(keys, 16)
	buffer := make([]byte, claimBatch*16)
	batch, fresh := make([][]byte, claimBatch), make([]bool, claimBatch)
	start := time.Now()
	for from := 0; from < keys; from += claimBatch {
		n := min(claimBatch, keys-from)
		for i := range n {
			batch[i] = buffer[i*16:][:16]
			copy(batch[i], ids.at(from+i))
		}
		if err := db.Claim(batch[:n], fresh[:n]); err != nil {
			return 0, err
		}
		for i := range n {
			if err := wantFresh(fresh[i], nil); err != nil {
				return 0, err
			}
		}
	}
	return float64(keys) / time.Since(start).Seconds(), nil
}

func (e *Env) storeCallers(ctx context.Context, callers int, span time.Duration) (rate float64, err error) {
	dir, err := e.fresh("logstore")
	if err != nil {
		return 0, err
	}
	s, err := logstore.Open(dir, nil)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return load(callers, span, func(id []byte) error { return claimOne(ctx, s, string(id)) })
}

// storeMessages measures callers that claim an id and then complete it.
func (e *Env) storeMessages(ctx context.Context, callers int, span time.Duration, durable bool) (rate float64, err error) {
	dir, err := e.fresh("logstore")
	if err != nil {
		return 0, err
	}
	s, err := logstore.Open(dir, &logstore.Options{DurableClaims: durable})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	var nonces atomic.Uint64
	return load(callers, span, func(id []byte) error {
		key := semel.Key{Scope: "bench", ID: string(id)}
		claims := [1]semel.ClaimRequest{{
			Key: key, Owner: semel.Owner{Name: "bench", Nonce: nonces.Add(1)}, Lease: time.Minute, Window: time.Hour,
		}}
		var answers [1]semel.ClaimAnswer
		if err := s.Claim(ctx, claims[:], answers[:]); err != nil {
			return err
		}
		if err := wantFresh(answers[0].Decision == semel.Fresh, answers[0].Err); err != nil {
			return err
		}
		var errs [1]error
		err := s.Complete(ctx, []semel.CompleteRequest{{Key: key, Token: answers[0].Claim.Token, Window: time.Hour}}, errs[:])
		return errors.Join(err, errs[0])
	})
}

func (e *Env) pebbleCallers(callers int, span time.Duration) (rate float64, err error) {
	dir, err := e.fresh("pebble")
	if err != nil {
		return 0, err
	}
	db, err := engine.Open("pebble", dir)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	g := engine.NewGroup(db, callers)
	defer g.Close()
	return load(callers, span, func(id []byte) error { return wantFresh(g.Claim(id)) })
}

// load has callers claim ids of 16 bytes, one at a time each. It returns the claims per
// second.
func load(callers int, span time.Duration, claim func(id []byte) error) (rate float64, err error) {
	var claims atomic.Int64
	var wg sync.WaitGroup
	failed := make(chan error, callers)
	start := time.Now()
	for c := range callers {
		random := random{rand.NewChaCha8([32]byte{byte(c), byte(c >> 8)})}
		wg.Go(func() {
			var id [16]byte
			for time.Since(start) < span {
				random.fill(id[:])
				if err := claim(id[:]); err != nil {
					failed <- err
					return
				}
				claims.Add(1)
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	close(failed)
	return float64(claims.Load()) / took.Seconds(), <-failed
}
