package storetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// RunBenchmarks measures how many keys a second a store handles, so that you can compare it
// with the stores of Semel, which run the same benchmarks. Each benchmark has calls with one
// key, calls with many keys, and concurrent calls with one key, of the store alone and through
// semel.Join, as a Guard makes them. Harness.Time does not count: now is the time of the machine.
func RunBenchmarks(b *testing.B, h Harness) {
	b.Helper()
	for _, work := range []struct {
		name string
		do   func(s *benchStore, from, n int) error
	}{
		{"claim and complete", (*benchStore).claimAndComplete},
		{"claim with Done", (*benchStore).claimDone},
		{"duplicate", (*benchStore).duplicate},
	} {
		b.Run(work.name, func(b *testing.B) {
			for _, keys := range []int{1, 500} {
				b.Run(fmt.Sprintf("%d in a call", keys), func(b *testing.B) {
					s := openBenchStore(b, h)
					s.prepare(b, work.name == "duplicate")
					for n := 0; n < b.N; n += keys {
						if err := work.do(s, n, min(keys, b.N-n)); err != nil {
							b.Fatal(err)
						}
					}
					reportKeys(b)
				})
			}
			for _, joined := range []bool{false, true} {
				name := "concurrent calls"
				if joined {
					name += " joined"
				}
				b.Run(name, func(b *testing.B) {
					s := openBenchStore(b, h)
					if joined {
						s.Store = semel.Join(s.Store, 0)
					}
					s.prepare(b, work.name == "duplicate")
					var next atomic.Int64
					b.SetParallelism(8)
					b.RunParallel(func(pb *testing.PB) {
						for pb.Next() {
							if err := work.do(s, int(next.Add(1)), 1); err != nil {
								b.Error(err)
								return
							}
						}
					})
					reportKeys(b)
				})
			}
		})
	}
}

// reportKeys stops the time, and reports its keys a second.
func reportKeys(b *testing.B) {
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
}

// known is how many keys the benchmark of duplicates has.
const known = 1000

// benchStore is a store that is measured.
type benchStore struct {
	semel.Store
	nonce atomic.Uint64
}

func openBenchStore(b *testing.B, h Harness) *benchStore {
	b.Helper()
	store, err := h.New(b, time.Now)()
	if err != nil {
		b.Fatal(err)
	}
	if closer, ok := store.(io.Closer); ok {
		b.Cleanup(func() {
			if err := closer.Close(); err != nil && !errors.Is(err, semel.ErrClosed) {
				b.Error(err)
			}
		})
	}
	s := &benchStore{Store: store}
	s.nonce.Store(uint64(time.Now().UnixNano())) // a server may remember those of an earlier run
	return s
}

// prepare fills the store if the benchmark needs it, and starts the time.
func (s *benchStore) prepare(b *testing.B, fill bool) {
	if fill {
		if err := s.claimDone(0, known); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
}

// claims claims n keys from one on, and wants the same decision for each.
func (s *benchStore) claims(from, n int, done bool, want semel.Decision) ([]semel.ClaimRequest, []semel.ClaimAnswer, error) {
	reqs, answers := make([]semel.ClaimRequest, n), make([]semel.ClaimAnswer, n)
	for i := range reqs {
		reqs[i] = semel.ClaimRequest{
			Key: semel.Key{Scope: "bench", ID: fmt.Sprintf("key-%09d", from+i)}, Owner: semel.Owner{Name: "bench", Nonce: s.nonce.Add(1)},
			Lease: time.Minute, Window: time.Hour, Done: done,
		}
	}
	if err := s.Claim(context.Background(), reqs, answers); err != nil {
		return nil, nil, err
	}
	for i, a := range answers {
		if a.Err != nil || a.Decision != want {
			return nil, nil, fmt.Errorf("%s is %s, %w", reqs[i].Key, a.Decision, a.Err)
		}
	}
	return reqs, answers, nil
}

func (s *benchStore) claimAndComplete(from, n int) error {
	reqs, answers, err := s.claims(from, n, false, semel.Fresh)
	if err != nil {
		return err
	}
	completions, errs := make([]semel.CompleteRequest, n), make([]error, n)
	for i := range completions {
		completions[i] = semel.CompleteRequest{Key: reqs[i].Key, Token: answers[i].Claim.Token, Window: time.Hour}
	}
	err = s.Complete(context.Background(), completions, errs)
	return errors.Join(append(errs, err)...)
}

func (s *benchStore) claimDone(from, n int) error {
	_, _, err := s.claims(from, n, true, semel.Fresh)
	return err
}

func (s *benchStore) duplicate(from, n int) error {
	from %= known
	_, _, err := s.claims(from, min(n, known-from), true, semel.Duplicate)
	return err
}
