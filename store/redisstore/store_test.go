package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// ask returns a claim of a key with its own owner.
func ask(id string, nonce uint64) semel.ClaimRequest {
	return semel.ClaimRequest{
		Key: semel.Key{Scope: "test", ID: id}, Owner: semel.Owner{Name: "worker", Nonce: nonce},
		Lease: time.Minute, Window: time.Hour,
	}
}

// claim makes claims in one call and returns the answers.
func claim(t testing.TB, s *Store, reqs ...semel.ClaimRequest) []semel.ClaimAnswer {
	t.Helper()
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatalf("claim: %v", err)
	}
	return answers
}

// wantDecision makes one claim and expects a decision.
func wantDecision(t testing.TB, s *Store, want semel.Decision, req semel.ClaimRequest) semel.ClaimAnswer {
	t.Helper()
	a := claim(t, s, req)[0]
	if a.Err != nil || a.Decision != want {
		t.Fatalf("claim of %s (done: %t) is answered %s, %v, want %s", req.Key, req.Done, a.Decision, a.Err, want)
	}
	return a
}

func complete(t testing.TB, s *Store, key semel.Key, token semel.Token, window time.Duration) error {
	t.Helper()
	var answer [1]error
	if err := s.Complete(t.Context(), []semel.CompleteRequest{{Key: key, Token: token, Window: window}}, answer[:]); err != nil {
		t.Fatalf("complete: %v", err)
	}
	return answer[0]
}

// done returns the request as one that completes in the same step.
func done(req semel.ClaimRequest) semel.ClaimRequest {
	req.Done = true
	return req
}

// command sends one command to the store's server.
func command(t testing.TB, s *Store, words ...string) rueidis.RedisResult {
	t.Helper()
	r := s.client.Do(t.Context(), s.client.B().Arbitrary(words[0]).Args(words[1:]...).Build())
	if err := r.Error(); err != nil && !rueidis.IsRedisNil(err) {
		t.Fatalf("%s: %v", words[0], err)
	}
	return r
}

// await polls until a condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(2 * time.Minute) // needed only if something hangs
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("for two minutes it does not hold that %s", what)
		}
	}
}

func TestBadOptionsAreNamedAllAtOnce(t *testing.T) {
	t.Parallel()
	client := newClient(t, redisAddr(t))
	_, err := New(t.Context(), client, &Options{
		Prefix: "a{b}", Persistence: 9, MaxResult: -1,
		Compact: &Compact{Window: semel.Forever, Slices: 99, Expect: -1, Grace: time.Nanosecond},
	})
	if !errors.Is(err, semel.ErrInvalidRequest) {
		t.Fatalf("New is answered %v", err)
	}
	for _, field := range []string{"Prefix", "Persistence", "MaxResult", "Compact.Window", "Compact.Slices", "Compact.Expect", "Compact.Grace"} {
		if !strings.Contains(err.Error(), "redisstore: Options."+field+":") {
			t.Errorf("the error does not name %s: %v", field, err)
		}
	}
	if _, err := New(t.Context(), nil, nil); !errors.Is(err, semel.ErrInvalidRequest) {
		t.Errorf("New without a client is answered %v", err)
	}
}

func TestStoresOfOnePrefixAgreeOrAreRefused(t *testing.T) {
	t.Parallel()
	client := newClient(t, redisAddr(t))
	compact := func(window time.Duration, slices int) *Compact { return &Compact{Window: window, Slices: slices} }
	for _, c := range []struct {
		name          string
		first, second Options
		names         string // text that the refusal must contain; empty if there is no refusal
	}{
		{"both plain", Options{}, Options{KeepIDs: true, MaxResult: 5}, ""},
		{"both compact, of another size", Options{Compact: &Compact{Window: time.Hour, Expect: 1e9}}, Options{Compact: &Compact{Window: time.Hour}}, ""},
		{"one secret", Options{Secret: [16]byte{1}}, Options{Secret: [16]byte{1}}, ""},
		{"two secrets", Options{Secret: [16]byte{1}}, Options{Secret: [16]byte{2}}, "Options.Secret"},
		{"a secret for some", Options{}, Options{Secret: [16]byte{2}}, "Options.Secret"},
		{"no secret for some", Options{Secret: [16]byte{2}}, Options{}, "Options.Secret"},
		{"compact for some", Options{}, Options{Compact: compact(time.Hour, 4)}, "Options.Compact"},
		{"plain for some", Options{Compact: compact(time.Hour, 4)}, Options{}, "Options.Compact"},
		{"two windows", Options{Compact: compact(time.Hour, 4)}, Options{Compact: compact(2*time.Hour, 4)}, "Options.Compact"},
		{"two numbers of slices", Options{Compact: compact(time.Hour, 4)}, Options{Compact: compact(time.Hour, 5)}, "Options.Compact"},
	} {
		c.first.Prefix = servicestest.Prefix()
		c.second.Prefix = c.first.Prefix
		first, err := New(t.Context(), client, &c.first)
		if err != nil {
			t.Fatalf("%s: open the first: %v", c.name, err)
		}
		wantDecision(t, first, semel.Fresh, ask("x", 1))
		second, err := New(t.Context(), client, &c.second)
		if c.names != "" {
			if !errors.Is(err, semel.ErrInvalidRequest) || !strings.Contains(fmt.Sprint(err), c.names) {
				t.Errorf("%s: the second is answered %v, want a refusal that names %s", c.name, err, c.names)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: open the second: %v", c.name, err)
		}
		wantDecision(t, second, semel.InFlight, ask("x", 2))
	}
}

func TestGivenSecretIsNotKeptInRedis(t *testing.T) {
	t.Parallel()
	secret := [16]byte{'c', 'a', 'n', 'a', 'r', 'y', '-', 's', 'e', 'c', 'r', 'e', 't', '-', '0', '1'}
	s := newStore(t, &Options{Secret: secret})
	kept, err := command(t, s, "GET", s.opts.Prefix+"meta").ToString()
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(kept, fmt.Sprintf("%x", secret)) || strings.Contains(kept, string(secret[:])) {
		t.Errorf("the secret is in %q", kept)
	}
}

// TestRunningStoresMeetAgainWhenTheServerLostItsData starts one store before
// the loss and one after it. Both must find each other's keys.
func TestRunningStoresMeetAgainWhenTheServerLostItsData(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, nil)
	open := func(opts *Options) *Store {
		t.Helper()
		s, err := New(t.Context(), newClient(t, server.Addr()), opts)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	nonce := uint64(0)
	meet := func(a, b *Store) bool {
		nonce += 2
		id := fmt.Sprint("meet ", nonce)
		wantDecision(t, a, semel.Fresh, ask(id, nonce))
		return claim(t, b, ask(id, nonce+1))[0].Decision == semel.InFlight
	}
	before := open(nil)
	command(t, before, "FLUSHALL")
	after := open(nil)
	await(t, "the old store has taken over what the new one made", func() bool { return meet(after, before) && meet(before, after) })

	command(t, before, "FLUSHALL")
	await(t, "a running store has put the agreement down again", func() bool {
		meet(before, after)
		n, err := command(t, before, "EXISTS", "semel:meta").AsInt64()
		return err == nil && n == 1
	})
	if later := open(nil); !meet(before, later) || !meet(later, after) {
		t.Error("a store that was opened later does not know the others' keys")
	}

	command(t, before, "FLUSHALL")
	open(&Options{Compact: &Compact{Window: time.Hour}})
	await(t, "a store fails under terms that are not its own", func() bool {
		nonce++
		req := ask(fmt.Sprint("fails ", nonce), nonce)
		err := before.Claim(t.Context(), []semel.ClaimRequest{req}, make([]semel.ClaimAnswer, 1))
		return errors.Is(err, semel.ErrStoreFailed)
	})
}

// TestFullServerRefusesNewKeysAndAnswersExistingOnes fills a server that does not
// evict keys.
func TestFullServerRefusesNewKeysAndAnswersExistingOnes(t *testing.T) {
	t.Parallel()
	server := servicestest.StartRedis(t, &services.RedisOptions{Args: []string{"--maxmemory", "3mb", "--maxmemory-policy", "noeviction", "--appendonly", "no"}})
	for name, opts := range map[string]*Options{
		"plain":   nil,
		"compact": {Prefix: "compact:", Compact: &Compact{Window: time.Hour}},
	} {
		s, err := New(t.Context(), newClient(t, server.Addr()), opts)
		if err != nil {
			t.Fatal(err)
		}
		command(t, s, "CONFIG", "SET", "maxmemory", "0")
		known := ask("known", 1)
		a := wantDecision(t, s, semel.Fresh, known)
		held := ask("held", 2)
		wantDecision(t, s, semel.Fresh, held)
		if err := complete(t, s, known.Key, a.Claim.Token, time.Hour); err != nil {
			t.Fatal(err)
		}
		command(t, s, "CONFIG", "SET", "maxmemory", "1mb")
		for _, inOneStep := range []bool{false, true} {
			fresh, other := ask("new", 3), known
			fresh.Done, other.Done = inOneStep, inOneStep
			other.Owner.Nonce = 4
			answers := claim(t, s, fresh, other, fresh)
			if answers[1].Decision != semel.Duplicate {
				t.Errorf("%s (one step: %t): a key that is done is answered %s, %v", name, inOneStep, answers[1].Decision, answers[1].Err)
			}
			for _, i := range []int{0, 2} {
				if a := answers[i]; !errors.Is(a.Err, semel.ErrStoreFull) || a.Decision != semel.Undecided || semel.Classify(a.Err) != semel.ClassRetryable {
					t.Errorf("%s (one step: %t): a new key is answered %s, %v, want ErrStoreFull", name, inOneStep, a.Decision, a.Err)
				}
			}
		}
		// Commands that free memory are not refused.
		if err := s.Release(t.Context(), []semel.ReleaseRequest{{Key: held.Key, Token: claim(t, s, held)[0].Claim.Token}}, make([]error, 1)); err != nil {
			t.Errorf("%s: release on a full server: %v", name, err)
		}
		command(t, s, "CONFIG", "SET", "maxmemory", "0")
		wantDecision(t, s, semel.Fresh, ask("new", 5))
	}
}

func TestDamagedRecordRefusesItsKeyAlone(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	bad, good := ask("bad", 1), ask("good", 2)
	memo := s.digests()
	d := memo.Key(bad.Key)
	name := s.recordKey(&d)
	damages := [][]string{{"RPUSH", name, "x"}, {"HSET", name, "x", "y"}, {"SADD", name, "x"}, {"SADD", name, "1"}, {"ZADD", name, "1", "x"}}
	for _, value := range []string{"", "c", "x", "dshort", "o", "processing:42", "h" + strings.Repeat("\xff", 60), "c\x01\x00\x00\x00\x01" + strings.Repeat("\x00", 38)} {
		damages = append(damages, []string{"SET", name, value})
	}
	for n, damage := range damages {
		command(t, s, damage...)
		for _, inOneStep := range []bool{false, true} {
			first := ask(fmt.Sprint("first ", n, inOneStep), 3)
			bad.Done, good.Done, first.Done = inOneStep, inOneStep, inOneStep
			answers := claim(t, s, first, bad, good)
			if !errors.Is(answers[1].Err, semel.ErrCorrupt) && answers[1].Decision != semel.Mismatch {
				t.Errorf("%q: the damaged key is answered %s, %v", damage, answers[1].Decision, answers[1].Err)
			}
			if answers[0].Decision != semel.Fresh || answers[2].Decision == semel.Undecided {
				t.Errorf("%q: the other keys are answered %s, %v and %s, %v", damage, answers[0].Decision, answers[0].Err, answers[2].Decision, answers[2].Err)
			}
		}
		if err := complete(t, s, bad.Key, 1, time.Hour); err == nil {
			t.Errorf("%q: a completion of the damaged key succeeds", damage)
		}
		var extended [1]semel.ExtendAnswer
		if err := s.Extend(t.Context(), []semel.ExtendRequest{{Key: bad.Key, Token: 1, Lease: time.Hour}}, extended[:]); err != nil || extended[0].Err == nil {
			t.Errorf("%q: the damaged key is extended: %v, %v", damage, extended[0], err)
		}
		var released [1]error
		if err := s.Release(t.Context(), []semel.ReleaseRequest{{Key: bad.Key, Token: 1}}, released[:]); err != nil || released[0] == nil {
			t.Errorf("%q: the damaged key is released: %v, %v", damage, released[0], err)
		}
		if was, err := s.Remove(t.Context(), bad.Key); err != nil || !was {
			t.Errorf("%q: remove: %t, %v", damage, was, err)
		}
	}
	wantDecision(t, s, semel.Fresh, ask("bad", 9))
}

func TestLongResultsComeInParts(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	const keys = 24 // each of 1 MiB, so that they need several answers
	reqs := make([]semel.ClaimRequest, keys)
	for i := range reqs {
		reqs[i] = ask(fmt.Sprint("long ", i), uint64(i))
	}
	completions := make([]semel.CompleteRequest, keys)
	for i, a := range claim(t, s, reqs...) {
		data := []byte(strings.Repeat(string(rune('a'+i)), defaultMaxResult))
		completions[i] = semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Window: time.Hour, Result: semel.Result{Kind: semel.Value, Data: data}}
	}
	errs := make([]error, keys)
	if err := s.Complete(t.Context(), completions, errs); err != nil {
		t.Fatal(err)
	}
	for i, a := range claim(t, s, reqs...) {
		if errs[i] != nil || a.Decision != semel.Duplicate || string(a.Result.Data) != string(completions[i].Result.Data) {
			t.Errorf("key %d: completed %v, answered %s with %d bytes", i, errs[i], a.Decision, len(a.Result.Data))
		}
	}
}

// TestRepeatedClaimInOneStepIsFresh tests a case that could lose a message:
// the first answer is lost, and the second answer is duplicate.
func TestRepeatedClaimInOneStepIsFresh(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*Options{
		"plain": nil, "compact": {Compact: &Compact{Window: time.Hour}}, "ids": {KeepIDs: true},
	} {
		s := newStore(t, opts)
		for i, change := range []func(*semel.ClaimRequest){
			func(*semel.ClaimRequest) {},
			func(r *semel.ClaimRequest) { r.Fingerprint = semel.Fingerprint{1} },
			func(r *semel.ClaimRequest) { r.Window = semel.Forever },
			func(r *semel.ClaimRequest) { r.Time = time.Now() },
		} {
			req := done(ask(fmt.Sprint("key ", i), 1))
			change(&req)
			other := req
			other.Owner.Nonce = 2
			for range 2 {
				wantDecision(t, s, semel.Fresh, req)
				if a := wantDecision(t, s, semel.Duplicate, other); len(a.Result.Data) > 0 {
					t.Errorf("%s, change %d: a result %q", name, i, a.Result.Data)
				}
			}
			other.Owner = semel.Owner{Name: "another", Nonce: 1}
			wantDecision(t, s, semel.Duplicate, other)
		}
	}
}

// TestAClaimWithoutOwnerIsNeverARepetition has two callers without an owner.
func TestAClaimWithoutOwnerIsNeverARepetition(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]*Options{"plain": nil, "compact": {Compact: &Compact{Window: time.Hour}}} {
		s := newStore(t, opts)
		held, inOneStep := ask("held "+name, 0), done(ask("done "+name, 0))
		held.Owner, inOneStep.Owner = semel.Owner{}, semel.Owner{}
		for i, want := range [][2]semel.Decision{{semel.Fresh, semel.Fresh}, {semel.InFlight, semel.Duplicate}} {
			if answers := claim(t, s, held, inOneStep); answers[0].Decision != want[0] || answers[1].Decision != want[1] {
				t.Errorf("%s, call %d: %s and %s, want %s and %s", name, i, answers[0].Decision, answers[1].Decision, want[0], want[1])
			}
			wantDecision(t, s, semel.Duplicate, inOneStep)
		}
	}
}
