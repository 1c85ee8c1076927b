package redisstore

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/services/servicestest"
)

// TestTokensGrowThoughTheServersClockWasSetBack sets the token counter ahead of
// the time, as after such a step.
func TestTokensGrowThoughTheServersClockWasSetBack(t *testing.T) {
	t.Parallel()
	cluster, err := New(t.Context(), newClient(t, servicestest.StartRedisCluster(t, nil).Addrs()...), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, s := range map[string]*Store{"one server": newStore(t, nil), "cluster": cluster} {
		req := ask("key", 1)
		memo := s.digests()
		d := memo.Key(req.Key)
		group := 0
		if s.cluster {
			group = tagOf(&d)
		}
		last := semel.Token(time.Now().Add(time.Hour).UnixMicro())
		command(t, s, "SET", s.counterKey(group), strconv.FormatUint(uint64(last), 10))
		for nonce := range uint64(4) {
			req.Owner.Nonce = nonce
			reqs := []semel.ClaimRequest{req}
			if nonce%2 == 0 { // requests with different terms are decided on another path
				reqs = append(reqs, req)
				reqs[1].Lease *= 2
			}
			token := claim(t, s, reqs...)[0].Claim.Token
			if token <= last {
				t.Errorf("%s: token %d follows %d", name, token, last)
			}
			last = token
			errs := make([]error, 1)
			if err := s.Release(t.Context(), []semel.ReleaseRequest{{Key: req.Key, Token: token}}, errs); err != nil || errs[0] != nil {
				t.Fatalf("%s: release: %v, %v", name, err, errs[0])
			}
		}
	}
}

// TestRedisRecordsExpireWithTheirLeaseAndWindow asks the server when records expire.
func TestRedisRecordsExpireWithTheirLeaseAndWindow(t *testing.T) {
	t.Parallel()
	const forever = time.Duration(-1)
	s := newStore(t, nil)
	nonce := uint64(0)
	check := func(what string, key semel.Key, want time.Duration) {
		t.Helper()
		memo := s.digests()
		d := memo.Key(key)
		millis, err := command(t, s, "PTTL", s.recordKey(&d)).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		got := time.Duration(millis) * time.Millisecond
		if want == forever && millis != -1 || want != forever && (got > want || got < want-30*time.Second) {
			t.Errorf("%s is kept for %v, want %v", what, got, want)
		}
	}
	take := func(change func(*semel.ClaimRequest)) (semel.ClaimRequest, semel.Token) {
		t.Helper()
		nonce++
		req := ask("key "+strconv.FormatUint(nonce, 10), nonce)
		change(&req)
		return req, wantDecision(t, s, semel.Fresh, req).Claim.Token
	}
	extend := func(key semel.Key, token semel.Token) {
		t.Helper()
		answers := make([]semel.ExtendAnswer, 1)
		if err := s.Extend(t.Context(), []semel.ExtendRequest{{Key: key, Token: token, Lease: 5 * time.Hour}}, answers); err != nil || answers[0].Err != nil {
			t.Fatalf("extend: %v, %v", err, answers[0].Err)
		}
	}
	finish := func(key semel.Key, token semel.Token, window time.Duration) {
		t.Helper()
		if err := complete(t, s, key, token, window); err != nil {
			t.Fatalf("complete: %v", err)
		}
	}

	// A claim is kept for an hour after its lease. During that time the next
	// claim learns that the effect may have happened.
	req, token := take(func(*semel.ClaimRequest) {})
	check("a claim", req.Key, req.Lease+time.Hour)
	wantDecision(t, s, semel.Fresh, req)
	check("a claim that was repeated", req.Key, req.Lease+time.Hour)
	extend(req.Key, token)
	check("a claim that was extended", req.Key, 6*time.Hour)
	finish(req.Key, token, 3*time.Hour)
	check("what is done", req.Key, 3*time.Hour)

	// A held record must not expire, because the doubt about its effect would
	// be lost.
	req, token = take(func(r *semel.ClaimRequest) { r.Hold = true })
	check("a claim with hold", req.Key, forever)
	wantDecision(t, s, semel.Fresh, req)
	check("a claim with hold that was repeated", req.Key, forever)
	extend(req.Key, token)
	check("a claim with hold that was extended", req.Key, forever)
	finish(req.Key, token, semel.Forever)
	check("what is done forever", req.Key, forever)

	req, token = take(func(*semel.ClaimRequest) {})
	if err := s.Release(t.Context(), []semel.ReleaseRequest{{Key: req.Key, Token: token, Unknown: true}}, make([]error, 1)); err != nil {
		t.Fatal(err)
	}
	check("what is unknown", req.Key, forever)
	if err := s.Resolve(t.Context(), semel.ResolveRequest{Key: req.Key, As: semel.Done, Window: 2 * time.Hour}); err != nil {
		t.Fatal(err)
	}
	check("what was resolved", req.Key, 2*time.Hour)
	if err := complete(t, s, req.Key, 0, time.Hour); !errors.Is(err, semel.ErrStaleToken) {
		t.Errorf("a completion without token is answered %v", err)
	}

	for _, at := range []time.Time{{}, time.Now()} { // by SET and by script
		req, _ = take(func(r *semel.ClaimRequest) { r.Done, r.Window, r.Time = true, 4*time.Hour, at })
		check("what is done in one step", req.Key, 4*time.Hour)
		req, _ = take(func(r *semel.ClaimRequest) { r.Done, r.Window, r.Time = true, semel.Forever, at })
		check("what is done in one step forever", req.Key, forever)
	}
}

// TestBatchRequestsKeepTheirOwnLeasesWindowsAndOrder claims and completes keys in one call
// each: with many leases and windows and results of different lengths, or with the same.
// Some keys occur several times in the completion.
func TestBatchRequestsKeepTheirOwnLeasesWindowsAndOrder(t *testing.T) {
	t.Parallel()
	t.Run("many", func(t *testing.T) {
		completeInOneCall(t, func(i int) time.Duration { return time.Duration(1+i%3) * time.Hour }, func(i int) time.Duration {
			if i%4 == 0 {
				return semel.Forever
			}
			return time.Duration(10*(1+i%4)) * time.Hour
		}, time.Minute, strings.Repeat("second ", 20))
	})
	t.Run("the same", func(t *testing.T) {
		hours := func(int) time.Duration { return 10 * time.Hour }
		completeInOneCall(t, hours, hours, 10*time.Hour, strings.Repeat("again ", 20))
	})
	t.Run("forever", func(t *testing.T) {
		completeInOneCall(t, func(int) time.Duration { return time.Hour }, func(int) time.Duration { return semel.Forever }, semel.Forever, "again")
	})
}

// completeInOneCall repeats some completions with another window and another result.
func completeInOneCall(t *testing.T, lease, window func(i int) time.Duration, again time.Duration, second string) {
	s := newStore(t, nil)
	const n = 100
	reqs, answers := make([]semel.ClaimRequest, n), make([]semel.ClaimAnswer, n)
	for i := range reqs {
		reqs[i] = ask("key "+strconv.Itoa(i), uint64(i+1))
		reqs[i].Lease, reqs[i].Origin = lease(i), "origin "+strconv.Itoa(i)
	}
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	first := strings.Repeat("first ", 20)
	var list []semel.CompleteRequest
	for i, a := range answers {
		if left := time.Until(a.Claim.LeaseEnd); a.Decision != semel.Fresh || left > reqs[i].Lease+time.Minute || left < reqs[i].Lease-time.Minute {
			t.Fatalf("claim %d with a lease of %v: %s until %v from now", i, reqs[i].Lease, a.Decision, left)
		}
		req := semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Window: window(i), Result: semel.Result{Kind: semel.Value, Data: []byte(first)}}
		other := req
		other.Window, other.Result.Data = again, []byte(second)
		stale := other
		stale.Token++
		if i%5 == 0 { // a completion with a token of no claim, and a repetition
			list = append(list, stale, req, other)
		} else {
			list = append(list, req)
		}
	}
	errs := make([]error, len(list))
	if err := s.Complete(t.Context(), list, errs); err != nil {
		t.Fatal(err)
	}
	tokens := map[semel.Key]semel.Token{}
	for i := range reqs {
		tokens[reqs[i].Key] = answers[i].Claim.Token
	}
	for at, req := range list {
		if wrong := req.Token != tokens[req.Key]; errors.Is(errs[at], semel.ErrStaleToken) != wrong || !wrong && errs[at] != nil {
			t.Errorf("completion %d of %s with its own token %t: %v", at, req.Key, !wrong, errs[at])
		}
	}
	keys, records := make([]semel.Key, n), make([]semel.Record, n)
	for i := range reqs {
		keys[i] = reqs[i].Key
	}
	if err := s.Look(t.Context(), keys, records); err != nil {
		t.Fatal(err)
	}
	memo := s.digests()
	for i := range reqs {
		if records[i].Origin != reqs[i].Origin || records[i].Attempt != 1 {
			t.Errorf("%s was claimed once from %q, and its record says %+v", reqs[i].Key, reqs[i].Origin, records[i])
		}
		d := memo.Key(reqs[i].Key)
		millis, err := command(t, s, "PTTL", s.recordKey(&d)).AsInt64()
		if err != nil {
			t.Fatal(err)
		}
		want := window(i)
		got := time.Duration(millis) * time.Millisecond
		if want == semel.Forever && millis != -1 || want != semel.Forever && (got > want || got < want-time.Hour) {
			t.Errorf("%s is kept for %v, want %v", reqs[i].Key, got, want)
		}
		if a := wantDecision(t, s, semel.Duplicate, reqs[i]); string(a.Result.Data) != first {
			t.Errorf("%s has the result %q, want that of its first completion", reqs[i].Key, a.Result.Data)
		}
	}
}

// TestLateMessageIsRecognisedInABatch has messages of the same lease in one call.
func TestLateMessageIsRecognisedInABatch(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	now := time.Now()
	for name, times := range map[string][]time.Time{
		"first": {now.Add(-100 * time.Hour), {}, now}, "second": {now, now.Add(-100 * time.Hour), {}}, "last": {{}, now, now.Add(-100 * time.Hour)},
		"none": {now, {}, now},
	} {
		reqs := make([]semel.ClaimRequest, len(times))
		for i := range reqs {
			reqs[i] = ask(name+strconv.Itoa(i), uint64(i+1))
			reqs[i].Time = times[i]
		}
		for i, a := range claim(t, s, reqs...) {
			want := semel.Fresh
			if !times[i].IsZero() && times[i] != now {
				want = semel.Late
			}
			if a.Decision != want {
				t.Errorf("%s: message %d is %s, want %s", name, i, a.Decision, want)
			}
		}
	}
}

// TestKeysClaimedTogetherKeepTheirOwnAttempts takes a key over and claims a new one in
// one call, and completes both in one call.
func TestKeysClaimedTogetherKeepTheirOwnAttempts(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	first := ask("taken", 1)
	first.Lease = time.Millisecond
	wantDecision(t, s, semel.Fresh, first)
	first.Lease = time.Hour
	var second semel.ClaimRequest
	var answers []semel.ClaimAnswer
	for nonce := uint64(2); len(answers) == 0 || answers[1].Decision != semel.Fresh; nonce++ {
		first.Owner.Nonce = nonce
		second = ask("new "+strconv.FormatUint(nonce, 10), nonce)
		second.Lease = time.Hour
		answers = claim(t, s, second, first)
	}
	keys := []semel.Key{second.Key, first.Key}
	list, errs, records := make([]semel.CompleteRequest, 2), make([]error, 2), make([]semel.Record, 2)
	for i, key := range keys {
		list[i] = semel.CompleteRequest{Key: key, Token: answers[i].Claim.Token, Window: time.Hour}
	}
	if err := errors.Join(s.Complete(t.Context(), list, errs), errs[0], errs[1], s.Look(t.Context(), keys, records)); err != nil {
		t.Fatal(err)
	}
	for i, r := range records {
		if r.Attempt != 1+i || r.Token != list[i].Token || r.State != semel.Done {
			t.Errorf("%s has attempt %d, token %d and state %s, want attempt %d, token %d, done", keys[i], r.Attempt, r.Token, r.State, 1+i, list[i].Token)
		}
	}
}
