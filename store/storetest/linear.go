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
)

// call is a client's request for one key.
type call struct {
	key    semel.Key
	verb   string
	owner  uint64
	token  semel.Token
	result string
	short  bool // the lease or window may have ended before the next call
}

// reply is the answer to a call. A cancelled call has no answer. It may take
// effect at any later time, or never.
type reply struct {
	known    bool
	decision semel.Decision
	claim    semel.Claim
	result   string
	stale    bool
}

// register is the state of one key as a linearizable register.
type register struct {
	state   semel.State
	token   semel.Token // 0: granted to a cancelled call; not known, but above highest
	highest semel.Token
	attempt int
	owner   uint64
	short   bool
	result  string
}

// keyModel defines the states that may follow a call with its reply.
func keyModel() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := make(map[semel.Key][]porcupine.Operation)
			for _, op := range history {
				key := op.Input.(call).key
				byKey[key] = append(byKey[key], op)
			}
			var parts [][]porcupine.Operation
			for _, part := range byKey {
				parts = append(parts, part)
			}
			return parts
		},
		Init: func() []any { return []any{register{}} },
		Step: func(state, input, output any) []any {
			var next []any
			for _, s := range after(state.(register), input.(call), output.(reply)) {
				next = append(next, s)
			}
			return next
		},
	}
	return m.ToModel()
}

// after returns the possible next states. It returns none if the reply is
// impossible.
func after(s register, c call, r reply) []register {
	if c.verb == "claim" {
		return afterClaim(s, c, r)
	}
	holds := s.state == semel.Claimed && s.token == c.token
	again := c.verb == "complete" && s.state == semel.Done && s.token == c.token
	changed := s
	switch c.verb {
	case "complete":
		changed.state, changed.result, changed.short = semel.Done, c.result, c.short
	case "release":
		changed = register{highest: s.highest}
	case "extend":
		changed.short = c.short
	}
	switch {
	case !r.known && holds:
		return []register{s, changed}
	case !r.known || again && (!r.stale || s.short):
		return []register{s}
	case holds && !r.stale:
		return []register{changed}
	case !holds && r.stale:
		return []register{s}
	}
	return nil
}

func afterClaim(s register, c call, r reply) []register {
	own := s.state == semel.Claimed && s.owner == c.owner
	free := s.state == semel.Absent || s.short && !own || s.short && s.state == semel.Claimed
	granted := register{state: semel.Claimed, token: r.claim.Token, highest: r.claim.Token, attempt: 1, owner: c.owner, short: c.short}
	if s.state == semel.Claimed {
		granted.attempt = s.attempt + 1
	}
	// The token of a cancelled claim becomes known when an answer shows it.
	bound, fits := s, s.token == r.claim.Token
	if s.token == 0 && s.state == semel.Claimed {
		fits = r.claim.Token > s.highest
		bound.token, bound.highest = r.claim.Token, r.claim.Token
	}
	var next []register
	if !r.known {
		if next = append(next, s); free {
			granted.token, granted.highest = 0, max(s.highest, s.token)
			next = append(next, granted)
		}
		return next
	}
	switch r.decision {
	case semel.Fresh:
		if own && fits && r.claim.Attempt == s.attempt {
			next = append(next, bound)
		}
		if free && r.claim.Token > s.highest && r.claim.Attempt == granted.attempt {
			next = append(next, granted)
		}
	case semel.InFlight:
		if s.state == semel.Claimed && !own && fits && r.claim.Attempt == s.attempt {
			next = append(next, bound)
		}
	case semel.Duplicate:
		if s.state == semel.Done && r.result == s.result {
			next = append(next, s)
		}
	}
	return next
}

// linearizable lets clients work concurrently on a few keys. It checks that the
// observations of each key fit one order of their calls.
func linearizable(e *env) {
	if !e.traits.Fenced {
		// The model uses tokens as names of claims, which requires unique
		// tokens.
		oneRacerWins(e)
		return
	}
	s := seed(e)
	for round := range 12 {
		h := &recording{env: e, round: round}
		for range 3 {
			h.keys = append(h.keys, e.key())
		}
		inParallel(6, func(i int) { h.client(rand.New(rand.NewPCG(s, uint64(100*round+i)))) })
		switch porcupine.CheckOperationsTimeout(keyModel(), h.operations, patience) {
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
			h.finish(random, call{key: key, verb: "complete", token: token, result: result, short: short}, window)
		case n < 17:
			h.finish(random, call{key: key, verb: "release", token: token}, 0)
		default:
			h.finish(random, call{key: key, verb: "extend", token: token, short: short}, lease)
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
func (h *recording) record(c call, do func() (reply, error)) {
	began := h.now.Add(1)
	r, err := do()
	ended := h.now.Add(1)
	if err != nil {
		if unchanged(err) {
			return
		}
		r, ended = reply{}, math.MaxInt64
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, porcupine.Operation{Input: c, Call: began, Output: r, Return: ended})
}

func (h *recording) claim(random *rand.Rand, req semel.ClaimRequest, short bool) (granted semel.Claim, ok bool) {
	ctx, cancel := h.context(random)
	defer cancel()
	h.record(call{key: req.Key, verb: "claim", owner: req.Owner.Nonce, short: short}, func() (reply, error) {
		answers := make([]semel.ClaimAnswer, 1)
		err := h.store.Claim(ctx, []semel.ClaimRequest{req}, answers)
		a := answers[0]
		granted, ok = a.Claim, err == nil && a.Decision == semel.Fresh
		claim := a.Claim
		claim.LeaseEnd = time.Time{}
		return reply{known: true, decision: a.Decision, claim: claim, result: string(a.Result.Data)}, err
	})
	return granted, ok
}

// finish completes, releases or extends a claim.
func (h *recording) finish(random *rand.Rand, c call, d time.Duration) {
	ctx, cancel := h.context(random)
	defer cancel()
	h.record(c, func() (reply, error) {
		errs, extended := make([]error, 1), make([]semel.ExtendAnswer, 1)
		var err error
		switch c.verb {
		case "complete":
			err = h.store.Complete(ctx, []semel.CompleteRequest{{Key: c.key, Token: c.token, Result: text(c.result), Window: d}}, errs)
		case "release":
			err = h.store.Release(ctx, []semel.ReleaseRequest{{Key: c.key, Token: c.token}}, errs)
		case "extend":
			err = h.store.Extend(ctx, []semel.ExtendRequest{{Key: c.key, Token: c.token, Lease: d}}, extended)
			errs[0] = extended[0].Err
		}
		return reply{known: true, stale: errs[0] != nil}, err
	})
}

// String lists the calls and their answers.
func (h *recording) String() string {
	model := keyModel()
	text := ""
	for _, part := range model.Partition(h.operations) {
		if porcupine.CheckOperationsTimeout(model, part, patience) == porcupine.Ok {
			continue
		}
		for _, op := range part {
			text += describeCall(op) + "\n"
		}
	}
	return text
}

func describeCall(op porcupine.Operation) string {
	c, r := op.Input.(call), op.Output.(reply)
	answer := "unknown"
	switch {
	case r.known && c.verb == "claim":
		answer = fmt.Sprintf("%s, token %d, attempt %d, %q", r.decision, r.claim.Token, r.claim.Attempt, r.result)
	case r.known && r.stale:
		answer = "stale"
	case r.known:
		answer = "ok"
	}
	return fmt.Sprintf("[%d, %d] %s %s owner %d token %d %q short %t = %s",
		op.Call, op.Return, c.verb, c.key, c.owner, c.token, c.result, c.short, answer)
}
