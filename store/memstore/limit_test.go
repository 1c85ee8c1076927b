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

func TestShortenForgetsWhatExpiresFirstAndSaysSo(t *testing.T) {
	counted(t)
	t.Parallel()
	var told []memstore.Shortening
	b := setup(t, memstore.Options{
		MaxWindow: time.Hour, MaxKeys: 10_000, OnFull: memstore.Shorten,
		OnShorten: func(s memstore.Shortening) { told = append(told, s) },
	})
	claim := b.claimed(semel.Key{Scope: "live", ID: "claim"}, time.Minute).Claim
	b.wantDone(semel.Fresh, semel.Key{Scope: "live", ID: "forever"}, semel.Forever)
	const keys = 30_000
	for i := range keys {
		b.wantDone(semel.Fresh, id(i), time.Hour)
		b.now = b.now.Add(time.Hour / keys / 2)
	}
	if len(told) == 0 {
		t.Fatal("OnShorten was not called")
	}
	var forgotten int64
	for _, s := range told {
		forgotten += s.Forgotten
		if s.Forgotten <= 0 || s.By <= 0 || s.By > time.Hour {
			t.Fatalf("told of %+v", s)
		}
	}
	c := b.counts()
	if left := c.Done + c.Claimed; left > 10_000 || left < 9_000 || left+forgotten != keys+2 {
		t.Errorf("%d of %d keys are left, %d were reported as forgotten", left, keys+2, forgotten)
	}
	if c.Oldest > 15*time.Minute {
		t.Errorf("the oldest key is %v old, want not much more than 10m", c.Oldest)
	}
	// The newest keys are all there and the oldest are not. Claims and keys
	// kept forever were not touched.
	for i := keys - 4000; i < keys; i++ {
		if r := b.look(id(i)); r.State != semel.Done {
			t.Fatalf("key %d of the youngest is %s", i, r.State)
		}
	}
	for i := range keys / 2 {
		if r := b.look(id(i)); r.State != semel.Absent {
			t.Fatalf("key %d of the oldest is %s", i, r.State)
		}
	}
	if r := b.look(semel.Key{Scope: "live", ID: "forever"}); r.State != semel.Done {
		t.Errorf("a key kept forever is %s", r.State)
	}
	if r := b.look(semel.Key{Scope: "live", ID: "claim"}); r.State != semel.Claimed || r.Token != claim.Token {
		t.Errorf("a claim became %+v", r)
	}
}

func TestShortenForgetsResultsTooAndRefusesWhenOnlyClaimsAreLeft(t *testing.T) {
	t.Parallel()
	var forgotten int64
	b := setup(t, memstore.Options{
		MaxKeys: 100, OnFull: memstore.Shorten,
		OnShorten: func(s memstore.Shortening) { forgotten += s.Forgotten },
	})
	for i := range 150 {
		token := b.claimed(id(i), time.Minute).Claim.Token
		if err := b.complete(id(i), token, semel.Result{Kind: semel.Value, Data: []byte("r")}); err != nil {
			t.Fatal(err)
		}
	}
	if forgotten < 50 {
		t.Errorf("%d keys were reported as forgotten, want 50 or more", forgotten)
	}
	for i := range 100 {
		if a := b.claimed(id(1000+i), time.Minute); a.Decision != semel.Fresh {
			t.Fatalf("claim %d is %s, %v", i, a.Decision, a.Err)
		}
	}
	if a := b.claimed(id(2000), time.Minute); !errors.Is(a.Err, semel.ErrStoreFull) {
		t.Errorf("with nothing but claims the store answers %s, %v", a.Decision, a.Err)
	}
	for i := range 100 {
		if a := b.claimed(id(1000+i), time.Minute); a.Decision != semel.InFlight {
			t.Fatalf("claim %d became %s", i, a.Decision)
		}
	}
}
