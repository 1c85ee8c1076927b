package storetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/semel-dev/semel"
)

var batchCases = []testCase{
	{"keys that occur twice in a claim are decided in order", batchDecidesInOrder},
	{"a claim repeated in a batch is the same claim", batchRecognisesItself},
	{"a batch with every decision answers each key separately", batchOfAllDecisions},
	{"a batch repeated after a lost reply gets the same claims", batchIsRepeated},
	{"completions, releases and extensions are decided in order", verbsDecideInOrder},
	{"answers in large batches do not mix", largeBatches},
	{"an empty batch is answered", emptyBatch},
	{"slices of different lengths are refused", lengthsMustAgree},
}

// claims makes many claims in one call.
func (e *env) claims(reqs ...semel.ClaimRequest) []semel.ClaimAnswer {
	e.Helper()
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := e.store.Claim(context.Background(), reqs, answers); err != nil {
		e.Fatalf("claim %d keys: %v", len(reqs), err)
	}
	return answers
}

// wantDecisions checks the decisions of the answers.
func (e *env) wantDecisions(answers []semel.ClaimAnswer, want ...semel.Decision) {
	e.Helper()
	for i, a := range answers {
		if a.Err != nil || a.Decision != want[i] {
			e.Errorf("answer %d of the batch is %s (%v), want %s", i, a.Decision, a.Err, want[i])
		}
	}
}

func batchDecidesInOrder(e *env) {
	a, b := e.key(), e.key()
	answers := e.claims(e.request(a), e.request(b), e.request(a), e.request(b), e.request(a))
	e.wantDecisions(answers, semel.Fresh, semel.Fresh, semel.InFlight, semel.InFlight, semel.InFlight)
	if answers[2].Claim.Token != answers[0].Claim.Token || answers[3].Claim.Token != answers[1].Claim.Token {
		e.Errorf("in flight inside the batch shows other claims: %+v", answers)
	}

	c := e.key()
	first, second := e.request(c), e.request(c)
	first.Done, second.Done = true, true
	e.wantDecisions(e.claims(first, second, e.request(c)), semel.Fresh, semel.Duplicate, semel.Duplicate)

	d := e.key()
	late := e.request(d)
	late.Done = true
	e.wantDecisions(e.claims(e.request(d), late), semel.Fresh, semel.InFlight)

	f := e.key()
	one, other := e.request(f), e.request(f)
	one.Fingerprint, other.Fingerprint = print('1'), print('2')
	e.wantDecisions(e.claims(one, other, one), semel.Fresh, semel.Mismatch, semel.Fresh)
}

func batchRecognisesItself(e *env) {
	a := e.request(e.key())
	answers := e.claims(a, a, e.request(a.Key), a)
	e.wantDecisions(answers, semel.Fresh, semel.Fresh, semel.InFlight, semel.Fresh)
	for _, i := range []int{1, 3} {
		if answers[i].Claim.Token != answers[0].Claim.Token {
			e.Errorf("the repeated claim %d has token %d, want %d", i, answers[i].Claim.Token, answers[0].Claim.Token)
		}
	}
}

func batchOfAllDecisions(e *env) {
	fresh, duplicate, inFlight, mismatch, unknown, late := e.key(), e.key(), e.key(), e.key(), e.key(), e.key()
	e.done(duplicate, text("result of duplicate"))
	held := e.fresh(e.request(inFlight))
	req := e.request(mismatch)
	req.Fingerprint = print('1')
	e.fresh(req)
	e.unknown(unknown)

	other := e.request(mismatch)
	other.Fingerprint = print('2')
	old := e.request(late)
	old.Time = e.now().Add(-2 * e.window)
	reqs := []semel.ClaimRequest{
		e.request(unknown), e.request(semel.Key{Scope: "s"}), old, e.request(duplicate),
		e.request(fresh), other, e.request(inFlight), e.request(fresh),
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := e.store.Claim(e.Context(), reqs, answers); err != nil {
		e.Fatalf("claim: %v", err)
	}
	if !errors.Is(answers[1].Err, semel.ErrInvalidKey) {
		e.Errorf("the empty id is answered %v, want ErrInvalidKey", answers[1].Err)
	}
	e.wantDecisions(answers[:1], semel.OutcomeUnknown)
	e.wantDecisions(answers[2:], semel.Late, semel.Duplicate, semel.Fresh, semel.Mismatch, semel.InFlight, semel.InFlight)
	if !e.sameResult(answers[3].Result, text("result of duplicate")) {
		e.Errorf("the duplicate has the result %s", describe(answers[3].Result))
	}
	if answers[6].Claim.Token != held.Token || answers[7].Claim.Token != answers[4].Claim.Token {
		e.Errorf("in flight shows other claims than the holders': %+v", answers)
	}
}

func batchIsRepeated(e *env) {
	reqs := []semel.ClaimRequest{e.request(e.key()), e.request(e.key()), e.request(e.key())}
	first := e.claims(reqs...)
	e.wantDecisions(first, semel.Fresh, semel.Fresh, semel.Fresh)
	e.mustComplete(reqs[1].Key, first[1].Claim.Token, text("meanwhile"))
	again := e.claims(reqs...)
	e.wantDecisions(again, semel.Fresh, semel.Duplicate, semel.Fresh)
	for _, i := range []int{0, 2} {
		if again[i].Claim.Token != first[i].Claim.Token {
			e.Errorf("the repeated claim %d has token %d, want %d", i, again[i].Claim.Token, first[i].Claim.Token)
		}
	}
}

func verbsDecideInOrder(e *env) {
	a, b := e.key(), e.key()
	ca, cb := e.fresh(e.request(a)), e.fresh(e.request(b))
	stale := make([]error, 4)
	err := e.store.Complete(e.Context(), []semel.CompleteRequest{
		{Key: a, Token: ca.Token, Result: text("a"), Window: e.window},
		{Key: b, Token: cb.Token + 1, Result: text("stale"), Window: e.window},
		{Key: b, Token: cb.Token, Result: text("b"), Window: e.window},
		{Key: a, Token: ca.Token + 1, Result: text("stale"), Window: e.window},
	}, stale)
	if err != nil || stale[0] != nil || stale[2] != nil {
		e.Errorf("complete: %v, %v", err, stale)
	}
	e.wantStale("complete", b, cb.Token+1, stale[1])
	e.wantStale("complete", a, ca.Token+1, stale[3])
	e.wantResult(a, text("a"))
	e.wantResult(b, text("b"))

	c, d := e.key(), e.key()
	cc, cd := e.fresh(e.request(c)), e.fresh(e.request(d))
	released := make([]error, 3)
	err = e.store.Release(e.Context(), []semel.ReleaseRequest{
		{Key: c, Token: cc.Token + 1}, {Key: d, Token: cd.Token}, {Key: c, Token: cc.Token},
	}, released)
	if err != nil || released[1] != nil || released[2] != nil {
		e.Errorf("release: %v, %v", err, released)
	}
	e.wantStale("release", c, cc.Token+1, released[0])
	cc, cd = e.fresh(e.request(c)), e.fresh(e.request(d))

	extended := make([]semel.ExtendAnswer, 3)
	err = e.store.Extend(e.Context(), []semel.ExtendRequest{
		{Key: c, Token: cc.Token, Lease: 2 * e.lease}, {Key: d, Token: cd.Token + 1, Lease: e.lease}, {Key: d, Token: cd.Token, Lease: 3 * e.lease},
	}, extended)
	if err != nil || extended[0].Err != nil || extended[2].Err != nil {
		e.Errorf("extend: %v, %v", err, extended)
	}
	e.wantStale("extend", d, cd.Token+1, extended[1].Err)
	if !extended[2].LeaseEnd.After(extended[0].LeaseEnd) {
		e.Errorf("leases of %v and %v end at %v and %v", 2*e.lease, 3*e.lease, extended[0].LeaseEnd, extended[2].LeaseEnd)
	}
}

func largeBatches(e *env) {
	const size = 3000
	reqs := make([]semel.ClaimRequest, size)
	for i := range reqs {
		reqs[i] = e.request(e.key())
	}
	answers := e.claims(reqs...)
	completes := make([]semel.CompleteRequest, size)
	for i, a := range answers {
		if a.Decision != semel.Fresh {
			e.Fatalf("claim %d of a large batch is %s", i, a.Decision)
		}
		completes[i] = semel.CompleteRequest{Key: reqs[i].Key, Token: a.Claim.Token, Result: text(fmt.Sprint("result ", i)), Window: e.window}
	}
	errs := make([]error, size)
	if err := e.store.Complete(e.Context(), completes, errs); err != nil {
		e.Fatalf("complete: %v", err)
	}
	for i := range reqs {
		reqs[i].Owner = e.owner("another")
		if errs[i] != nil {
			e.Fatalf("completion %d of a large batch: %v", i, errs[i])
		}
	}
	for i, a := range e.claims(reqs...) {
		if a.Decision != semel.Duplicate || !e.sameResult(a.Result, text(fmt.Sprint("result ", i))) {
			e.Fatalf("claim %d of a large batch is %s with %s", i, a.Decision, describe(a.Result))
		}
	}
}

func emptyBatch(e *env) {
	ctx := e.Context()
	for verb, err := range map[string]error{
		"claim": e.store.Claim(ctx, nil, nil), "complete": e.store.Complete(ctx, nil, nil),
		"release": e.store.Release(ctx, nil, nil), "extend": e.store.Extend(ctx, nil, nil),
	} {
		if err != nil {
			e.Errorf("%s of nothing: %v", verb, err)
		}
	}
}

func lengthsMustAgree(e *env) {
	ctx, key := e.Context(), e.key()
	for _, n := range []int{0, 2} {
		errs := make([]error, n)
		e.wantInvalid("claim", e.inner.Claim(ctx, []semel.ClaimRequest{e.request(key)}, make([]semel.ClaimAnswer, n)))
		e.wantInvalid("complete", e.inner.Complete(ctx, []semel.CompleteRequest{{Key: key, Token: 1, Window: e.window}}, errs))
		e.wantInvalid("release", e.inner.Release(ctx, []semel.ReleaseRequest{{Key: key, Token: 1}}, errs))
		e.wantInvalid("extend", e.inner.Extend(ctx, []semel.ExtendRequest{{Key: key, Token: 1, Lease: e.lease}}, make([]semel.ExtendAnswer, n)))
		for _, err := range errs {
			if err != nil {
				e.Errorf("a refused call fills an answer: %v", err)
			}
		}
	}
	if c := e.fresh(e.request(key)); c.Attempt != 1 {
		e.Errorf("after refused calls the first claim has attempt %d, want 1", c.Attempt)
	}
}
