package tiered_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/tiered"
)

// seed returns the seed of a random test, from SEMEL_SEED if it is set.
func seed(t *testing.T) uint64 {
	t.Helper()
	s := rand.Uint64()
	if given := os.Getenv("SEMEL_SEED"); given != "" {
		var err error
		if s, err = strconv.ParseUint(given, 10, 64); err != nil {
			t.Fatalf("SEMEL_SEED: %v", err)
		}
	}
	t.Logf("SEMEL_SEED=%d", s)
	return s
}

// TestRandomLayerOutagesCauseNoFalseDuplicate runs several processes on one set of keys. Each has a stack
// of its own filter and cache, above a shared cache and one durable store. Each
// layer fails at random. Every duplicate must have the record of a completed
// effect behind it, with its result. At the end no key may be lost or stuck.
func TestRandomLayerOutagesCauseNoFalseDuplicate(t *testing.T) {
	s := seed(t)
	rounds := 9
	if testing.Short() {
		rounds = 3
	}
	met := 0
	for round := range rounds {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, s, uint64(round))
			w.run()
			met += w.met()
		})
		if t.Failed() {
			t.Fatalf("SEMEL_SEED=%d, round %d", s, round)
		}
	}
	if met < 100*rounds {
		t.Errorf("%d calls met a fault in %d rounds: too few to say anything", met, rounds)
	}
}

const (
	worldStacks  = 2
	worldWorkers = 6
	worldKeys    = 5 // per worker
	worldLease   = 10 * time.Second
	worldWindow  = 5 * time.Minute
	worldMaxAge  = time.Minute
)

// world is a set of stacks above layers that fail.
type world struct {
	*testing.T
	opts    tiered.Options
	random  *rand.Rand
	stacks  [worldStacks]*tiered.Store
	layers  []*faulty // layers that can fail
	durable *faulty
}

func newWorld(t *testing.T, s, round uint64) *world {
	w := &world{T: t, random: rand.New(rand.NewPCG(s, round))}
	w.opts = tiered.Options{
		MaxAge: worldMaxAge, Timeout: 50 * time.Millisecond, Retry: 500 * time.Millisecond,
		OnOutage: tiered.OutagePolicy(round % 3),
	}
	layer := func() *faulty {
		f := newFaulty(newMemory(t, &memstore.Options{MaxWindow: worldWindow}))
		f.shared = true
		w.layers = append(w.layers, f)
		return f
	}
	w.durable = layer()
	common := layer()
	for i := range w.stacks {
		memory, err := tiered.NewMemoryFilter(&tiered.FilterOptions{Capacity: 1000, Window: worldWindow})
		if err != nil {
			t.Fatal(err)
		}
		filter := &faultyFilter{memory, layer()}
		o := w.opts
		o.Layers = []tiered.Layer{{Cache: layer()}, {Filter: filter}, {Cache: common}}
		if w.stacks[i], err = tiered.New(w.durable, &o); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

// run lets the workers work and the layers fail for ten minutes, and then
// checks the state.
func (w *world) run() {
	ctx, end := context.WithTimeout(w.Context(), 10*time.Minute)
	defer end()
	var group sync.WaitGroup
	for i, l := range w.layers {
		random := rand.New(rand.NewPCG(w.random.Uint64(), uint64(i)))
		group.Go(func() { w.disturb(ctx, l, random) })
	}
	workers := make([]*worker, worldWorkers)
	for i := range workers {
		workers[i] = &worker{world: w, name: i, random: rand.New(rand.NewPCG(w.random.Uint64(), uint64(i))), stale: make(map[semel.Key]time.Time), by: make(map[semel.Key]int)}
		group.Go(func() { workers[i].work(ctx) })
	}
	group.Wait()
	for _, l := range w.layers {
		l.is(healthy)
	}
	time.Sleep(2*worldLease + worldMaxAge) // in a bubble
	for _, k := range workers {
		k.settle()
	}
}

func (w *world) met() (n int) {
	for _, l := range w.layers {
		n += l.met()
	}
	return n
}

// disturb repeatedly gives a layer a fault for some time.
func (w *world) disturb(ctx context.Context, l *faulty, random *rand.Rand) {
	for ctx.Err() == nil {
		next := fault(random.IntN(4))
		only := []string{"", "", "claim", "complete", "remove", "look"}[random.IntN(6)]
		share := random.IntN(100)
		var mu sync.Mutex // guards calls; they are concurrent
		calls := rand.New(rand.NewPCG(random.Uint64(), 0))
		l.setFaults(func(verb string) fault {
			mu.Lock()
			defer mu.Unlock()
			if only != "" && only != verb || calls.IntN(100) < share {
				return healthy
			}
			return next
		})
		pass(ctx, time.Duration(random.IntN(5000))*time.Millisecond)
		l.is(healthy)
		pass(ctx, time.Duration(random.IntN(5000))*time.Millisecond)
	}
}

// pass waits for a duration.
func pass(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// worker works on its own keys through any of the stacks, so it knows what the
// durable store must contain.
type worker struct {
	*world
	name   int
	random *rand.Rand
	nonce  uint64
	runs   int
	// stale is how long another stack than the remover may have a copy of a
	// removed key, because a cache was not reached. by is the stack that
	// removed it.
	stale map[semel.Key]time.Time
	by    map[semel.Key]int
}

func (k *worker) key(i int) semel.Key { return semel.Key{Scope: fmt.Sprint(k.name), ID: fmt.Sprint(i)} }

func (k *worker) work(ctx context.Context) {
	for ctx.Err() == nil {
		key, at := k.key(k.random.IntN(worldKeys)), k.random.IntN(worldStacks)
		if k.random.IntN(20) == 0 {
			k.remove(key, at)
		} else {
			k.deliver(ctx, key, at)
		}
		time.Sleep(time.Duration(k.random.IntN(300)) * time.Millisecond) // in a bubble
	}
}

// truth reads the durable store directly, without faults.
func (k *worker) truth(key semel.Key) semel.Record {
	k.Helper()
	records := make([]semel.Record, 1)
	if err := k.durable.Store.Look(context.Background(), []semel.Key{key}, records); err != nil {
		k.Fatal(err)
	}
	return records[0]
}

// deliver claims a key twice in one batch, together with another key. It
// completes the key if it is fresh.
func (k *worker) deliver(ctx context.Context, key semel.Key, at int) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	stack := k.stacks[at]
	k.nonce++
	req := semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: fmt.Sprint(k.name), Nonce: k.nonce}, Lease: worldLease, Window: worldWindow}
	if k.random.IntN(3) == 0 {
		req.Fingerprint = semel.Fingerprint{0: 1, 8: byte(k.name)}
	}
	before := k.truth(key)
	answers := make([]semel.ClaimAnswer, 1)
	err := stack.Claim(ctx, []semel.ClaimRequest{req}, answers)
	a := answers[0]
	switch {
	case a.Decision == semel.Duplicate:
		k.check(key, at, a, before, k.truth(key))
	case err != nil && a.Decision != semel.Undecided:
		k.Errorf("the claim of %s is answered %s and %v", key, a.Decision, err)
	case a.Decision == semel.Mismatch, a.Decision == semel.OutcomeUnknown, a.Decision == semel.Late, a.Err != nil:
		k.Errorf("the claim of %s is answered %s, %v", key, a.Decision, a.Err)
	case a.Decision != semel.Fresh:
		return
	}
	if a.Decision != semel.Fresh || k.random.IntN(8) == 0 {
		return // or the worker crashes
	}
	k.runs++
	result := semel.Result{Kind: semel.Value, Data: fmt.Appendf(nil, "%d-%d", k.name, k.runs)}
	if k.random.IntN(3) == 0 {
		result = semel.Result{}
	}
	errs := make([]error, 1)
	if k.random.IntN(8) == 0 {
		_ = stack.Release(ctx, []semel.ReleaseRequest{{Key: key, Token: a.Claim.Token}}, errs)
		return
	}
	complete := semel.CompleteRequest{Key: key, Token: a.Claim.Token, Result: result, Window: worldWindow}
	err = stack.Complete(ctx, []semel.CompleteRequest{complete}, errs)
	if err == nil && errs[0] == nil && a.Claim.Token != 0 && k.truth(key).State != semel.Done {
		k.Errorf("the completion of %s is answered, but its record is %+v", key, k.truth(key))
	}
}

// check compares a duplicate with the record before and after its claim.
func (k *worker) check(key semel.Key, at int, a semel.ClaimAnswer, before, after semel.Record) {
	k.Helper()
	for _, r := range []semel.Record{before, after} {
		if r.State == semel.Done && r.Result.Kind == a.Result.Kind && string(r.Result.Data) == string(a.Result.Data) {
			return
		}
	}
	if until, ok := k.stale[key]; ok && k.by[key] != at && time.Now().Before(until) {
		return
	}
	k.Errorf("%s is called a duplicate with the result %q by stack %d at %v; its record is %+v", key, a.Result.Data, at, time.Now(), after)
}

// remove removes a key. If a cache was not reached, it returns an error, and
// stacks other than the remover may use a copy for a while.
func (k *worker) remove(key semel.Key, at int) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	_, err := k.stacks[at].Remove(ctx, key)
	if err == nil {
		delete(k.stale, key)
		if r := k.truth(key); r.State != semel.Absent {
			k.Errorf("%s is removed, but its record is %+v", key, r)
		}
	}
	// A removal does not reach another process's own cache.
	k.stale[key], k.by[key] = time.Now().Add(worldMaxAge), at
}

// settle checks, without any faults, that each key of the worker can be
// finished.
func (k *worker) settle() {
	k.Helper()
	for i := range worldKeys {
		key := k.key(i)
		for at := range k.stacks {
			answers := make([]semel.ClaimAnswer, 1)
			k.nonce++
			req := semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: fmt.Sprint(k.name), Nonce: k.nonce}, Lease: worldLease, Window: worldWindow}
			if err := k.stacks[at].Claim(k.Context(), []semel.ClaimRequest{req}, answers); err != nil {
				k.Errorf("after the outages the claim of %s: %v", key, err)
				continue
			}
			errs := make([]error, 1)
			switch a := answers[0]; {
			case a.Decision == semel.Duplicate && k.truth(key).State == semel.Done:
			case a.Decision == semel.Fresh && a.Claim.Token != 0:
				if err := k.stacks[at].Complete(k.Context(), []semel.CompleteRequest{{Key: key, Token: a.Claim.Token, Window: worldWindow}}, errs); err != nil || errs[0] != nil {
					k.Errorf("after the outages the completion of %s: %v, %v", key, err, errs[0])
				}
			default:
				k.Errorf("after the outages %s is answered %s; its record is %+v", key, a.Decision, k.truth(key))
			}
		}
	}
	for at, stack := range k.stacks {
		for _, l := range stack.Status().Layers {
			if l.PendingRemovals != 0 {
				k.Errorf("in stack %d are %d pending removals of %s", at, l.PendingRemovals, l.Name)
			}
		}
	}
}
