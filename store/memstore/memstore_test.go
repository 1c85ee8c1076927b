package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/memstore"
)

// bundle is a store with a clock that the test moves.
type bundle struct {
	*memstore.Store
	t     *testing.T
	now   time.Time
	nonce uint64
}

func setup(t *testing.T, opts memstore.Options) *bundle {
	t.Helper()
	b := &bundle{t: t, now: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}
	opts.Clock = func() time.Time { return b.now }
	s, err := memstore.New(&opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	b.Store = s
	return b
}

func id(i int) semel.Key { return semel.Key{Scope: "s", ID: strconv.Itoa(i)} }

func (b *bundle) ask(req semel.ClaimRequest) semel.ClaimAnswer {
	b.t.Helper()
	answers := make([]semel.ClaimAnswer, 1)
	if err := b.Claim(b.t.Context(), []semel.ClaimRequest{req}, answers); err != nil {
		b.t.Fatal(err)
	}
	return answers[0]
}

// done claims a key as done in one step.
func (b *bundle) done(key semel.Key, window time.Duration) semel.ClaimAnswer {
	b.t.Helper()
	return b.ask(semel.ClaimRequest{Key: key, Window: window, Done: true})
}

func (b *bundle) wantDone(want semel.Decision, key semel.Key, window time.Duration) {
	b.t.Helper()
	if a := b.done(key, window); a.Decision != want {
		b.t.Fatalf("%s is %s (%v), want %s", key, a.Decision, a.Err, want)
	}
}

// claimed claims a key for its own owner.
func (b *bundle) claimed(key semel.Key, lease time.Duration) semel.ClaimAnswer {
	b.t.Helper()
	b.nonce++
	return b.ask(semel.ClaimRequest{Key: key, Owner: semel.Owner{Name: "test", Nonce: b.nonce}, Lease: lease, Window: time.Hour})
}

func (b *bundle) complete(key semel.Key, token semel.Token, result semel.Result) error {
	b.t.Helper()
	answers := make([]error, 1)
	req := []semel.CompleteRequest{{Key: key, Token: token, Result: result, Window: time.Hour}}
	if err := b.Complete(b.t.Context(), req, answers); err != nil {
		b.t.Fatal(err)
	}
	return answers[0]
}

func (b *bundle) look(key semel.Key) semel.Record {
	b.t.Helper()
	records := make([]semel.Record, 1)
	if err := b.Look(b.t.Context(), []semel.Key{key}, records); err != nil {
		b.t.Fatal(err)
	}
	return records[0]
}

func (b *bundle) counts() semel.Counts {
	b.t.Helper()
	c, err := b.Count(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func TestCompletionWithoutResultIsStoredInTheCompactForm(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{})
	plain, result, again := id(1), id(2), id(3)
	token := b.claimed(plain, time.Minute).Claim.Token
	if err := b.complete(plain, token, semel.Result{}); err != nil {
		t.Fatal(err)
	}
	if r := b.look(plain); r.State != semel.Done || r.Token != 0 || r.Attempt != 1 {
		t.Errorf("a plain done key is %+v, want the compact form", r)
	}
	kept := b.claimed(result, time.Minute).Claim.Token
	if err := b.complete(result, kept, semel.Result{Kind: semel.Value}); err != nil {
		t.Fatal(err)
	}
	if r := b.look(result); r.State != semel.Done || r.Token != kept || r.Result.Kind != semel.Value {
		t.Errorf("a done key with an empty result is %+v, want its record", r)
	}
	b.claimed(again, time.Minute)
	b.now = b.now.Add(time.Minute)
	second := b.claimed(again, time.Minute).Claim
	if err := b.complete(again, second.Token, semel.Result{}); err != nil {
		t.Fatal(err)
	}
	if r := b.look(again); r.Attempt != 2 || second.Attempt != 2 {
		t.Errorf("a key done at the second attempt is %+v, want attempt 2", r)
	}
}

func TestRepeatedCompletionIsRecognisedAmongTheLastTenThousands(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{})
	const keys = 200_000
	tokens := make([]semel.Token, keys)
	for i := range tokens {
		tokens[i] = b.claimed(id(i), time.Minute).Claim.Token
		if err := b.complete(id(i), tokens[i], semel.Result{}); err != nil {
			t.Fatal(err)
		}
	}
	for i := keys - 30_000; i < keys; i++ {
		if err := b.complete(id(i), tokens[i], semel.Result{}); err != nil {
			t.Fatalf("the completion repeated after %d others: %v", keys-i, err)
		}
	}
	var stale *semel.StaleTokenError
	if err := b.complete(id(0), tokens[0], semel.Result{}); !errors.As(err, &stale) || stale.State != semel.Done {
		t.Errorf("a completion repeated after %d others is answered %v, want a stale token of a done key", keys, err)
	}
	// A token of another key is refused.
	if err := b.complete(id(keys-1), tokens[keys-2], semel.Result{}); !errors.Is(err, semel.ErrStaleToken) {
		t.Errorf("the token of another key is answered %v", err)
	}
}

func TestCompletionOfAnEarlierLifeOfAKeyIsStale(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(b *bundle){
		"expired": func(b *bundle) { b.now = b.now.Add(2 * time.Hour) },
		"removed": func(b *bundle) {
			if ok, err := b.Remove(b.t.Context(), id(1)); !ok || err != nil {
				b.t.Fatal(ok, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, memstore.Options{})
			token := b.claimed(id(1), time.Minute).Claim.Token
			if err := b.complete(id(1), token, semel.Result{}); err != nil {
				t.Fatal(err)
			}
			end(b)
			b.wantDone(semel.Fresh, id(1), time.Hour)
			if err := b.complete(id(1), token, semel.Result{}); !errors.Is(err, semel.ErrStaleToken) {
				t.Errorf("the completion of the first life is answered %v", err)
			}
		})
	}
}

func TestInsertsDropExpiredRecords(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{})
	var early int64
	for round := range 20 {
		for i := range 5000 {
			key := id(round*5000 + i)
			token := b.claimed(key, time.Minute).Claim.Token
			if err := b.complete(key, token, semel.Result{Kind: semel.Value, Data: make([]byte, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		b.now = b.now.Add(31 * time.Minute)
		if round == 3 {
			early = b.counts().MemoryBytes
		}
	}
	// Two rounds live at any time.
	if late := b.counts().MemoryBytes; late > early*3/2 {
		t.Errorf("memory grew from %d to %d with a constant number of live keys", early, late)
	}
	b.now = b.now.Add(2 * time.Hour)
	empty := setup(t, memstore.Options{}).counts().MemoryBytes
	if _, err := b.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := b.counts(); left.Done != 0 || left.MemoryBytes > empty+empty/2 {
		t.Errorf("after a purge of everything %+v is left, a new store takes %d bytes", left, empty)
	}
}

func TestKeysOutliveSeveralTurnsOfTheExpiryRing(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{MaxWindow: time.Hour})
	b.wantDone(semel.Fresh, id(0), semel.Forever)
	for turn := range 30 {
		// The store idles for a time that is not a multiple of the ring.
		b.now = b.now.Add(time.Duration(turn) * 47 * time.Minute)
		short, long := id(1000+turn), id(2000+turn)
		b.wantDone(semel.Fresh, short, time.Minute)
		b.wantDone(semel.Fresh, long, time.Hour)
		b.now = b.now.Add(time.Minute - 1)
		b.wantDone(semel.Duplicate, short, time.Minute)
		b.now = b.now.Add(1 + b.Traits().Tick)
		b.wantDone(semel.Fresh, short, time.Minute)
		b.now = b.now.Add(58*time.Minute + 59*time.Second)
		b.wantDone(semel.Duplicate, long, time.Hour)
		b.now = b.now.Add(time.Second + b.Traits().Tick)
		b.wantDone(semel.Fresh, long, time.Hour)
		b.wantDone(semel.Duplicate, id(0), time.Hour)
	}
}

func TestAbandonedKeyKeepsItsAttemptCount(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{MaxWindow: time.Minute})
	b.claimed(id(1), time.Second)
	b.now = b.now.Add(1000 * time.Hour)
	if _, err := b.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i := range 10_000 {
		b.claimed(id(10+i), time.Second)
	}
	if a := b.claimed(id(1), time.Second); a.Claim.Attempt != 2 {
		t.Errorf("an abandoned key is %s with attempt %d, want 2", a.Decision, a.Claim.Attempt)
	}
}

func TestOldestIsTheAgeOfTheOldestCompactKey(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{MaxWindow: time.Hour})
	b.wantDone(semel.Fresh, id(1), time.Hour)
	b.now = b.now.Add(20 * time.Minute)
	b.wantDone(semel.Fresh, id(2), time.Hour)
	if got := b.counts().Oldest; got > 20*time.Minute || got < 20*time.Minute-b.Traits().Tick {
		t.Errorf("the oldest key is %v old, want 20m", got)
	}
	b.now = b.now.Add(50 * time.Minute)
	if got := b.counts().Oldest; got > 50*time.Minute || got < 50*time.Minute-b.Traits().Tick {
		t.Errorf("after the first expired the oldest key is %v old, want 50m", got)
	}
}

func TestListingYieldsEveryKeyThatStays(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{})
	const keys = 20_000
	want := map[semel.Digest]bool{}
	for i := range keys {
		if i%4 == 0 {
			b.claimed(id(i), time.Hour)
		} else {
			b.wantDone(semel.Fresh, id(i), time.Hour)
		}
		want[b.look(id(i)).Digest] = true
	}
	listed := 0
	for r, err := range b.List(t.Context(), semel.ListOptions{}) {
		if err != nil {
			t.Fatal(err)
		}
		delete(want, r.Digest)
		// The store grows and shrinks while it is listed.
		if listed++; listed%2 == 0 {
			b.wantDone(semel.Fresh, id(1_000_000+listed), time.Hour)
		}
		if listed > 10*keys {
			t.Fatal("the listing does not end")
		}
	}
	if len(want) > 0 {
		t.Errorf("the listing misses %d of %d keys", len(want), keys)
	}
}

func TestKeptIDsAreCopies(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{KeepIDs: true})
	buffer := []byte("scope/first")
	view := unsafe.String(&buffer[0], len(buffer))
	b.wantDone(semel.Fresh, semel.Key{Scope: view[:5], ID: view[6:]}, time.Hour)
	copy(buffer, "XXXXXXXXXXX")
	for r, err := range b.List(t.Context(), semel.ListOptions{}) {
		if err != nil || r.Key != (semel.Key{Scope: "scope", ID: "first"}) {
			t.Errorf("the listing shows %s: %v", r.Key, err)
		}
	}
}

func TestManyScopesAreKeptApart(t *testing.T) {
	t.Parallel()
	b := setup(t, memstore.Options{})
	scopes := []string{"", strings.Repeat("long", 100)}
	for i := range 1000 {
		scopes = append(scopes, fmt.Sprint("tenant-", i))
	}
	reqs := make([]semel.ClaimRequest, len(scopes))
	answers := make([]semel.ClaimAnswer, len(scopes))
	for i, scope := range scopes {
		reqs[i] = semel.ClaimRequest{Key: semel.Key{Scope: scope, ID: "same"}, Window: time.Hour, Done: true}
	}
	for _, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
		if err := b.Claim(t.Context(), reqs, answers); err != nil {
			t.Fatal(err)
		}
		for i, a := range answers {
			if a.Decision != want {
				t.Fatalf("scope %q is %s, want %s", scopes[i], a.Decision, want)
			}
		}
		for _, scope := range scopes { // and one by one
			b.wantDone(semel.Duplicate, semel.Key{Scope: scope, ID: "same"}, time.Hour)
		}
	}
}

func TestCompactClaimsDoNotAllocate(t *testing.T) {
	s, err := memstore.New(&memstore.Options{Expect: 100_000})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var buffer [8]byte
	reqs := []semel.ClaimRequest{{Key: semel.Key{Scope: "s"}, Window: time.Hour, Done: true}}
	answers := make([]semel.ClaimAnswer, 1)
	ctx := context.Background()
	i := uint64(0)
	if allocs := testing.AllocsPerRun(10_000, func() {
		i++
		for j := range buffer {
			buffer[j] = byte(i >> (8 * j))
		}
		reqs[0].Key.ID = unsafe.String(&buffer[0], len(buffer))
		for _, want := range []semel.Decision{semel.Fresh, semel.Duplicate} {
			if err := s.Claim(ctx, reqs, answers); err != nil || answers[0].Decision != want {
				t.Fatal(answers[0], err)
			}
		}
	}); allocs != 0 {
		t.Errorf("a fresh and a repeated claim allocate %v times", allocs)
	}
}

func TestNewReportsAllBadOptions(t *testing.T) {
	t.Parallel()
	_, err := memstore.New(&memstore.Options{MaxWindow: -1, Expect: -2, MaxKeys: -3, MaxResult: -4})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("got %v, want an error that wraps ErrInvalidRequest", err)
	}
	for _, field := range []string{"MaxWindow", "Expect", "MaxKeys", "MaxResult"} {
		if !strings.Contains(err.Error(), "memstore: Options."+field+": ") {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
}
