package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/tiered"
)

func (b *bundle) remove(id string) {
	b.Helper()
	if was, err := b.Remove(b.Context(), key(id)); err != nil || !was {
		b.Fatalf("remove %s: %t, %v", id, was, err)
	}
}

func TestRemovalReachesTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		b.remove("a")
		b.done("a")
		b.want(semel.Duplicate, "a")
		time.Sleep(time.Minute)
		b.want(semel.Duplicate, "a") // the claim that kept copies out has ended
		b.spared("a duplicate", func() { b.want(semel.Duplicate, "a") })
	})
}

// TestKeyIsNotADuplicateWhileItsRemovalIsUnderWay claims a key after the
// durable store has removed it and before the cache has. The remover's context
// ends at that moment.
func TestKeyIsNotADuplicateWhileItsRemovalIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		ctx, cancel := context.WithCancel(t.Context())
		b.cache.before = func(verb string) {
			if verb == "remove" {
				b.want(semel.Fresh, "a")
				b.want(semel.InFlight, "a")
				cancel()
			}
		}
		if was, err := b.Remove(ctx, key("a")); !was || err != nil {
			t.Errorf("remove: %t, %v", was, err)
		}
		b.want(semel.InFlight, "a")
	})
}

// TestCopyUnderWayDoesNotOutliveARemoval removes a key at each step of its
// copying, in this process and in another one that shares the cache.
func TestCopyUnderWayDoesNotOutliveARemoval(t *testing.T) {
	for _, other := range []bool{false, true} {
		for _, verb := range []string{"look", "claim", "complete"} {
			for _, on := range []string{"cache", "durable"} {
				t.Run(fmt.Sprintf("%s of %s, by another process %t", verb, on, other), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						b := setup(t, tiered.Options{})
						b.done("a")
						// The copy has expired: the next duplicate makes a new
						// one.
						time.Sleep(tiered.DefaultMaxAge)
						remover := b.Store
						if other {
							var err error
							if remover, err = tiered.Dual(b.cache.Store, b.durable.Store, nil); err != nil {
								t.Fatal(err)
							}
						}
						layer := map[string]*faulty{"cache": b.cache, "durable": b.durable}[on]
						var once sync.Once
						var met bool
						layer.before = func(called string) {
							if called != verb {
								return
							}
							once.Do(func() {
								met = true
								layer.before = nil
								if _, err := remover.Remove(t.Context(), key("a")); err != nil {
									t.Error(err)
								}
							})
						}
						if _, err := b.tryClaim(b.request("a")); err != nil {
							t.Fatal(err)
						}
						layer.before = nil
						if !met && (on == "cache" || verb != "complete") {
							t.Fatal("the removal did not happen")
						}
						if !met {
							return // the durable store completes nothing for a duplicate
						}
						for range 3 {
							records := make([]semel.Record, 1)
							if err := b.cache.Store.Look(t.Context(), []semel.Key{key("a")}, records); err != nil || records[0].State == semel.Done {
								t.Fatalf("after the removal the cache has %+v, %v", records[0], err)
							}
						}
						if a, _ := b.tryClaim(b.request("a")); a.Decision == semel.Duplicate {
							t.Error("after the removal the key is a duplicate")
						}
					})
				})
			}
		}
	}
}

func TestARemovalThatDoesNotReachTheCacheIsSentLater(t *testing.T) {
	for name, f := range map[string]fault{"refuses": refuses, "hangs": hangs, "loses answers": mute} {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, tiered.Options{MaxAge: semel.Forever})
			b.done("a")
			b.done("b")
			// Another stack, in this process or another one, reads the cache
			// too.
			second, err := tiered.Dual(b.cache.Store, b.durable.Store, nil)
			if err != nil {
				t.Fatal(err)
			}
			b.cache.is(f)
			was, err := b.Remove(t.Context(), key("a"))
			if !was || !errors.Is(err, errFault) {
				t.Errorf("a removal while the cache %s: %t, %v", name, was, err)
			}
			if _, err := b.Remove(t.Context(), key("never there")); !errors.Is(err, semel.ErrStoreUnavailable) {
				t.Errorf("a removal while the cache is left out: %v", err)
			}
			b.told("cache down", "cache unreached", "cache unreached")
			if n := b.Status().Layers[0].PendingRemovals; n != 2 {
				t.Errorf("%d removals are pending, want 2", n)
			}
			c := b.want(semel.Fresh, "a").Claim
			b.cache.is(healthy)
			b.want(semel.InFlight, "a")
			time.Sleep(tiered.DefaultRetry)
			b.want(semel.InFlight, "a") // pays first
			b.told("cache up")
			if n := b.Status().Layers[0].PendingRemovals; n != 0 {
				t.Errorf("%d removals are pending still", n)
			}
			answers := make([]semel.ClaimAnswer, 1)
			if err := second.Claim(t.Context(), []semel.ClaimRequest{b.request("a")}, answers); err != nil || answers[0].Decision != semel.InFlight {
				t.Errorf("the other stack answers %s, %v", answers[0].Decision, err)
			}
			b.spared("a duplicate", func() { b.want(semel.Duplicate, "b") })
			if err := b.tryComplete("a", c.Token); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestTooManyRemovalsTakeACacheOut removes more keys than a stack remembers.
func TestTooManyRemovalsTakeACacheOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{MaxAge: 10 * time.Minute})
		b.done("a")
		b.done("b")
		b.cache.is(refuses)
		if _, err := b.Remove(t.Context(), key("a")); err == nil {
			t.Error("a removal that reached no cache has no error")
		}
		for i := range 10_000 {
			_, _ = b.Remove(t.Context(), key(fmt.Sprint(i)))
		}
		b.cache.is(healthy)
		time.Sleep(time.Minute)
		b.want(semel.Fresh, "a")
		b.want(semel.Duplicate, "b")
		if st := b.Status().Layers[0]; !st.Down || st.PendingRemovals != 0 {
			t.Errorf("the cache is in use: %+v", st)
		}
		time.Sleep(10 * time.Minute)
		b.want(semel.Duplicate, "b")
		b.spared("a duplicate", func() { b.want(semel.Duplicate, "b") })
	})
}

func TestUnansweredRemovalRemovesCachedCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		b.durable.is(mute)
		if was, err := b.Remove(t.Context(), key("a")); was || semel.Classify(err) != semel.ClassUnknown {
			t.Errorf("the removal is answered %t, %v", was, err)
		}
		b.durable.is(healthy)
		b.want(semel.Fresh, "a")
	})
}

func TestResolvingAKeyRemovesItsCachedCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		// The durable store lost the completion, as after a failover, and has
		// the key as unknown.
		b.durable.Store = newMemory(t, nil)
		req := b.request("a")
		req.Hold = true
		answers := make([]semel.ClaimAnswer, 1)
		if err := b.durable.Store.Claim(t.Context(), []semel.ClaimRequest{req}, answers); err != nil {
			t.Fatal(err)
		}
		if err := b.durable.Store.Release(t.Context(), []semel.ReleaseRequest{{Key: key("a"), Token: answers[0].Claim.Token, Unknown: true}}, make([]error, 1)); err != nil {
			t.Fatal(err)
		}
		if err := b.Resolve(t.Context(), semel.ResolveRequest{Key: key("a"), As: semel.Absent}); err != nil {
			t.Fatal(err)
		}
		b.want(semel.Fresh, "a")
		if err := b.Resolve(t.Context(), semel.ResolveRequest{Key: key("a"), As: semel.Absent}); !errors.Is(err, semel.ErrNotUnknown) {
			t.Errorf("resolve of a claimed key: %v", err)
		}
	})
}

func TestPurgeReachesAllLayers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.cache.Store, b.durable.Store = newMemory(t, &memstore.Options{KeepIDs: true}), newMemory(t, &memstore.Options{KeepIDs: true})
		b.done("a")
		time.Sleep(2 * time.Hour)
		if n, err := b.Purge(t.Context()); n != 1 || err != nil {
			t.Errorf("purge: %d, %v", n, err)
		}
		if b.cache.count("purge") != 1 || b.durable.count("purge") != 1 {
			t.Error("purge did not reach both layers")
		}
		b.cache.is(refuses)
		if _, err := b.Purge(t.Context()); err != nil {
			t.Errorf("purge with a cache that refuses: %v", err)
		}
		b.told("cache down")
	})
}

// tardy answers completions late.
type tardy struct {
	*faulty
	by time.Duration
}

func (s *tardy) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	err := s.faulty.Complete(ctx, reqs, answers)
	time.Sleep(s.by) // in a bubble
	return err
}

func TestCopyThatIsWrittenLateDoesNotOutliveItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const window = 10 * time.Second
		durable := &tardy{newFaulty(newMemory(t, nil)), window}
		durable.shared = true
		stack, err := tiered.Dual(newFaulty(newMemory(t, nil)), durable, nil)
		if err != nil {
			t.Fatal(err)
		}
		b := &bundle{TB: t, Store: stack}
		granted := b.want(semel.Fresh, "late")
		answers := make([]error, 1)
		req := semel.CompleteRequest{Key: key("late"), Token: granted.Claim.Token, Window: window, Result: semel.Result{Kind: semel.Value}}
		if err := b.Complete(t.Context(), []semel.CompleteRequest{req}, answers); err != nil || answers[0] != nil {
			t.Fatal(err, answers[0])
		}
		b.want(semel.Fresh, "late") // the record's window has ended
	})
}
