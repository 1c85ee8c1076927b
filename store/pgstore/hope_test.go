package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest"
)

// hoper is a store that hopes at every claim, however few keys it has, and
// however wrong it was before.
type hoper struct{ *Store }

func newHoper(s *Store) hoper {
	s.leastHope = 1
	return hoper{s}
}

// Claim implements semel.Store.
func (h hoper) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	h.calm.streak.Store(calmAfter)
	return h.Store.Claim(ctx, reqs, answers)
}

func TestConformanceWhileHoping(t *testing.T) {
	t.Parallel()
	for _, migrate := range []MigrateOptions{{}, {KeepIDs: true, Partitions: 3}} {
		t.Run(fmt.Sprintf("readable keys: %t", migrate.KeepIDs), func(t *testing.T) {
			t.Parallel()
			connections := pool(t, shared.Database(t))
			storetest.Run(t, storetest.Harness{
				Time: storetest.Wall,
				New: func(tb testing.TB, _ func() time.Time) func() (semel.Store, error) {
					migrate := migrate
					migrate.Schema = "s" + strings.ToLower(rand.Text()[:10])
					if _, err := Migrate(tb.Context(), connections, &migrate); err != nil {
						tb.Fatal(err)
					}
					return func() (semel.Store, error) {
						s, err := New(context.Background(), connections, &Options{Names: migrate.Names, KeepIDs: migrate.KeepIDs})
						if err != nil {
							return nil, err
						}
						return newHoper(s), nil
					}
				},
				Transact: func(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
					return transact(ctx, store.(hoper).Store, reqs, answers, commit)
				},
			})
		})
	}
}

// doneRequests are requests in one step for keys.
func doneRequests(keys []int) []semel.ClaimRequest {
	reqs := make([]semel.ClaimRequest, len(keys))
	for i, n := range keys {
		reqs[i] = request(keyOf(n))
		reqs[i].Done = true
	}
	return reqs
}

func TestAStoreHopesOnceItsKeysWereNewForLong(t *testing.T) {
	t.Parallel()
	b := opened(t, nil)
	next := 0
	batch := func(n int) []semel.ClaimRequest {
		keys := make([]int, n)
		for i := range keys {
			keys[i], next = next, next+1
		}
		return doneRequests(keys)
	}
	for i := range calmAfter {
		if b.calm.hopeful() {
			t.Fatalf("the store hopes after %d calls", i)
		}
		claimed(t, b.Store, batch(leastHope), semel.Fresh)
	}
	if !b.calm.hopeful() {
		t.Fatal("the store does not hope")
	}
	claimed(t, b.Store, batch(leastHope), semel.Fresh)
	// One that is known, twice in the call, among new ones.
	reqs := append(batch(leastHope), doneRequests([]int{0, 0, next})...)
	next++
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := b.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		want := semel.Fresh
		if known := len(reqs) - 3; i == known || i == known+1 {
			want = semel.Duplicate
		}
		if a.Decision != want || a.Err != nil {
			t.Errorf("request %d is %s, %v, want %s", i, a.Decision, a.Err, want)
		}
	}
	if b.calm.hopeful() {
		t.Error("the store hopes after a wrong hope")
	}
	for n := range next {
		claimed(t, b.Store, doneRequests([]int{n}), semel.Duplicate)
	}
}

// claimed claims in one call and wants one decision for all.
func claimed(t *testing.T, s semel.Store, reqs []semel.ClaimRequest, want semel.Decision) {
	t.Helper()
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.Decision != want || a.Err != nil {
			t.Fatalf("request %d is %s, %v, want %s", i, a.Decision, a.Err, want)
		}
	}
}

// TestCrossedHopesDoNotDeadlock has batches that hope for the same keys at
// once, in crossed order: all but one are wrong.
func TestCrossedHopesDoNotDeadlock(t *testing.T) {
	t.Parallel()
	s := seed(t)
	b := opened(t, &Options{LockWait: mostLockWait})
	h := newHoper(b.Store)
	var mu sync.Mutex // guards winners
	winners := make(map[int]int)
	crossed(t, b, s, 20, func(_, _ int, order []int) error {
		answers := make([]semel.ClaimAnswer, len(order))
		err := h.Claim(context.Background(), doneRequests(order), answers)
		mu.Lock()
		defer mu.Unlock()
		for i, a := range answers {
			if a.Decision == semel.Fresh {
				winners[order[i]]++
			} else if a.Decision != semel.Duplicate {
				err = errors.Join(err, fmt.Errorf("key %d is %s, %v", order[i], a.Decision, a.Err))
			}
		}
		return err
	})
	for n := range 20 * 150 {
		if winners[n] != 1 {
			t.Fatalf("key %d has %d winners, want 1", n, winners[n])
		}
	}
}

func TestAHopeWaitsForAKeyNoLongerThanItMay(t *testing.T) {
	t.Parallel()
	b := opened(t, &Options{LockWait: 200 * time.Millisecond})
	letGo := locked(t, b, 77)
	all := make([]int, 200)
	for i := range all {
		all[i] = i
	}
	answers := make([]semel.ClaimAnswer, len(all))
	if err := newHoper(b.Store).Claim(t.Context(), doneRequests(all), answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		want := semel.Fresh
		if i == 77 {
			want = semel.InFlight
		}
		if a.Decision != want {
			t.Errorf("key %d is %s, %v, want %s", i, a.Decision, a.Err, want)
		}
	}
	letGo(true)
	claimed(t, b.Store, doneRequests(all), semel.Duplicate)
}
