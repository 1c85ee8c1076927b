package http

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var seed = flag.Uint64("seed", 0, "seed of the moments of the kills; 0 takes a random one")

// workers send requests concurrently.
const workers = 16

// slow is the service, with a pause before and after the effect, in which the proxy may die.
func slow(s *service) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		within(r.Context(), time.Duration(rand.IntN(3))*time.Millisecond)
		s.ServeHTTP(w, r)
		within(r.Context(), time.Duration(rand.IntN(3))*time.Millisecond)
	})
}

// The proxy is killed at random moments while clients repeat their requests until they
// have an answer. No request takes effect twice, and each client has an answer, or a
// problem that says that the outcome is not known.
func TestNoRequestTakesEffectTwiceWhenTheProxyIsKilled(t *testing.T) {
	t.Parallel()
	requests, kills := 2000, 20
	if testing.Short() {
		requests, kills = 300, 3
	}
	random := *seed
	if random == 0 {
		random = rand.Uint64()
	}
	t.Logf("-seed %d", random)
	for _, store := range stores {
		t.Run(store.name, func(t *testing.T) {
			t.Parallel()
			s := newService(t)
			front := httptest.NewServer(slow(s))
			t.Cleanup(front.Close)
			p := newProxy(t, front.URL, store.flags(t)...)
			ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Minute, fmt.Errorf("the clients have no answers after 5 minutes"))
			defer cancel()

			moments := rand.New(rand.NewPCG(random, 0))
			var at []int
			for range kills {
				at = append(at, moments.IntN(requests-workers))
			}
			slices.Sort(at)
			done := make(chan int, requests) // how many requests have an answer
			var killing sync.WaitGroup
			killing.Go(func() {
				for n := range done {
					for len(at) > 0 && n >= at[0] {
						at = at[1:]
						p.kill()
						p.start(t)
					}
				}
			})
			unknown := clients(ctx, t, p.url, s, requests, done)
			close(done)
			killing.Wait()
			if len(at) > 0 {
				t.Errorf("%d kills did not happen", len(at))
			}
			if unknown == 0 && !testing.Short() || unknown > kills*workers {
				t.Errorf("the outcome of %d requests is unknown, after %d kills with %d requests at a time", unknown, kills, workers)
			}
			t.Logf("%d requests, %d kills, %d outcomes unknown", requests, kills, unknown)
		})
	}
}

// clients sends requests until each has an answer. It returns for how many the outcome is
// unknown.
func clients(ctx context.Context, t *testing.T, proxy string, s *service, requests int, done chan<- int) int {
	var next, answered, unknown atomic.Int64
	var all sync.WaitGroup
	for range workers {
		all.Go(func() {
			for i := next.Add(1); i <= int64(requests); i = next.Add(1) {
				id := fmt.Sprintf("order-%d", i)
				got, err := settled(ctx, proxy, id, "")
				runs := s.Runs(id)
				switch {
				case err != nil:
					t.Errorf("%s: %v", id, err)
					return
				case got.status == http.StatusOK:
					again, err := settled(ctx, proxy, id, "")
					if err != nil || again.body != got.body || again.header.Get("Idempotent-Replayed") != "true" {
						t.Errorf("%s got %+v, and then %+v, %v", id, got, again, err)
					}
					if got.body != "run 1" || runs != 1 {
						t.Errorf("%s got %q after %d runs", id, got.body, runs)
					}
				case got.problem == "outcome-unknown":
					unknown.Add(1)
				default:
					t.Errorf("%s got %+v", id, got)
				}
				if runs := s.Runs(id); runs > 1 {
					t.Errorf("%s ran %d times", id, runs)
				}
				done <- int(answered.Add(1))
			}
		})
	}
	all.Wait()
	return int(unknown.Load())
}
