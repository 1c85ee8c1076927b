package storetest

import (
	"errors"
	"maps"
	"strconv"
	"strings"

	"github.com/semel-dev/semel"
)

var abilityCases = []testCase{
	{"look shows each state and changes no record", lookShows},
	{"list yields the records of a state or scope", listYields},
	{"count counts by state", countCounts},
	{"a scope keeps the first rule", scopeKeepsRule},
	{"a digest finds and settles its record", digestSettles},
}

// look looks up one key. It returns false if the store is not an Inspector.
func (e *env) look(key semel.Key) (semel.Record, bool) {
	e.Helper()
	l, ok := e.inner.(semel.Inspector)
	if !ok {
		return semel.Record{}, false
	}
	records := make([]semel.Record, 1)
	if err := l.Look(e.Context(), []semel.Key{key}, records); err != nil {
		e.Fatalf("look %s up: %v", key, err)
	}
	return records[0], true
}

func lookShows(e *env) {
	key := e.key()
	if r, ok := e.look(key); !ok || r.State != semel.Absent {
		if ok {
			e.Errorf("look shows %s for an absent key", r.State)
		}
		return
	}
	start := e.now()
	req := e.with(key, print('1'))
	req.Owner = e.owner("looked up")
	c := e.fresh(req)
	r, _ := e.look(key)
	if r.State != semel.Claimed || r.Token != c.Token || r.Attempt != 1 || r.Holder != "looked up" || !r.LeaseEnd.Equal(c.LeaseEnd) ||
		!r.Expires.IsZero() || !r.Fingerprint.Matches(print('1')) || r.Fingerprint.IsZero() {
		e.Errorf("look shows a claimed key as %+v, want claim %+v", r, c)
	}
	e.heldBy(key, c)("look")
	e.mustComplete(key, c.Token, text("seven b"))
	r, _ = e.look(key)
	if r.State != semel.Done || !r.LeaseEnd.IsZero() || r.Expires.IsZero() || r.Fingerprint.IsZero() {
		e.Errorf("look shows a done key as %+v", r)
	}
	if e.traits.Results && (r.ResultSize != 7 || !equalResults(r.Result, text("seven b"))) {
		e.Errorf("look shows the result %s of %d bytes", describe(r.Result), r.ResultSize)
	}
	if e.movable() {
		if want := start.Add(e.window); r.Expires.Before(want) || r.Expires.After(want.Add(e.traits.Tick+slack)) {
			e.Errorf("look shows that the key expires at %v, want %v", r.Expires, want)
		}
		if r.FirstSeen.Before(start.Add(-slack-e.traits.Tick)) || r.FirstSeen.After(e.now().Add(e.traits.Tick)) {
			e.Errorf("look shows that the key was first seen at %v, want %v", r.FirstSeen, start)
		}
	}
	forever := e.key()
	if err := e.complete(forever, e.fresh(e.request(forever)).Token, text("r"), semel.Forever); err != nil {
		e.Fatalf("complete: %v", err)
	}
	if r, _ := e.look(forever); r.State != semel.Done || !r.Expires.IsZero() {
		e.Errorf("look shows a key kept forever as %s until %v", r.State, r.Expires)
	}
	e.lookAtLostLeases()

	// Many keys in one call; each record must be at its key's index.
	absent := e.key()
	records := make([]semel.Record, 4)
	if err := e.inner.(semel.Inspector).Look(e.Context(), []semel.Key{forever, absent, key, forever}, records); err != nil {
		e.Fatalf("look: %v", err)
	}
	for i, want := range []semel.State{semel.Done, semel.Absent, semel.Done, semel.Done} {
		if records[i].State != want {
			e.Errorf("record %d of a look is %s, want %s", i, records[i].State, want)
		}
	}
	if records[0].Digest != records[3].Digest || records[0].Digest == records[2].Digest && records[0].Digest != (semel.Digest{}) {
		e.Errorf("look shows digests %v", records)
	}
	e.wantInvalid("look with too few records", e.inner.(semel.Inspector).Look(e.Context(), []semel.Key{key, absent}, records[:1]))
	e.fresh(e.request(absent))
	if e.movable() {
		e.advance(e.window + e.traits.Tick)
		if r, _ := e.look(key); r.State != semel.Absent {
			e.Errorf("look shows %s after the window", r.State)
		}
	}
}

// lookAtLostLeases looks up keys whose holders were lost.
func (e *env) lookAtLostLeases() {
	e.Helper()
	held, retried, probe := e.key(), e.key(), e.key()
	c1, c2 := e.fresh(e.held(held)), e.fresh(e.shortly(retried))
	e.fresh(e.shortly(probe))
	e.claimAfter(e.short, e.request(probe), semel.InFlight)
	if r, _ := e.look(held); r.State != semel.Unknown || r.Token != c1.Token {
		e.Errorf("look shows a held key after its lease as %s under %d, want unknown under %d", r.State, r.Token, c1.Token)
	}
	if r, _ := e.look(retried); r.State != semel.Claimed || r.Token != c2.Token {
		e.Errorf("look shows a key after its lease as %s under %d, want claimed under %d", r.State, r.Token, c2.Token)
	}
	if a := e.fresh(e.request(retried)); a.Attempt != 2 {
		e.Errorf("after a look the take-over has attempt %d, want 2", a.Attempt)
	}
}

func listYields(e *env) {
	l, ok := e.inner.(semel.Inspector)
	if !ok {
		return
	}
	scope := "another scope"
	claimed, done, unknown, other := e.key(), e.key(), e.key(), semel.Key{Scope: scope, ID: "x"}
	e.fresh(e.request(claimed))
	e.done(done, text("seven b"))
	e.unknown(unknown)
	e.done(other, text("r"))
	e.mustRelease(e.releasable())
	all := map[semel.Key]semel.State{claimed: semel.Claimed, done: semel.Done, unknown: semel.Unknown, other: semel.Done}
	if e.harness.Transact != nil {
		all[e.transacted()] = semel.Done
	}
	in := func(state semel.State) map[semel.Key]semel.State {
		some := maps.Clone(all)
		maps.DeleteFunc(some, func(_ semel.Key, s semel.State) bool { return s != state })
		return some
	}

	list := func(f semel.ListOptions) (keys map[semel.Key]semel.State, n int) {
		e.Helper()
		keys = make(map[semel.Key]semel.State)
		for r, err := range l.List(e.Context(), f) {
			if err != nil {
				e.Fatalf("list: %v", err)
			}
			if len(r.Result.Data) > 0 {
				e.Errorf("list shows the result %s: it must leave it out", describe(r.Result))
			}
			keys[r.Key] = r.State
			n++
		}
		return keys, n
	}
	for _, c := range []struct {
		filter semel.ListOptions
		want   map[semel.Key]semel.State
	}{
		{semel.ListOptions{}, all},
		{semel.ListOptions{State: semel.Claimed}, in(semel.Claimed)},
		{semel.ListOptions{State: semel.Done}, in(semel.Done)},
		{semel.ListOptions{State: semel.Unknown}, in(semel.Unknown)},
	} {
		got, n := list(c.filter)
		if n != len(c.want) {
			e.Errorf("list by state %s yields %d records, want %d", c.filter.State, n, len(c.want))
		}
		if _, unreadable := got[semel.Key{}]; unreadable {
			// The store keeps no readable keys, however they became done.
			if len(got) > 1 {
				e.Errorf("list by state %s shows only some keys readable: %v", c.filter.State, got)
			}
			continue
		}
		for key, state := range c.want {
			if got[key] != state {
				e.Errorf("list by state %s shows %s as %s, want %s", c.filter.State, key, got[key], state)
			}
		}
	}
	if listed, _ := list(semel.ListOptions{}); listed[other] == semel.Done {
		if got, n := list(semel.ListOptions{Scope: &scope}); n != 1 || got[other] != semel.Done {
			e.Errorf("list by scope yields %v, want %s alone", got, other)
		}
	}
	for range l.List(e.Context(), semel.ListOptions{}) {
		break // a caller may stop
	}
}

func digestSettles(e *env) {
	by, ok := e.inner.(semel.DigestResolver)
	if !ok {
		return
	}
	unknown := func() (semel.Key, semel.Claim, semel.Digest) {
		key := e.key()
		c := e.unknown(key)
		r, _ := e.look(key)
		found, err := by.LookDigest(e.Context(), r.Digest)
		if errors.Is(err, errors.ErrUnsupported) {
			return key, c, r.Digest
		}
		if err != nil || found.State != semel.Unknown || found.Digest != r.Digest || found.Token != r.Token || found.Key.ID != "" && found.Key != key {
			e.Fatalf("the digest of %s finds %+v, %v; want %+v", key, found, err, r)
		}
		return key, c, r.Digest
	}
	key, c, d := unknown()
	e.store.resolving(key, text("by digest"))
	err := by.ResolveDigest(e.Context(), d, semel.ResolveRequest{As: semel.Done, Result: text("by digest"), Window: e.window})
	if errors.Is(err, errors.ErrUnsupported) {
		e.want(semel.OutcomeUnknown, e.request(key))
		if _, err := by.RemoveDigest(e.Context(), d); !errors.Is(err, errors.ErrUnsupported) {
			e.Errorf("a store that resolves no digest answers a removal with %v", err)
		}
		return
	}
	if err != nil {
		e.Fatalf("resolve a digest as done: %v", err)
	}
	e.wantResult(key, text("by digest"))
	e.wantStale("complete", key, c.Token, e.complete(key, c.Token, text("too late"), e.window))
	if err := by.ResolveDigest(e.Context(), d, semel.ResolveRequest{As: semel.Absent}); !errors.Is(err, semel.ErrNotUnknown) {
		e.Errorf("resolve the digest of a done key: %v", err)
	}
	if was, err := by.RemoveDigest(e.Context(), d); err != nil || !was {
		e.Errorf("remove a digest: %t, %v", was, err)
	}
	if r, err := by.LookDigest(e.Context(), d); err != nil || r.State != semel.Absent {
		e.Errorf("a removed digest finds %+v, %v", r, err)
	}
	if was, err := by.RemoveDigest(e.Context(), d); err != nil || was {
		e.Errorf("remove a digest twice: %t, %v", was, err)
	}
	e.fresh(e.request(key))

	key, _, d = unknown()
	if err := by.ResolveDigest(e.Context(), d, semel.ResolveRequest{As: semel.Absent}); err != nil {
		e.Fatalf("resolve a digest as absent: %v", err)
	}
	e.fresh(e.request(key))
	if err := by.ResolveDigest(e.Context(), d, semel.ResolveRequest{As: semel.Claimed}); err == nil {
		e.Errorf("a digest is resolved as claimed")
	}
}

// transacted completes a key in a transaction.
func (e *env) transacted() semel.Key {
	e.Helper()
	req := e.request(e.key())
	req.Done = true
	answers := make([]semel.ClaimAnswer, 1)
	err := e.harness.Transact(e.Context(), e.inner, []semel.ClaimRequest{req}, answers, true)
	if err != nil || answers[0].Decision != semel.Fresh {
		e.Fatalf("a new key in a transaction is answered %s, %v", answers[0].Decision, err)
	}
	return req.Key
}

// releasable returns a claimed key and its token.
func (e *env) releasable() (semel.Key, semel.Token) {
	e.Helper()
	key := e.key()
	return key, e.fresh(e.request(key)).Token
}

func countCounts(e *env) {
	counter, ok := e.inner.(semel.Inspector)
	if !ok {
		return
	}
	count := func() semel.Counts {
		e.Helper()
		c, err := counter.Count(e.Context())
		if err != nil {
			e.Fatalf("count: %v", err)
		}
		return c
	}
	if c := count(); c.Claimed != 0 || c.Done != 0 || c.Unknown != 0 || c.Oldest != 0 {
		e.Errorf("an empty store counts %+v", c)
	}
	for range 3 {
		e.fresh(e.request(e.key()))
	}
	for range 5 {
		e.done(e.key(), text("r"))
	}
	for range 2 {
		e.unknown(e.key())
	}
	e.mustRelease(e.releasable())
	if e.movable() {
		e.advance(e.short)
	}
	c := count()
	if c.Claimed != 3 || c.Done != 5 || c.Unknown != 2 {
		e.Errorf("count says %d claimed, %d done, %d unknown, want 3, 5, 2", c.Claimed, c.Done, c.Unknown)
	}
	if e.movable() && (c.Oldest < e.short-slack-e.traits.Tick || c.Oldest > e.short+slack+e.traits.Tick) {
		e.Errorf("count says that the oldest record is %v old, want %v", c.Oldest, e.short)
	}
	if e.traits.Durable && c.DiskBytes == 0 || !e.traits.Durable && c.MemoryBytes == 0 {
		e.Errorf("count says the records take %d bytes of memory and %d of disk", c.MemoryBytes, c.DiskBytes)
	}
}

func scopeKeepsRule(e *env) {
	b, ok := semel.As[semel.ScopeBinder](e.inner)
	if !ok {
		return
	}
	bind := func(scope, rule string) string {
		bound, err := b.BindScope(e.Context(), scope, rule)
		if err != nil {
			e.Errorf("bind %q to %s: %v", scope, rule, err)
		}
		return bound
	}
	want := func(scope, rule, bound string) {
		e.Helper()
		if got := bind(scope, rule); got != bound {
			e.Errorf("scope %q is bound to %s, want %s", scope, got, bound)
		}
	}
	// Scopes are bytes, like ids. Each has its own rule.
	scopes := []string{"", "a", "a\x00", "A", "é", "\xff", " ", strings.Repeat("s", 1024)}
	for i, scope := range scopes {
		rule := ".id" + strconv.Itoa(i)
		for _, step := range [][2]string{{"", ""}, {rule, rule}, {"", rule}, {".other", rule}} {
			want(scope, step[0], step[1])
		}
	}
	// A bound scope still has its former keys, and no new one.
	key := semel.Key{Scope: "used", ID: "x"}
	e.mustComplete(key, e.fresh(e.request(key)).Token, semel.Result{})
	want("used", ".first", ".first")
	if a := e.claim(e.request(key)); a.Decision != semel.Duplicate {
		e.Errorf("after its scope was bound a done key is %s", a.Decision)
	}
	// Concurrent calls agree.
	bound := make([]string, 8)
	inParallel(len(bound), func(i int) { bound[i] = bind("contested", strconv.Itoa(i)) })
	for _, rule := range bound {
		if rule != bound[0] {
			e.Errorf("concurrent calls bound a scope to different rules: %q", bound)
			break
		}
	}
	if !e.traits.Durable {
		return
	}
	e.reopen()
	b, _ = semel.As[semel.ScopeBinder](e.inner)
	want("contested", ".late", bound[0])
	want("used", ".late", ".first")
}
