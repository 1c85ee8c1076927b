package tiered_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/store/memstore"
	"github.com/semel-dev/semel/store/tiered"
)

// bundle is a stack of a cache above a durable store, which can both fail, with
// the events that it reported.
type bundle struct {
	testing.TB
	*tiered.Store
	cache, durable *faulty
	events         *[]tiered.Event
	nonce          uint64
}

// setup makes a bundle in a synctest bubble. The caller advances the time.
func setup(t testing.TB, opts tiered.Options) *bundle {
	t.Helper()
	b := &bundle{TB: t, cache: newFaulty(newMemory(t, nil)), durable: newFaulty(newMemory(t, nil)), events: new([]tiered.Event)}
	b.cache.shared, b.durable.shared = true, true
	opts.Observe = func(e tiered.Event) { *b.events = append(*b.events, e) }
	var err error
	if b.Store, err = tiered.Dual(b.cache, b.durable, &opts); err != nil {
		t.Fatal(err)
	}
	return b
}

func newMemory(t testing.TB, opts *memstore.Options) *memstore.Store {
	t.Helper()
	store, err := memstore.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func key(id string) semel.Key { return semel.Key{Scope: "test", ID: id} }

func (b *bundle) request(id string) semel.ClaimRequest {
	b.nonce++
	return semel.ClaimRequest{Key: key(id), Owner: semel.Owner{Name: "test", Nonce: b.nonce}, Lease: time.Minute, Window: time.Hour}
}

func (b *bundle) tryClaim(req semel.ClaimRequest) (semel.ClaimAnswer, error) {
	answers := make([]semel.ClaimAnswer, 1)
	err := b.Claim(b.Context(), []semel.ClaimRequest{req}, answers)
	return answers[0], err
}

// want claims a key and checks the decision.
func (b *bundle) want(decision semel.Decision, id string) semel.ClaimAnswer {
	b.Helper()
	a, err := b.tryClaim(b.request(id))
	if err != nil || a.Err != nil || a.Decision != decision {
		b.Fatalf("claim of %s is answered %s, %v, %v, want %s", id, a.Decision, a.Err, err, decision)
	}
	return a
}

func (b *bundle) tryComplete(id string, token semel.Token) error {
	answers := make([]error, 1)
	err := b.Complete(b.Context(), []semel.CompleteRequest{
		{Key: key(id), Token: token, Window: time.Hour, Result: semel.Result{Kind: semel.Value, Data: []byte("of " + id)}},
	}, answers)
	return errors.Join(err, answers[0])
}

// done claims and completes a key.
func (b *bundle) done(id string) {
	b.Helper()
	if err := b.tryComplete(id, b.want(semel.Fresh, id).Claim.Token); err != nil {
		b.Fatalf("complete %s: %v", id, err)
	}
}

// spared checks that f succeeds without a call of the durable store.
func (b *bundle) spared(what string, f func()) {
	b.Helper()
	before := b.durable.count("claim") + b.durable.count("look")
	f()
	if n := b.durable.count("claim") + b.durable.count("look") - before; n != 0 {
		b.Errorf("%s took %d calls of the durable store, want none", what, n)
	}
}

// told checks the events since the last call.
func (b *bundle) told(want ...string) {
	b.Helper()
	var got []string
	for _, e := range *b.events {
		got = append(got, e.Layer+" "+e.Kind.String())
	}
	*b.events = nil
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		b.Errorf("the stack tells %q, want %q", got, want)
	}
}

func TestCacheAnswersDuplicatesWithTheirResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.done("a")
		b.spared("a duplicate", func() {
			if a := b.want(semel.Duplicate, "a"); string(a.Result.Data) != "of a" || a.Result.Kind != semel.Value {
				t.Errorf("the duplicate has the result %+v", a.Result)
			}
		})
		if st := b.Status(); st.Layers[0].Answered != 1 || st.Layers[0].Filled != 1 {
			t.Errorf("the status is %+v", st)
		}
	})
}

func TestDuplicateIsCopiedUpwards(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{MaxAge: time.Minute})
		b.done("a")
		time.Sleep(time.Minute)
		b.want(semel.Duplicate, "a") // the copy has expired, and is made again
		b.spared("a duplicate", func() { b.want(semel.Duplicate, "a") })
	})
}

func TestCachedCopyExpiresBeforeItsRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{MaxAge: semel.Forever})
		b.done("a")
		for range 100 {
			time.Sleep(time.Hour/100 - time.Microsecond)
			b.want(semel.Duplicate, "a")
			records := make([]semel.Record, 2)
			if err := errors.Join(b.cache.Store.Look(t.Context(), []semel.Key{key("a")}, records[:1]), b.durable.Store.Look(t.Context(), []semel.Key{key("a")}, records[1:])); err != nil {
				t.Fatal(err)
			}
			if records[0].State == semel.Done && !records[0].Expires.Before(records[1].Expires) {
				t.Fatalf("the copy ends at %v, its record at %v", records[0].Expires, records[1].Expires)
			}
		}
		time.Sleep(time.Second)
		b.want(semel.Fresh, "a")
	})
}

// TestClocksThatDifferDoNotProlongAWindow has a durable store whose clock is
// ahead. By the stack's clock, its records seem to live longer.
func TestClocksThatDifferDoNotProlongAWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ahead = 3 * time.Hour
		b := setup(t, tiered.Options{})
		b.durable.Store = newMemory(t, &memstore.Options{Clock: func() time.Time { return time.Now().Add(ahead) }})
		b.done("a")
		time.Sleep(59 * time.Minute) // the copy has expired, and is made again
		b.want(semel.Duplicate, "a")
		time.Sleep(time.Minute + time.Second)
		b.want(semel.Fresh, "a")
	})
}

func TestCachedCopyReportsTheSameMismatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		one, other := semel.Fingerprint{0: 1, 8: 1}, semel.Fingerprint{0: 2, 8: 2}
		with := func(id string, print semel.Fingerprint, want semel.Decision) semel.ClaimAnswer {
			t.Helper()
			req := b.request(id)
			req.Fingerprint = print
			a, err := b.tryClaim(req)
			if err != nil || a.Decision != want {
				t.Fatalf("claim of %s with fingerprint %s is answered %s, %v, want %s", id, print, a.Decision, err, want)
			}
			return a
		}
		if err := b.tryComplete("a", with("a", one, semel.Fresh).Claim.Token); err != nil {
			t.Fatal(err)
		}
		b.spared("a duplicate with the fingerprint, and one with none", func() {
			with("a", one, semel.Duplicate)
			with("a", semel.Fingerprint{}, semel.Duplicate)
		})
		with("a", other, semel.Mismatch)

		// A claim without a fingerprint that took over keeps the fingerprint of
		// the record.
		with("b", one, semel.Fresh)
		time.Sleep(time.Minute)
		if err := b.tryComplete("b", with("b", semel.Fingerprint{}, semel.Fresh).Claim.Token); err != nil {
			t.Fatal(err)
		}
		with("b", semel.Fingerprint{}, semel.Duplicate)
		with("b", other, semel.Mismatch)
		with("b", one, semel.Duplicate)
	})
}

// TestRepeatedCompletionIsNotCopied completes a key twice. The second call
// succeeds, but the first result counts.
func TestRepeatedCompletionIsNotCopied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.cache.is(refuses)
		c := b.want(semel.Fresh, "a").Claim
		if err := b.tryComplete("a", c.Token); err != nil {
			t.Fatal(err)
		}
		b.cache.is(healthy)
		time.Sleep(tiered.DefaultRetry)
		b.want(semel.Fresh, "b") // the cache is back
		answers := make([]error, 1)
		again := semel.CompleteRequest{Key: key("a"), Token: c.Token, Window: time.Hour, Result: semel.Result{Kind: semel.Value, Data: []byte("other")}}
		if err := b.Complete(t.Context(), []semel.CompleteRequest{again}, answers); err != nil || answers[0] != nil {
			t.Fatal(err, answers[0])
		}
		for range 2 {
			if a := b.want(semel.Duplicate, "a"); string(a.Result.Data) != "of a" {
				t.Errorf("the duplicate has the result %q", a.Result.Data)
			}
		}
	})
}

func TestClaimWithDoneThatIsSentAgainDoesNotProlongTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		var err error
		if b.Store, err = tiered.Dual(b.cache, newMemory(t, nil), &tiered.Options{MaxAge: semel.Forever}); err != nil {
			t.Fatal(err)
		}
		req := b.request("a")
		req.Done = true
		for _, pause := range []time.Duration{45 * time.Minute, 16 * time.Minute} {
			if a, err := b.tryClaim(req); err != nil || a.Decision != semel.Fresh {
				t.Fatalf("a claim with Done is answered %s, %v", a.Decision, err)
			}
			time.Sleep(pause)
		}
		if a, err := b.tryClaim(b.request("a")); err != nil || a.Decision != semel.Fresh {
			t.Errorf("after its window a key is %s, %v", a.Decision, err)
		}
	})
}

func TestLateCacheCopyIsNotWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		b.durable.before = func(verb string) {
			if verb == "complete" {
				time.Sleep(31 * time.Second)
			}
		}
		b.done("a")
		if n := b.cache.count("claim"); n != 0 {
			t.Error("a copy is written later than what keeps removed keys out lasts")
		}
		b.want(semel.Duplicate, "a")
	})
}

func TestCacheGetsNoCopyThatItCannotKeep(t *testing.T) {
	for name, opts := range map[string]*memstore.Options{
		"results that are too long":  {MaxResult: 1},
		"windows that are too short": {MaxWindow: 10 * 365 * 24 * time.Hour},
	} {
		synctest.Test(t, func(t *testing.T) {
			b := setup(t, tiered.Options{})
			var err error
			if b.Store, err = tiered.Dual(&faulty{Store: newMemory(t, opts), calls: b.cache.calls, fault: b.cache.fault}, b.durable, nil); err != nil {
				t.Fatal(err)
			}
			b.done("a")
			b.want(semel.Duplicate, "a")
			if n := b.cache.count("claim"); n != 0 {
				t.Errorf("%s: the cache was written to %d times", name, n)
			}
		})
	}
}

func TestUnknownOutcomeIsCopiedNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := setup(t, tiered.Options{})
		c := b.want(semel.Fresh, "a").Claim
		b.durable.is(mute)
		if err := b.tryComplete("a", c.Token); semel.Classify(err) != semel.ClassUnknown {
			t.Fatalf("a completion whose answer was lost: %v", err)
		}
		step := b.request("b")
		step.Done = true
		if _, err := b.tryClaim(step); semel.Classify(err) != semel.ClassUnknown {
			t.Fatalf("a claim whose answer was lost: %v", err)
		}
		b.durable.is(healthy)
		if n := b.cache.count("claim"); n != 0 {
			t.Errorf("the cache was written to %d times", n)
		}
	})
}

func TestFilterSavesCacheReadsWithoutChangingAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cache, durable := newFaulty(newMemory(t, nil)), newFaulty(newMemory(t, nil))
		filter, err := tiered.NewMemoryFilter(nil)
		if err != nil {
			t.Fatal(err)
		}
		b := &bundle{TB: t, cache: cache, durable: durable, events: new([]tiered.Event)}
		b.Store, err = tiered.New(durable, &tiered.Options{Layers: []tiered.Layer{{Filter: filter}, {Cache: cache}}})
		if err != nil {
			t.Fatal(err)
		}
		b.done("a")
		if n := cache.count("look"); n != 0 {
			t.Errorf("a new key took %d reads of the cache", n)
		}
		b.spared("a duplicate", func() { b.want(semel.Duplicate, "a") })

		// A key that the filter has not seen is not necessarily fresh.
		answers := make([]semel.ClaimAnswer, 1)
		req := b.request("b")
		req.Done = true
		if err := durable.Store.Claim(t.Context(), []semel.ClaimRequest{req}, answers); err != nil {
			t.Fatal(err)
		}
		b.want(semel.Duplicate, "b")
		if st := b.Status(); st.Layers[0].Answered != 2 {
			t.Errorf("the status of the filter is %+v", st.Layers[0])
		}
	})
}

func TestTieredStoreHasTheOptionalInterfacesOfItsDurableStore(t *testing.T) {
	b := setup(t, tiered.Options{})
	if _, ok := semel.As[semel.Inspector](b.Store); !ok {
		t.Error("the durable store lists and the stack does not")
	}
	if r, _ := semel.As[semel.Resolver](b.Store); r != semel.Resolver(b.Store) {
		t.Error("the resolver of the stack is not the stack")
	}
	if _, ok := semel.As[interface {
		Examine(ctx context.Context) ([]doctor.Finding, error)
	}](b.Store); ok {
		t.Error("the durable store has no doctor and the stack has one")
	}
	if got, _ := semel.As[*faulty](b.Store); got != b.durable {
		t.Error("the durable store itself is not found by its type")
	}
	joined, err := tiered.Dual(semel.Join(b.cache, 0), semel.Join(b.durable, 0), nil)
	if err != nil {
		t.Fatalf("joined stores as layers: %v", err)
	}
	if _, err := tiered.New(joined, nil); err != nil {
		t.Errorf("a stack on a stack: %v", err)
	}
}

// bare is a store without abilities.
type bare struct{ semel.Store }

func TestOptionsThatCannotWorkAreRefusedTogether(t *testing.T) {
	store := newMemory(t, nil)
	filter, err := tiered.NewMemoryFilter(nil)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tiered.New(bare{store}, &tiered.Options{
		MaxAge: -1, Timeout: -1, Retry: -1, OnOutage: 9,
		Layers: []tiered.Layer{{}, {Filter: filter, Cache: store}, {Filter: filter}, {Cache: bare{store}}},
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("the error is %v", err)
	}
	for _, want := range []string{
		"Options.MaxAge", "Options.Timeout", "Options.Retry", "Options.OnOutage", "durable store",
		"Layers[0]", "Layers[1]", "Layers[3]",
	} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
	for name, opts := range map[string]*tiered.Options{"layers": {Layers: []tiered.Layer{{Cache: store}}}} {
		if _, err := tiered.Dual(store, store, opts); !errors.Is(err, semel.ErrInvalidRequest) {
			t.Errorf("Dual with %s: %v", name, err)
		}
	}
	if _, err := tiered.New(nil, nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("New without a durable store: %v", err)
	}
	if _, err := tiered.NewMemoryFilter(&tiered.FilterOptions{Window: -1, Capacity: -1}); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("a filter with a negative window: %v", err)
	}
	ctx := context.Background()
	s, err := tiered.New(store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Claim(ctx, make([]semel.ClaimRequest, 1), nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("a claim without room for its answer: %v", err)
	}
}
