package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

const benchWindow = time.Hour

// BenchmarkCallers runs many callers, each of which records one new key after
// the other. The metric is the keys a second of all callers.
func BenchmarkCallers(b *testing.B) {
	for _, callers := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("one step/%d", callers), func(b *testing.B) {
			benchCallers(b, callers, nil, func(s semel.Store, r *semel.ClaimRequest) error { return benchClaim(s, r, true) })
		})
		b.Run(fmt.Sprintf("one step, joined/%d", callers), func(b *testing.B) {
			benchCallers(b, callers, joined, func(s semel.Store, r *semel.ClaimRequest) error { return benchClaim(s, r, true) })
		})
		b.Run(fmt.Sprintf("claim and complete, joined/%d", callers), func(b *testing.B) {
			benchCallers(b, callers, joined, func(s semel.Store, r *semel.ClaimRequest) error { return benchClaim(s, r, false) })
		})
		b.Run(fmt.Sprintf("bare client/%d", callers), func(b *testing.B) {
			benchCallers(b, callers, nil, func(s semel.Store, r *semel.ClaimRequest) error {
				c := s.(*Store).client
				err := c.Do(context.Background(), c.B().Set().Key(r.Key.ID).Value("1").Nx().PxMilliseconds(3600000).Build()).Error()
				if rueidis.IsRedisNil(err) {
					return fmt.Errorf("%s is there", r.Key.ID)
				}
				return err
			})
		})
	}
}

func joined(s *Store) semel.Store { return semel.Join(s, 0) }

func benchClaim(s semel.Store, r *semel.ClaimRequest, done bool) error {
	r.Done = done
	var answer [1]semel.ClaimAnswer
	reqs := []semel.ClaimRequest{*r}
	if err := s.Claim(context.Background(), reqs, answer[:]); err != nil || answer[0].Decision != semel.Fresh {
		return fmt.Errorf("%s: %s, %w", r.Key, answer[0].Decision, err)
	}
	if done {
		return nil
	}
	var errs [1]error
	err := s.Complete(context.Background(), []semel.CompleteRequest{{Key: r.Key, Token: answer[0].Claim.Token, Window: benchWindow}}, errs[:])
	if err == nil {
		err = errs[0]
	}
	return err
}

func benchCallers(b *testing.B, callers int, wrap func(*Store) semel.Store, call func(semel.Store, *semel.ClaimRequest) error) {
	s := newStore(b, nil)
	store := semel.Store(s)
	if wrap != nil {
		store = wrap(s)
	}
	var next atomic.Int64
	prefix := servicestest.Prefix()
	failed := make(chan error, callers)
	b.ResetTimer()
	for range callers {
		go func() {
			for {
				n := next.Add(1)
				if n > int64(b.N) {
					failed <- nil
					return
				}
				r := semel.ClaimRequest{
					Key:   semel.Key{Scope: "bench", ID: prefix + strconv.FormatInt(n, 16)},
					Owner: semel.Owner{Name: "bench", Nonce: uint64(n)}, Lease: time.Minute, Window: benchWindow,
				}
				if err := call(store, &r); err != nil {
					failed <- err
					return
				}
			}
		}()
	}
	for range callers {
		if err := <-failed; err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "keys/s")
}

// BenchmarkBatches records new keys, or claims and completes them, in batches.
func BenchmarkBatches(b *testing.B) {
	for _, size := range []int{64, 1024} {
		for name, opts := range map[string]*Options{"plain": nil, "compact": {Compact: &Compact{Window: benchWindow}}} {
			b.Run(fmt.Sprintf("one step, %s/%d", name, size), func(b *testing.B) { benchBatches(b, opts, size, true) })
			b.Run(fmt.Sprintf("claim and complete, %s/%d", name, size), func(b *testing.B) { benchBatches(b, opts, size, false) })
		}
	}
}

func benchBatches(b *testing.B, opts *Options, size int, done bool) {
	s := newStore(b, opts)
	reqs, answers := make([]semel.ClaimRequest, size), make([]semel.ClaimAnswer, size)
	completions, errs := make([]semel.CompleteRequest, size), make([]error, size)
	n := uint64(0)
	b.ResetTimer()
	for range b.N {
		for i := range reqs {
			n++
			reqs[i] = semel.ClaimRequest{
				Key:   semel.Key{Scope: "bench", ID: "0123456789abcdef-" + strconv.FormatUint(n, 16)},
				Owner: semel.Owner{Name: "bench", Nonce: n}, Lease: time.Minute, Window: benchWindow, Done: done,
			}
		}
		if err := s.Claim(b.Context(), reqs, answers); err != nil {
			b.Fatal(err)
		}
		for i, a := range answers {
			if a.Decision != semel.Fresh {
				b.Fatalf("%s: %s", reqs[i].Key, a.Decision)
			}
			completions[i] = semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Window: benchWindow}
		}
		if done {
			continue
		}
		if err := s.Complete(b.Context(), completions, errs); err != nil || errs[0] != nil {
			b.Fatal(err, errs[0])
		}
	}
	b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "keys/s")
}
