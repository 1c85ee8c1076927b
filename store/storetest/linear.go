package storetest

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/store/storetest/internal/register"
)

// linearizable lets clients work concurrently on a few keys. It checks that the
// observations of each key fit one order of their calls.
func linearizable(e *env) {
	s := seed(e)
	for round := range 12 {
		h := &recording{env: e, round: round}
		for range 3 {
			h.keys = append(h.keys, e.key())
		}
		inParallel(6, func(i int) { h.client(rand.New(rand.NewPCG(s, uint64(100*round+i)))) })
		switch porcupine.CheckOperationsTimeout(register.Model(), h.operations, patience) {
		case porcupine.Illegal:
			e.Fatalf("SEMEL_SEED=%d, round %d: no order of the calls explains their answers:\n%s", s, round, h)
		case porcupine.Unknown:
			e.Errorf("SEMEL_SEED=%d, round %d: no answer within %v", s, round, patience)
		}
	}
	if e.store.decided(semel.InFlight) == 0 || e.store.decided(semel.Duplicate) == 0 {
		e.Errorf("the clients never met")
	}
}

// recording contains the clients' calls and their answers.
type recording struct {
	*env
	round int
	keys  []semel.Key
	now   atomic.Int64 // orders calls and returns

	mu         sync.Mutex // guards operations
	operations []porcupine.Operation
}

// client makes some calls, cancels a few of them, and sometimes lets time pass.
func (h *recording) client(random *rand.Rand) {
	held := make(map[semel.Key][]semel.Token)
	var last semel.ClaimRequest
	for i := range 30 {
		key := h.keys[random.IntN(len(h.keys))]
		tokens, token := held[key], semel.Token(0)
		if len(tokens) > 0 {
			token = tokens[len(tokens)-1-random.IntN(min(len(tokens), 2))] // may be a stale token
		}
		short := random.IntN(3) > 0
		lease, window := h.window, h.window // longer than the test
		if short {
			lease, window = h.short, h.window/100
		}
		switch n := random.IntN(20); {
		case n < 9 || token == 0:
			req := h.request(key)
			if req.Lease = lease; i%5 == 4 && last.Lease > 0 {
				req = last // as after a lost reply
			}
			last = req
			if c, ok := h.claim(random, req, req.Lease == h.short); ok {
				held[req.Key] = append(held[req.Key], c.Token)
			}
		case n < 12:
			result := ""
			if h.traits.Results {
				result = fmt.Sprint("result ", random.Uint32())
			}
			h.finish(random, register.Call{Key: key, Verb: "complete", Token: token, Result: result, Short: short}, window)
		case n < 17:
			h.finish(random, register.Call{Key: key, Verb: "release", Token: token}, 0)
		default:
			h.finish(random, register.Call{Key: key, Verb: "extend", Token: token, Short: short}, lease)
		}
		if h.movable() && random.IntN(4) == 0 {
			h.advance(h.short)
		}
	}
}

// context returns a context that is cancelled immediately, soon, or never.
func (h *recording) context(random *rand.Rand) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	switch random.IntN(25) {
	case 0:
		cancel()
	case 1:
		go cancel()
	}
	return ctx, cancel
}

// record records one call. It omits a call whose error says that nothing was
// changed.
func (h *recording) record(c register.Call, do func() (register.Reply, error)) {
	began := h.now.Add(1)
	r, err := do()
	ended := h.now.Add(1)
	if err != nil {
		if unchanged(err) {
			return
		}
		r, ended = register.Reply{}, math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{Input: c, Call: began, Output: r, Return: ended})
}

func (h *recording) claim(random *rand.Rand, req semel.ClaimRequest, short bool) (granted semel.Claim, ok bool) {
	ctx, cancel := h.context(random)
	defer cancel()
	h.record(register.Call{Key: req.Key, Verb: "claim", Owner: req.Owner.Nonce, Short: short}, func() (register.Reply, error) {
		answers := make([]semel.ClaimAnswer, 1)
		err := h.store.Claim(ctx, []semel.ClaimRequest{req}, answers)
		a := answers[0]
		granted, ok = a.Claim, err == nil && a.Decision == semel.Fresh
		claim := a.Claim
		claim.LeaseEnd = time.Time{}
		return register.Reply{Known: true, Decision: a.Decision, Claim: claim, Result: string(a.Result.Data)}, err
	})
	return granted, ok
}

// finish completes, releases or extends a claim.
func (h *recording) finish(random *rand.Rand, c register.Call, d time.Duration) {
	ctx, cancel := h.context(random)
	defer cancel()
	h.record(c, func() (register.Reply, error) {
		errs, extended := make([]error, 1), make([]semel.ExtendAnswer, 1)
		var err error
		switch c.Verb {
		case "complete":
			err = h.store.Complete(ctx, []semel.CompleteRequest{{Key: c.Key, Token: c.Token, Result: text(c.Result), Window: d}}, errs)
		case "release":
			err = h.store.Release(ctx, []semel.ReleaseRequest{{Key: c.Key, Token: c.Token}}, errs)
		case "extend":
			err = h.store.Extend(ctx, []semel.ExtendRequest{{Key: c.Key, Token: c.Token, Lease: d}}, extended)
			errs[0] = extended[0].Err
		}
		return register.Reply{Known: true, Stale: errs[0] != nil}, err
	})
}

// String lists the calls and their answers.
func (h *recording) String() string {
	model := register.Model()
	text := ""
	for _, part := range model.Partition(h.operations) {
		if porcupine.CheckOperationsTimeout(model, part, patience) == porcupine.Ok {
			continue
		}
		for _, op := range part {
			text += register.Describe(op) + "\n"
		}
	}
	return text
}
