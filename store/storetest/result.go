package storetest

import (
	"bytes"
	"errors"

	"github.com/semel-dev/semel"
)

var resultCases = []testCase{
	{"results are replayed byte for byte", resultsAreReplayed},
	{"results of different keys do not mix", resultsAreApart},
	{"a store copies the results that it is given", resultIsCopied},
	{"an answer lasts after its call", answerLasts},
	{"a result above the limit is refused and the claim stays", resultLimit},
}

// largest returns the size of the largest result that the suite stores: 1 MiB,
// or the store's limit.
func (e *env) largest() int {
	if limit := e.traits.MaxResult; limit > 0 && limit < 1<<20 {
		return int(limit)
	}
	return 1 << 20
}

// noise returns n pseudo-random bytes. They do not compress, and they include
// the bytes that end a string.
func noise(n int, seed uint32) []byte {
	b := make([]byte, n)
	for i := range b {
		seed = seed*1664525 + 1013904223
		b[i] = byte(seed >> 24)
	}
	return b
}

func resultsAreReplayed(e *env) {
	limit := e.largest()
	for _, result := range []semel.Result{
		{},
		{Kind: semel.Value},
		{Kind: semel.Value, Data: []byte{}},
		{Kind: semel.Value, Data: []byte{0}},
		{Kind: semel.Value, Data: []byte("null")},
		{Kind: semel.Value, Data: []byte("a\x00b\xff\xfe\r\n")},
		{Kind: semel.Value, Data: noise(min(4096, limit), 1)},
		{Kind: semel.Value, Data: noise(min(70000, limit), 2)},
		{Kind: semel.Value, Data: noise(limit, 3)},
		{Kind: semel.Failed},
		{Kind: semel.Failed, Data: []byte("card declined: \"51\"")},
		{Kind: semel.NotKept},
	} {
		key := e.key()
		e.done(key, result)
		for range 2 {
			e.wantResult(key, result)
		}
	}
}

func resultsAreApart(e *env) {
	const keys, writers = 400, 4
	all := make([]semel.Key, keys)
	for i := range all {
		all[i] = e.key()
	}
	result := func(i int) semel.Result { return semel.Result{Kind: semel.Value, Data: noise(i, uint32(i))} }
	inParallel(writers, func(w int) {
		for i := w; i < keys; i += writers {
			answers, errs := make([]semel.ClaimAnswer, 1), make([]error, 1)
			err := e.store.Claim(e.Context(), []semel.ClaimRequest{e.request(all[i])}, answers)
			if err == nil {
				err = e.store.Complete(e.Context(), []semel.CompleteRequest{
					{Key: all[i], Token: answers[0].Claim.Token, Result: result(i), Window: e.window},
				}, errs)
			}
			if err != nil || errs[0] != nil {
				e.Errorf("claim and complete: %v, %v", err, errs[0])
			}
		}
	})
	reqs := make([]semel.ClaimRequest, keys)
	for i, key := range all {
		reqs[i] = e.request(key)
	}
	for i, a := range e.claims(reqs...) {
		if a.Decision != semel.Duplicate || !e.sameResult(a.Result, result(i)) {
			e.Errorf("key %d of many is %s with the result %s, want %s", i, a.Decision, describe(a.Result), describe(result(i)))
		}
	}
}

func resultIsCopied(e *env) {
	key := e.key()
	c := e.fresh(e.request(key))
	data := []byte("what was completed")
	e.mustComplete(key, c.Token, semel.Result{Kind: semel.Value, Data: bytes.Clone(data)})
	mine := bytes.Clone(data)
	key2 := e.key()
	c = e.fresh(e.request(key2))
	answers := make([]error, 1)
	req := []semel.CompleteRequest{{Key: key2, Token: c.Token, Result: semel.Result{Kind: semel.Value, Data: mine}, Window: e.window}}
	if err := e.inner.Complete(e.Context(), req, answers); err != nil || answers[0] != nil {
		e.Fatalf("complete: %v, %v", err, answers[0])
	}
	copy(mine, "overwritten by us!")
	e.store.resolving(key2, semel.Result{Kind: semel.Value, Data: data})
	e.wantResult(key, semel.Result{Kind: semel.Value, Data: data})
	e.wantResult(key2, semel.Result{Kind: semel.Value, Data: data})
}

// answerLasts keeps an answer while the store writes. A result that is a part of the store's own
// memory, such as a page of a file that it maps, changes by then, or is gone.
func answerLasts(e *env) {
	key, other := e.key(), e.key()
	size := min(3000, e.largest())
	result := semel.Result{Kind: semel.Value, Data: noise(size, 7)}
	e.done(key, result)
	e.done(other, semel.Result{Kind: semel.Value, Data: noise(size, 8)})
	kept := make([]semel.ClaimAnswer, 1)
	// inner, because the suite's own store keeps copies
	if err := e.inner.Claim(e.Context(), []semel.ClaimRequest{e.request(key)}, kept); err != nil || kept[0].Decision != semel.Duplicate {
		e.Fatalf("claim a key that is done: %s, %v", kept[0].Decision, err)
	}
	for n := range 100 {
		e.claim(e.request(other))
		e.done(e.key(), semel.Result{Kind: semel.Value, Data: noise(size, uint32(n))})
		if !e.sameResult(kept[0].Result, result) {
			e.Fatalf("the result in an answer changed after its call, with change %d of other keys: copy the bytes that you hand out", n+1)
		}
	}
}

func resultLimit(e *env) {
	limit := e.traits.MaxResult
	if limit == 0 {
		// The store reports no limit, so it must accept a result well above the
		// usual size.
		key := e.key()
		result := semel.Result{Kind: semel.Value, Data: noise(5<<20, 5)}
		e.done(key, result)
		e.wantResult(key, result)
		return
	}
	key := e.key()
	c := e.fresh(e.request(key))
	for _, kind := range []semel.ResultKind{semel.Value, semel.Failed} {
		large := semel.Result{Kind: kind, Data: make([]byte, limit+1)}
		if err := e.complete(key, c.Token, large, e.window); !errors.Is(err, semel.ErrResultTooLarge) {
			e.Fatalf("a result of %d bytes is answered %v, want ErrResultTooLarge", len(large.Data), err)
		}
	}
	e.heldBy(key, c)("completion with too large a result")
	// Other requests in the same call are not affected.
	other := e.key()
	co := e.fresh(e.request(other))
	answers := make([]error, 2)
	err := e.store.Complete(e.Context(), []semel.CompleteRequest{
		{Key: key, Token: c.Token, Result: semel.Result{Kind: semel.Value, Data: make([]byte, limit+1)}, Window: e.window},
		{Key: other, Token: co.Token, Result: text("small"), Window: e.window},
	}, answers)
	if err != nil || !errors.Is(answers[0], semel.ErrResultTooLarge) || answers[1] != nil {
		e.Errorf("complete with one result too large: %v, %v", err, answers)
	}
	e.wantResult(other, text("small"))
	e.mustComplete(key, c.Token, semel.Result{Kind: semel.NotKept})
	e.wantResult(key, semel.Result{Kind: semel.NotKept})
	if limit < 1<<20 {
		key := e.key()
		e.done(key, semel.Result{Kind: semel.Value, Data: noise(int(limit), 7)})
		e.wantResult(key, semel.Result{Kind: semel.Value, Data: noise(int(limit), 7)})
	}
}
