package redisstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestCompactFormTakesATenthOfTheMemory compares the compact form with the
// usual form: SET with NX and EX of an id like a UUID.
func TestCompactFormTakesATenthOfTheMemory(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	const keys = 1 << 17
	// All expected keys of the window come together.
	s, err := New(t.Context(), newClient(t, server.Addr()), &Options{Compact: &Compact{Window: 24 * time.Hour, Expect: keys, Grace: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	// memory returns the memory of names, values and the tables of names and
	// expiries.
	memory := func() (n int64) {
		t.Helper()
		stats, err := command(t, s, "MEMORY", "STATS").AsMap()
		if err != nil {
			t.Fatal(err)
		}
		dataset, tables := stats["dataset.bytes"], stats["db.0"]
		if n, err = dataset.ToInt64(); err != nil {
			t.Fatal(err)
		}
		sizes, err := tables.AsIntMap()
		if err != nil {
			return n // the name does not exist yet
		}
		for _, size := range sizes {
			n += size
		}
		return n
	}
	names := func() int64 {
		t.Helper()
		n, err := command(t, s, "DBSIZE").AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		return n
	}

	const usual = 1 << 14
	before := memory()
	for i := range usual {
		command(t, s, "SET", fmt.Sprintf("%036d", i), "1", "NX", "EX", "86400")
	}
	plain := float64(memory()-before) / usual
	command(t, s, "FLUSHALL")
	before = memory()

	reqs, answers := make([]semel.ClaimRequest, 1024), make([]semel.ClaimAnswer, 1024)
	for n := 0; n < keys; n += len(reqs) {
		for i := range reqs {
			reqs[i] = done(ask(fmt.Sprint(n+i), uint64(n+i)))
			reqs[i].Window = 24 * time.Hour
		}
		if err := s.Claim(t.Context(), reqs, answers); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the records have gone", func() bool { return names() < keys/50 })
	// The server frees the memory of the tables when it has time.
	var compact float64
	defer func() { t.Logf("%.1f bytes for each key, and %.1f in the usual form", compact, plain) }()
	// The limit is a tenth, and a little more for servers with a smaller usual
	// form, such as Redis 8.2.
	await(t, "a key takes about a tenth of the memory", func() bool {
		compact = float64(memory()-before) / keys
		return compact <= plain/9
	})
	counts, err := s.Count(t.Context())
	if err != nil || counts.Done != keys {
		t.Errorf("count says %+v (%v), want %d done", counts, err, keys)
	}
	for i := range answers {
		answers[i] = semel.ClaimAnswer{}
		reqs[i].Owner.Nonce += keys
	}
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	for i, a := range answers {
		if a.Decision != semel.Duplicate {
			t.Fatalf("%s is %s", reqs[i].Key, a.Decision)
		}
	}
}

// TestCompactFormRemembersForTheWindowAndATick lets many short windows pass, so
// that slices begin and end and set names are reused.
func TestCompactFormRemembersForTheWindowAndATick(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	const window = 300 * time.Millisecond
	for _, slices := range []int{1, 2, 3} {
		s := newStore(t, &Options{Compact: &Compact{Window: window, Slices: slices, Grace: time.Millisecond}})
		tick := s.Traits().Tick
		type entry struct {
			key           semel.Key
			after, before time.Time // time before and after the completion
		}
		var live []entry
		nonce := uint64(0)
		forgotten := 0
		timer := time.NewTicker(time.Millisecond)
		for ended := time.Now().Add(8 * window); time.Now().Before(ended) || forgotten == 0; <-timer.C {
			nonce++
			req := ask(fmt.Sprint("key ", nonce), nonce)
			req.Window = window
			e := entry{key: req.Key, after: time.Now()}
			if random.IntN(2) == 0 {
				wantDecision(t, s, semel.Fresh, done(req))
			} else if err := complete(t, s, req.Key, wantDecision(t, s, semel.Fresh, req).Claim.Token, window); err != nil {
				t.Fatal(err)
			}
			e.before = time.Now()
			live = append(live, e)

			i := random.IntN(len(live))
			e = live[i]
			records := make([]semel.Record, 1)
			asked := time.Now()
			if err := s.Look(t.Context(), []semel.Key{e.key}, records); err != nil {
				t.Fatal(err)
			}
			answered := time.Now()
			state := records[0].State
			switch {
			case state != semel.Done && answered.Sub(e.after) < window:
				t.Fatalf("seed %d, %d slices: a key is %s at most %v after it was done", seed, slices, state, answered.Sub(e.after))
			case state == semel.Done && asked.Sub(e.before) > window+tick+5*time.Millisecond:
				t.Fatalf("seed %d, %d slices: a key is %s at least %v after it was done", seed, slices, state, asked.Sub(e.before))
			case state == semel.Absent:
				forgotten++
				live = append(live[:i], live[i+1:]...)
			}
		}
		timer.Stop()
	}
}

func TestCompactFormIsOnlyForKeysOfItsWindowWithoutResultAndFingerprint(t *testing.T) {
	t.Parallel()
	const window = time.Hour
	s := newStore(t, &Options{Compact: &Compact{Window: window}, KeepIDs: true})
	plain := done(ask("fingerprint", 1))
	plain.Fingerprint = semel.Fingerprint{1}
	longer := done(ask("longer", 2))
	longer.Window = 2 * window
	compact := done(ask("compact", 3))
	for _, req := range []semel.ClaimRequest{plain, longer, compact} {
		wantDecision(t, s, semel.Fresh, req)
	}
	claimed := ask("claimed with fingerprint", 4)
	claimed.Fingerprint = semel.Fingerprint{1}
	if err := complete(t, s, claimed.Key, wantDecision(t, s, semel.Fresh, claimed).Claim.Token, window); err != nil {
		t.Fatal(err)
	}
	sets := func() (n int) {
		t.Helper()
		for _, req := range []semel.ClaimRequest{plain, longer, compact, claimed} {
			memo := s.digests()
			d := memo.Key(req.Key)
			for _, set := range s.appendSetKeys(nil, &d) {
				m, err := command(t, s, "EXISTS", set).AsInt64()
				if err != nil {
					t.Fatal(err)
				}
				n += int(m)
			}
		}
		return n
	}
	if n := sets(); n != 1 {
		t.Errorf("%d sets for one key in the compact form", n)
	}
	other := plain
	other.Fingerprint = semel.Fingerprint{2}
	wantDecision(t, s, semel.Mismatch, other)

	// The record expires and the key stays.
	memo := s.digests()
	d := memo.Key(compact.Key)
	command(t, s, "DEL", s.recordKey(&d))
	wantDecision(t, s, semel.Duplicate, compact)
	var stale *semel.StaleTokenError
	if err := complete(t, s, compact.Key, 1, window); !errors.As(err, &stale) || stale.State != semel.Done {
		t.Errorf("a completion is answered %v, want a stale token of a key that is done", err)
	}
	records := make([]semel.Record, 1)
	if err := s.Look(t.Context(), []semel.Key{compact.Key}, records); err != nil || records[0].State != semel.Done || records[0].Expires.Before(time.Now().Add(window-time.Minute)) {
		t.Errorf("look shows %+v (%v)", records[0], err)
	}
	shown := 0
	for r, err := range s.List(t.Context(), semel.ListOptions{State: semel.Done}) {
		if err != nil {
			t.Fatal(err)
		}
		if r.State != semel.Done || r.Key == (semel.Key{}) && r.Expires.IsZero() {
			t.Errorf("list yields %+v", r)
		}
		shown++
	}
	if shown != 4 {
		t.Errorf("list yields %d keys, want 4", shown)
	}
	if was, err := s.Remove(t.Context(), compact.Key); err != nil || !was {
		t.Errorf("remove: %t, %v", was, err)
	}
	wantDecision(t, s, semel.Fresh, compact)
}

func TestCompletionIsRecognisedDuringGrace(t *testing.T) {
	t.Parallel()
	const grace = 100 * time.Millisecond
	s := newStore(t, &Options{Compact: &Compact{Window: time.Hour, Grace: grace}})
	req := ask("key", 1)
	token := wantDecision(t, s, semel.Fresh, req).Claim.Token
	began := time.Now()
	for n := range 2 {
		if err := complete(t, s, req.Key, token, time.Hour); err != nil && (n == 0 || time.Since(began) < grace) {
			t.Fatalf("complete: %v", err)
		}
	}
	await(t, "the completion is no longer recognised", func() bool {
		var stale *semel.StaleTokenError
		return errors.As(complete(t, s, req.Key, token, time.Hour), &stale) && stale.State == semel.Done
	})
	wantDecision(t, s, semel.Duplicate, req)
}

func TestLookTellsWhenAKeyInTheCompactFormIsForgotten(t *testing.T) {
	t.Parallel()
	const window = 24 * time.Hour
	s := newStore(t, &Options{Compact: &Compact{Window: window, Grace: time.Minute}})
	inOne, inTwo := done(ask("in one step", 1)), ask("in two steps", 2)
	inOne.Window, inTwo.Window = window, window
	claim(t, s, inOne)
	if err := complete(t, s, inTwo.Key, wantDecision(t, s, semel.Fresh, inTwo).Claim.Token, window); err != nil {
		t.Fatal(err)
	}
	records := make([]semel.Record, 2)
	if err := s.Look(t.Context(), []semel.Key{inOne.Key, inTwo.Key}, records); err != nil {
		t.Fatal(err)
	}
	for _, r := range records { // together with their records outside the set
		if left := time.Until(r.Expires); left < window-time.Minute || left > window+s.Traits().Tick+time.Minute {
			t.Errorf("%s is forgotten in %v, want the window of %v and up to a tick", r.Key, left, window)
		}
		if age := time.Since(r.FirstSeen); !r.FirstSeen.IsZero() && (age < -time.Minute || age > time.Minute) {
			t.Errorf("%s was first seen %v ago", r.Key, age)
		}
	}
}

func TestCompactSetsStayPackedAtALowServerLimit(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	client := newClient(t, server.Addr())
	set := func(limit string) {
		t.Helper()
		if err := client.Do(t.Context(), client.B().ConfigSet().ParameterValue().ParameterValue("set-max-intset-entries", limit).Build()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	const keys = 1 << 15
	set("8")
	opts := &Options{Compact: &Compact{Window: time.Hour, Slices: 1, Expect: keys, Grace: time.Millisecond}}
	if _, err := New(t.Context(), client, opts); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("a server that packs no sets is accepted: %v", err)
	}
	set("32")
	s, err := New(t.Context(), client, opts)
	if err != nil {
		t.Fatal(err)
	}
	reqs := make([]semel.ClaimRequest, keys)
	for i := range reqs {
		reqs[i] = done(ask(fmt.Sprint(i), uint64(i)))
	}
	claim(t, s, reqs...)
	total, packed := 0, 0
	for i := 0; i < keys; i += 512 {
		memo := s.digests()
		d := memo.Key(reqs[i].Key)
		for _, name := range s.appendSetKeys(nil, &d) {
			if encoding, err := command(t, s, "OBJECT", "ENCODING", name).ToString(); err == nil {
				total++
				if encoding == "intset" {
					packed++
				}
			}
		}
	}
	if total == 0 || packed < total*95/100 {
		t.Errorf("%d of %d sets are packed", packed, total)
	}
}
