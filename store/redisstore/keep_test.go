package redisstore

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/internal/services/servicestest"
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
		for nonce := range uint64(3) {
			req.Owner.Nonce = nonce
			token := wantDecision(t, s, semel.Fresh, req).Claim.Token
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

// TestRecordsAreKeptAsLongAsTheyCount asks the server when records expire.
func TestRecordsAreKeptAsLongAsTheyCount(t *testing.T) {
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
	if err := s.Resolve(t.Context(), req.Key, semel.Done, semel.Result{}, 2*time.Hour); err != nil {
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

// TestRequestsOfOneCallHaveTheirOwnTermsAndOrder claims and completes keys with many
// leases and windows in one call each. Some keys occur twice in the completion.
func TestRequestsOfOneCallHaveTheirOwnTermsAndOrder(t *testing.T) {
	t.Parallel()
	s := newStore(t, nil)
	const n = 100
	reqs, answers := make([]semel.ClaimRequest, n), make([]semel.ClaimAnswer, n)
	for i := range reqs {
		reqs[i] = ask("key "+strconv.Itoa(i), uint64(i+1))
		reqs[i].Lease = time.Duration(1+i%3) * time.Hour
	}
	if err := s.Claim(t.Context(), reqs, answers); err != nil {
		t.Fatal(err)
	}
	window := func(i int) time.Duration {
		if i%4 == 0 {
			return semel.Forever
		}
		return time.Duration(10*(1+i%4)) * time.Hour
	}
	first, second := strings.Repeat("first ", 20), strings.Repeat("second ", 20)
	var list []semel.CompleteRequest
	for i, a := range answers {
		if left := time.Until(a.Claim.LeaseEnd); a.Decision != semel.Fresh || left > reqs[i].Lease+time.Minute || left < reqs[i].Lease-time.Minute {
			t.Fatalf("claim %d with a lease of %v: %s until %v from now", i, reqs[i].Lease, a.Decision, left)
		}
		req := semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Window: window(i), Result: semel.Result{Kind: semel.Value, Data: []byte(first)}}
		other := req
		other.Window, other.Result.Data = time.Minute, []byte(second)
		stale := other
		stale.Token++
		if i%5 == 0 { // a completion with the token of another key, and a repetition
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
	memo := s.digests()
	for i := range reqs {
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
