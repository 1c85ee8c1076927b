package storetest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/semel-dev/semel"
)

var keyCases = []testCase{
	{"keys hold any bytes", keysOfAnyBytes},
	{"scope and id are separate parts of a key", keysDoNotConcatenate},
	{"only keys out of bounds are refused", keysOutOfBounds},
	{"another payload under a known key is a mismatch in every state", mismatchInEachState},
	{"a missing fingerprint matches every payload", noFingerprint},
	{"a store may keep half a fingerprint", halfFingerprint},
}

// print returns a fingerprint that starts with b.
func print(b byte) semel.Fingerprint {
	var f semel.Fingerprint
	for i := range f {
		f[i] = b
	}
	return f
}

func keysOfAnyBytes(e *env) {
	large := strings.Repeat("x", semel.MaxKeyBytes-1)
	keys := []semel.Key{
		{ID: "no scope"},
		{Scope: "s", ID: "\x00"},
		{Scope: "s", ID: "\x00\x00"},
		{Scope: "\x00", ID: "s"},
		{Scope: "s", ID: "a\x00"},
		{Scope: "s", ID: "a\x00b"},
		{Scope: "s", ID: "a"},
		{Scope: "s", ID: " a"},
		{Scope: "s", ID: "a "},
		{Scope: "s", ID: "A"},
		{Scope: "s", ID: "\xff\xfe\xfd"},
		{Scope: "s", ID: "\xff\xfe\xfc"},
		{Scope: "s", ID: "\u00e9"},  // looks the same to a reader …
		{Scope: "s", ID: "e\u0301"}, // … but has other bytes
		{Scope: "s", ID: "\ufffd"},
		{Scope: "s", ID: "null"},
		{Scope: "s", ID: "{}:*%_?'\";--\n"},
		{Scope: "s", ID: large + "1"},
		{Scope: "s", ID: large + "2"},
		{Scope: large + "1", ID: "s"},
		{Scope: large + "2", ID: "s"},
	}
	claims := make([]semel.Claim, len(keys))
	for i, key := range keys {
		claims[i] = e.fresh(e.request(key))
	}
	for i, key := range keys {
		e.want(semel.InFlight, e.request(key))
		e.mustComplete(key, claims[i].Token, text(fmt.Sprint("result ", i)))
	}
	for i, key := range keys {
		e.wantResult(key, text(fmt.Sprint("result ", i)))
	}
}

func keysDoNotConcatenate(e *env) {
	keys := []semel.Key{
		{Scope: "", ID: "abc"}, {Scope: "a", ID: "bc"}, {Scope: "ab", ID: "c"},
		{Scope: "a", ID: "/bc"}, {Scope: "a/", ID: "bc"}, {Scope: "a:", ID: "bc"}, {Scope: "a", ID: ":bc"},
		{Scope: "a\x00", ID: "bc"}, {Scope: "a", ID: "\x00bc"}, {Scope: "abc\x00", ID: "d"}, {Scope: "abc", ID: "\x00d"},
		{Scope: "bc", ID: "a"},
	}
	for i, key := range keys {
		a := e.claim(e.request(key))
		if a.Decision != semel.Fresh {
			e.Fatalf("key %s is %s although it is another than those before", key, a.Decision)
		}
		e.mustComplete(key, a.Claim.Token, text(fmt.Sprint("result ", i)))
	}
	for i, key := range keys {
		e.wantResult(key, text(fmt.Sprint("result ", i)))
	}
}

func keysOutOfBounds(e *env) {
	tooLong := strings.Repeat("x", semel.MaxKeyBytes+1)
	for _, bad := range []semel.Key{{}, {Scope: "s"}, {Scope: "s", ID: tooLong}, {Scope: tooLong, ID: "id"}} {
		good := []semel.Key{e.key(), e.key()}
		answers := make([]semel.ClaimAnswer, 3)
		err := e.store.Claim(e.Context(), []semel.ClaimRequest{e.request(good[0]), e.request(bad), e.request(good[1])}, answers)
		if err != nil {
			e.Fatalf("claim with one bad key fails the whole call: %v", err)
		}
		if !errors.Is(answers[1].Err, semel.ErrInvalidKey) {
			e.Errorf("claim of %s is answered %s, %v, want ErrInvalidKey", bad, answers[1].Decision, answers[1].Err)
		}
		e.wantDecisions([]semel.ClaimAnswer{answers[0], answers[2]}, semel.Fresh, semel.Fresh)

		errs := make([]error, 2)
		err = e.store.Complete(e.Context(), []semel.CompleteRequest{
			{Key: bad, Token: 1, Window: e.window},
			{Key: good[0], Token: answers[0].Claim.Token, Result: text("r"), Window: e.window},
		}, errs)
		if err != nil || !errors.Is(errs[0], semel.ErrInvalidKey) || errs[1] != nil {
			e.Errorf("complete with the bad key %s: %v, %v", bad, err, errs)
		}
		extended := make([]semel.ExtendAnswer, 2)
		err = e.store.Extend(e.Context(), []semel.ExtendRequest{
			{Key: bad, Token: 1, Lease: e.lease}, {Key: good[1], Token: answers[2].Claim.Token, Lease: e.lease},
		}, extended)
		if err != nil || !errors.Is(extended[0].Err, semel.ErrInvalidKey) || extended[1].Err != nil {
			e.Errorf("extend with the bad key %s: %v, %v", bad, err, extended)
		}
		err = e.store.Release(e.Context(), []semel.ReleaseRequest{
			{Key: bad, Token: 1}, {Key: good[1], Token: answers[2].Claim.Token},
		}, errs)
		if err != nil || !errors.Is(errs[0], semel.ErrInvalidKey) || errs[1] != nil {
			e.Errorf("release with the bad key %s: %v, %v", bad, err, errs)
		}
		e.wantResult(good[0], text("r"))
		e.fresh(e.request(good[1]))
	}
}

// with returns a claim request for a key with a fingerprint.
func (e *env) with(key semel.Key, f semel.Fingerprint) semel.ClaimRequest {
	req := e.request(key)
	req.Fingerprint = f
	return req
}

func mismatchInEachState(e *env) {
	key := e.key()
	c := e.fresh(e.with(key, print('1')))
	e.want(semel.Mismatch, e.with(key, print('2')))
	e.want(semel.InFlight, e.with(key, print('1')))
	e.mustComplete(key, c.Token, text("of payload 1"))
	if a := e.want(semel.Mismatch, e.with(key, print('2'))); len(a.Result.Data) > 0 {
		e.Errorf("another payload is shown the result %s", describe(a.Result))
	}
	a := e.want(semel.Duplicate, e.with(key, print('1')))
	if !e.sameResult(a.Result, text("of payload 1")) {
		e.Errorf("the same payload is shown the result %s", describe(a.Result))
	}
	done := e.with(key, print('2'))
	done.Done = true
	e.want(semel.Mismatch, done)

	unknown := e.key()
	c = e.fresh(e.with(unknown, print('1')))
	if err := e.release(semel.ReleaseRequest{Key: unknown, Token: c.Token, Unknown: true}); err != nil {
		e.Fatalf("release as unknown: %v", err)
	}
	e.want(semel.Mismatch, e.with(unknown, print('2')))
	e.want(semel.OutcomeUnknown, e.with(unknown, print('1')))

	oneStep := e.key()
	req := e.with(oneStep, print('1'))
	req.Done = true
	e.fresh(req)
	e.want(semel.Mismatch, e.with(oneStep, print('2')))
	e.want(semel.Duplicate, e.with(oneStep, print('1')))

	released := e.key()
	c = e.fresh(e.with(released, print('1')))
	e.mustRelease(released, c.Token)
	e.fresh(e.with(released, print('2'))) // nothing is known about it any longer
}

func noFingerprint(e *env) {
	key := e.key()
	c := e.fresh(e.with(key, print('1')))
	e.want(semel.InFlight, e.request(key))
	e.mustComplete(key, c.Token, text("r"))
	e.want(semel.Duplicate, e.request(key))
	e.want(semel.Mismatch, e.with(key, print('2')))

	none := e.key()
	c = e.fresh(e.request(none))
	e.want(semel.InFlight, e.with(none, print('1')))
	e.want(semel.InFlight, e.with(none, print('2'))) // a lookup does not set it
	e.mustComplete(none, c.Token, text("r"))
	e.want(semel.Duplicate, e.with(none, print('1')))
	e.want(semel.Duplicate, e.with(none, print('2')))
}

func halfFingerprint(e *env) {
	key := e.key()
	f := print('1')
	c := e.fresh(e.with(key, f))
	e.mustComplete(key, c.Token, text("r"))
	for i := range 8 { // each of the first 8 bytes counts
		g := f
		g[i] ^= 0x80
		e.want(semel.Mismatch, e.with(key, g))
	}
	e.want(semel.Duplicate, e.with(key, f))
}
