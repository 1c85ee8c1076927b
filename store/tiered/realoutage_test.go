package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/pgstore"
	"github.com/semel-dev/semel/store/redisstore"
	"github.com/semel-dev/semel/store/tiered"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// site is a stack of Redis above PostgreSQL under load. Both have a server of
// their own that a test may disturb. The workers keep a ledger.
type site struct {
	testing.TB
	redis, postgres *services.Server
	stack           *tiered.Store
	durable         *pgstore.Store
	lease, timeout  time.Duration // of one delivery

	// effects counts the effects of each key. answered counts the deliveries
	// with an answer.
	effects  [siteKeys]atomic.Int32
	started  atomic.Int64 // the keys of load; those after it have had no delivery
	answered atomic.Int64
	failed   atomic.Int64
	slowest  atomic.Int64

	mu     sync.Mutex // guards events
	events []tiered.Event
}

const (
	siteKeys    = 20_000
	lastKey     = siteKeys - 1 // no worker gets that far
	siteWorkers = 16
)

func newSite(t testing.TB, opts tiered.Options) *site {
	t.Helper()
	s := &site{
		TB: t, lease: 2 * time.Second, timeout: 5 * time.Minute,
		redis:    servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--appendonly", "no", "--save", ""}}),
		postgres: servicestest.StartPostgres(t, nil),
	}
	client := connect(t, s.redis.URL())
	cache, err := redisstore.New(t.Context(), client, nil)
	if err != nil {
		t.Fatal(err)
	}
	pool := poolOf(t, s.postgres.URL())
	names := migrated(t, pool)
	if s.durable, err = pgstore.New(t.Context(), pool, &pgstore.Options{Names: names}); err != nil {
		t.Fatal(err)
	}
	memory, err := memstore.New(&memstore.Options{MaxKeys: 1000})
	if err != nil {
		t.Fatal(err)
	}
	opts.Layers = []tiered.Layer{{Name: "memory", Cache: memory}, {Name: "redis", Cache: cache}}
	opts.Retry = 200 * time.Millisecond
	opts.Observe = func(e tiered.Event) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if e.Kind != tiered.EventPassed {
			s.events = append(s.events, e)
		}
	}
	if s.stack, err = tiered.New(s.durable, &opts); err != nil {
		t.Fatal(err)
	}
	return s
}

// saw reports whether a layer had an event.
func (s *site) saw(layer string, kind tiered.EventKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.events {
		if e.Layer == layer && e.Kind == kind {
			return true
		}
	}
	return false
}

// load delivers each key several times from many workers until ctx ends. It
// checks for each duplicate that its effect has happened.
func (s *site) load(ctx context.Context) (wait func()) {
	guard, err := semel.NewGuard(s.stack, &semel.GuardOptions{Lease: s.lease, Wait: s.lease})
	if err != nil {
		s.Fatal(err)
	}
	var group sync.WaitGroup
	for worker := range siteWorkers {
		random := rand.New(rand.NewPCG(uint64(worker), 1))
		group.Go(func() {
			own := -1 // a key whose deliveries had no answer yet: no outage uses up the new keys
			for ctx.Err() == nil {
				started := int(s.started.Load())
				if started > 0 && random.IntN(10) > 0 || own < 0 && started > lastKey-siteWorkers {
					s.deliver(ctx, guard, max(0, started-1-random.IntN(2000))) // an old key again
					continue
				}
				if own < 0 {
					own = int(s.started.Add(1)) - 1
				}
				if s.deliver(ctx, guard, own) {
					own = -1
				}
			}
		})
	}
	return group.Wait
}

// deliver delivers a key, and reports whether it was answered.
func (s *site) deliver(ctx context.Context, guard *semel.Guard, i int) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.timeout)
	defer cancel()
	start := time.Now()
	outcome, err := guard.Do(ctx, siteKey(i), func(context.Context, semel.Claim) ([]byte, error) {
		s.effects[i].Add(1)
		return fmt.Append(nil, i), nil
	})
	took := int64(time.Since(start))
	for slowest := s.slowest.Load(); took > slowest && !s.slowest.CompareAndSwap(slowest, took); slowest = s.slowest.Load() {
	}
	switch {
	case err != nil:
		if s.failed.Add(1) == 1 {
			s.Logf("the first delivery that failed, of key %d: %v", i, err)
		}
	case outcome.Decision == semel.Duplicate && s.effects[i].Load() == 0:
		s.Errorf("key %d is called a duplicate, and its effect has not happened", i)
	case outcome.Decision == semel.Duplicate && string(outcome.Result.Data) != fmt.Sprint(i):
		s.Errorf("key %d is a duplicate with the result %q", i, outcome.Result.Data)
	default:
		s.answered.Add(1)
	}
	return err == nil
}

func siteKey(i int) semel.Key { return semel.Key{Scope: "site", ID: fmt.Sprint(i)} }

// progress waits for n more answers.
func (s *site) progress(n int64) {
	s.Helper()
	want := s.answered.Load() + n
	s.eventually(fmt.Sprintf("%d more deliveries are answered", n), func() bool { return s.answered.Load() >= want })
}

// eventually polls a condition.
func (s *site) eventually(what string, cond func() bool) {
	s.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.Now().Add(3 * time.Minute)
	for !cond() {
		if time.Now().After(deadline) {
			s.Fatalf("for three minutes it does not hold that %s; the status is %+v", what, s.stack.Status())
		}
		<-tick.C
	}
}

// audit compares each cached copy with its record, and delivers each key once
// more. No key may be lost or stuck.
func (s *site) audit() {
	s.Helper()
	guard, err := semel.NewGuard(s.stack, &semel.GuardOptions{Lease: s.lease, Wait: 5 * s.lease})
	if err != nil {
		s.Fatal(err)
	}
	for i := range int(s.started.Load()) {
		outcome, err := guard.Do(s.Context(), siteKey(i), func(context.Context, semel.Claim) ([]byte, error) {
			s.effects[i].Add(1)
			return fmt.Append(nil, i), nil
		})
		if err != nil {
			s.Fatalf("key %d after the outage: %v", i, err)
		}
		if outcome.Decision == semel.Fresh {
			continue // its completion was not answered
		}
		records := make([]semel.Record, 1)
		if err := s.durable.Look(s.Context(), []semel.Key{siteKey(i)}, records); err != nil || records[0].State != semel.Done {
			s.Fatalf("key %d is a duplicate; its record is %+v, %v", i, records[0], err)
		}
	}
}

func (s *site) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func TestCacheServerIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSite(t, tiered.Options{})
	s.lease = time.Minute // no worker is lost, however slow it is
	ctx, end := context.WithCancel(t.Context())
	wait := s.load(ctx)
	for range 2 {
		s.progress(500)
		s.must(s.redis.Kill())
		s.eventually("the cache is down", func() bool { return s.stack.Status().Layers[1].Down })
		s.progress(500)
		s.must(s.redis.Restart(t.Context()))
		s.eventually("the cache is up", func() bool { return !s.stack.Status().Layers[1].Down })
		before := s.stack.Status().Layers[1].Filled
		s.eventually("the cache is filled", func() bool { return s.stack.Status().Layers[1].Filled > before })
	}
	end()
	wait()
	if n := s.failed.Load(); n != 0 {
		t.Errorf("%d deliveries failed while only a cache was away", n)
	}
	s.audit()
	for i := range s.effects {
		if n := s.effects[i].Load(); n > 1 {
			t.Errorf("key %d had %d effects", i, n)
		}
	}
}

// TestCacheServerIsPausedUnderLoad pauses the cache for longer than its
// timeout. The connections stay open in such an outage.
func TestCacheServerIsPausedUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSite(t, tiered.Options{})
	s.lease = time.Minute // no worker is lost, however slow it is
	guard, err := semel.NewGuard(s.stack, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.deliver(t.Context(), guard, lastKey)
	removed := siteKey(lastKey)
	ctx, end := context.WithCancel(t.Context())
	wait := s.load(ctx)
	s.progress(500)
	s.must(s.redis.Pause())
	s.eventually("the cache is down", func() bool { return s.stack.Status().Layers[1].Down })
	was, err := s.stack.Remove(t.Context(), removed)
	if !was || err == nil {
		t.Errorf("a removal that reached no cache: %t, %v", was, err)
	}
	claim := func() semel.Decision {
		t.Helper()
		answers := make([]semel.ClaimAnswer, 1)
		req := semel.ClaimRequest{Key: removed, Owner: semel.Owner{Name: "test"}, Lease: time.Hour, Window: time.Hour}
		s.must(s.stack.Claim(t.Context(), []semel.ClaimRequest{req}, answers))
		return answers[0].Decision
	}
	if d := claim(); d != semel.Fresh {
		t.Errorf("a removed key is answered %s", d)
	}
	s.progress(500)
	s.must(s.redis.Continue())
	s.eventually("the cache is up", func() bool { return !s.stack.Status().Layers[1].Down })
	if d := claim(); d != semel.Fresh {
		t.Errorf("when the cache is back, a key that was removed in between is answered %s", d)
	}
	s.progress(500)
	end()
	wait()
	if n := s.failed.Load(); n != 0 {
		t.Errorf("%d deliveries failed while only a cache was away", n)
	}
}

func TestDurableServerIsKilledUnderLoad(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]tiered.OutagePolicy{"stop": tiered.Stop, "wait": tiered.Wait, "pass": tiered.Pass} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, tiered.Options{OnOutage: policy})
			if policy == tiered.Wait {
				s.lease = time.Minute // a waiting worker must not lose its claim
			}
			ctx, end := context.WithCancel(t.Context())
			wait := s.load(ctx)
			s.progress(500)
			s.must(s.postgres.Kill())
			s.eventually("the durable store is down", func() bool { return s.stack.Status().Durable.Down })
			switch policy {
			case tiered.Stop:
				before := s.failed.Load()
				s.eventually("deliveries fail", func() bool { return s.failed.Load() > before+50 })
				s.progress(200) // keys that the caches know
			case tiered.Wait:
				// Each worker reaches a key that the caches do not know.
				s.eventually("no delivery is answered for a while", func() bool {
					before := s.answered.Load()
					<-time.After(500 * time.Millisecond)
					return s.answered.Load() == before
				})
			case tiered.Pass:
				s.progress(2000)
				if s.stack.Status().Passed == 0 {
					t.Error("no claim was passed")
				}
			}
			s.must(s.postgres.Restart(t.Context()))
			s.eventually("the durable store is up", func() bool { return !s.stack.Status().Durable.Down })
			s.progress(500)
			end()
			wait()
			if n := s.failed.Load(); n != 0 && policy == tiered.Wait {
				t.Errorf("%d deliveries failed although they waited", n)
			}
			s.audit()
			again := 0
			for i := range s.effects {
				if s.effects[i].Load() > 1 {
					again++
				}
			}
			t.Logf("%d deliveries were answered, %d failed, %d claims passed, %d keys had an effect more than once",
				s.answered.Load(), s.failed.Load(), s.stack.Status().Passed, again)
			if !s.saw("durable", tiered.EventDown) || !s.saw("durable", tiered.EventUp) {
				t.Error("the outage was not told")
			}
		})
	}
}

// TestDurableServerIsPaused checks that the stack answers keys that the caches
// know. Other calls end with the caller's deadline and an unknown outcome.
func TestDurableServerIsPaused(t *testing.T) {
	t.Parallel()
	s := newSite(t, tiered.Options{Timeout: time.Minute}) // the caches do not lose their place on a slow machine
	guard, err := semel.NewGuard(s.stack, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.deliver(t.Context(), guard, 0)
	s.must(s.postgres.Pause())
	s.deliver(t.Context(), guard, 0)
	if s.answered.Load() != 2 {
		t.Error("a duplicate that caches know is not answered")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	answers := make([]semel.ClaimAnswer, 1)
	req := semel.ClaimRequest{Key: siteKey(1), Owner: semel.Owner{Name: "test", Nonce: 1}, Lease: time.Minute, Window: time.Hour}
	err = s.stack.Claim(ctx, []semel.ClaimRequest{req}, answers)
	if semel.Classify(err) != semel.ClassUnknown && !errors.Is(err, semel.ErrStoreUnavailable) || answers[0].Decision != semel.Undecided {
		t.Errorf("a claim while the durable store hangs: %s, %v", answers[0].Decision, err)
	}
	s.must(s.postgres.Continue())
	s.eventually("the durable store is asked again", func() bool {
		err = s.stack.Claim(t.Context(), []semel.ClaimRequest{req}, answers)
		return !errors.Is(err, semel.ErrStoreUnavailable)
	})
	if err != nil || answers[0].Decision != semel.Fresh {
		t.Errorf("the same claim afterwards: %s, %v", answers[0].Decision, err)
	}
}
