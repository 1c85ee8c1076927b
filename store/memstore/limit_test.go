package memstore_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

func TestFullStoreRefusesNewKeysAndForgetsNone(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{MaxKeys: 1000})
	claim := b.claimed(id(0), time.Minute).Claim
	for i := 1; i < 1000; i++ {
		b.wantDone(semel.Fresh, id(i), time.Hour)
	}
	for i := 1000; i < 1100; i++ {
		if a := b.done(id(i), time.Hour); !errors.Is(a.Err, semel.ErrStoreFull) || a.Decision != semel.Undecided {
			t.Fatalf("key %d of at most 1000 is %s, %v", i, a.Decision, a.Err)
		}
		if a := b.claimed(id(i), time.Minute); !errors.Is(a.Err, semel.ErrStoreFull) {
			t.Fatalf("a claim of key %d of at most 1000 is %s, %v", i, a.Decision, a.Err)
		}
	}
	// Known keys are decided. Changing them adds no key.
	if err := b.complete(id(0), claim.Token, semel.Result{}); err != nil {
		t.Error(err)
	}
	for i := range 1000 {
		b.wantDone(semel.Duplicate, id(i), time.Hour)
	}
	if removed, err := b.Remove(t.Context(), id(5)); !removed || err != nil {
		t.Fatal(removed, err)
	}
	b.wantDone(semel.Fresh, id(1000), time.Hour)
	b.now = b.now.Add(2 * time.Hour)
	for i := 2000; i < 3000; i++ {
		b.wantDone(semel.Fresh, id(i), time.Hour)
	}
	if a := b.done(id(3000), time.Hour); !errors.Is(a.Err, semel.ErrStoreFull) {
		t.Errorf("after all expired 1001 keys fit: %s, %v", a.Decision, a.Err)
	}
}

func TestLimitHoldsUnderConcurrency(t *testing.T) {
	t.Parallel()
	const limit = 5000
	s, err := memstore.New(&memstore.Options{MaxKeys: limit})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var fresh atomic.Int64
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			reqs, answers := make([]semel.ClaimRequest, 40), make([]semel.ClaimAnswer, 40)
			for i := 0; i < 2500; i += len(reqs) {
				for j := range reqs {
					reqs[j] = semel.ClaimRequest{Key: id(w*2000 + i + j), Window: time.Hour, Lease: time.Minute, Done: j%2 == 0}
				}
				if err := s.Claim(context.Background(), reqs, answers); err != nil {
					t.Error(err)
				}
				for _, a := range answers {
					if a.Decision == semel.Fresh {
						fresh.Add(1)
					}
				}
			}
		})
	}
	wg.Wait()
	if n := fresh.Load(); n != limit {
		t.Errorf("%d keys were granted, want %d", n, limit)
	}
	if c, err := s.Count(context.Background()); err != nil || c.Done+c.Claimed != limit {
		t.Errorf("the store holds %+v, want %d: %v", c, limit, err)
	}
}
