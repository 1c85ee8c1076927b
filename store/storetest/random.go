package storetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/test/trytest"
)

var randomCases = []testCase{
	{"random calls are answered as the model says", randomCalls},
	{"histories of one key are linearizable", linearizable},
}

// step is one step of a random test. It stays meaningful after other steps are
// removed.
type step struct {
	verb  string
	items []item
	pass  time.Duration // how much time passes
}

// item is one request of a step.
type item struct {
	key            int
	repeat         bool // repeat the last claim of the key
	done, hold     bool
	old            bool // the message is older than any window
	print          byte // 0 means none
	lease, window  time.Duration
	token          int // 0 is the last granted token, 1 the one before, 2 none
	unknown        bool
	as             semel.State
	result         string
	completeResult semel.ResultKind
}

const randomKeys = 5

// randomCalls makes random calls on a few keys and compares each answer with
// the model's. If an answer differs, it removes steps while the test still
// fails, and prints the remaining steps.
func randomCalls(e *env) {
	rounds, length := 24, 250
	if e.traits.Durable {
		rounds = 6 // each call may be a sync
	}
	rounds = times(rounds)
	s := seed(e)
	for round := range rounds {
		random := rand.New(rand.NewPCG(s, uint64(round)))
		steps := make([]step, length)
		for i := range steps {
			steps[i] = e.randomStep(random)
		}
		if failures, _ := e.replay(steps); len(failures) > 0 {
			steps = shrink(steps, func(steps []step) bool {
				failures, _ := e.replay(steps)
				return len(failures) > 0
			})
			failures, trace := e.replay(steps)
			e.Fatalf("SEMEL_SEED=%d, round %d, shrunk to %d steps:\n%s\n%s", s, round, len(steps), strings.Join(trace, "\n"), strings.Join(failures, "\n"))
		}
	}
}

// shrink removes as many steps as possible while the rest still fails.
func shrink(steps []step, fails func([]step) bool) []step {
	tries := 400
	for size := len(steps) / 2; size > 0; size /= 2 {
		for i := 0; i+size <= len(steps) && tries > 0; tries-- {
			fewer := append(append([]step(nil), steps[:i]...), steps[i+size:]...)
			if fails(fewer) {
				steps = fewer
			} else {
				i += size
			}
		}
	}
	return steps
}

func (e *env) randomStep(random *rand.Rand) step {
	verbs := []string{
		"claim", "claim", "claim", "claim", "claim", "complete", "complete", "release", "extend",
		"resolve", "remove", "look", "pass", "pass", "purge", "reopen",
	}
	s := step{verb: verbs[random.IntN(len(verbs))]}
	if s.verb == "reopen" && random.IntN(4) > 0 {
		s.verb = "claim" // less often
	}
	pick := func(ds ...time.Duration) time.Duration { return ds[random.IntN(len(ds))] }
	s.pass = pick(1, slack, e.lease/2, e.lease-1, e.lease, e.lease+slack, e.window/2, e.window-1, e.window, e.window+e.traits.Tick, e.traits.Tick/2+1)
	for range 1 + random.IntN(4) {
		it := item{
			key: random.IntN(randomKeys), repeat: random.IntN(4) == 0,
			done: random.IntN(6) == 0, hold: random.IntN(4) == 0, old: random.IntN(12) == 0, unknown: random.IntN(3) == 0,
			lease: pick(e.lease, e.lease/2, 2*e.lease), window: pick(e.window, 2*e.window, semel.Forever),
			token: min(random.IntN(8), 2), as: []semel.State{semel.Done, semel.Absent}[random.IntN(2)],
			result: []string{"", "r", "another result"}[random.IntN(3)], completeResult: semel.ResultKind(random.IntN(3)),
		}
		if it.token == 2 && random.IntN(2) == 0 {
			it.token = 0
		}
		if random.IntN(2) == 0 {
			it.print = byte('1' + random.IntN(4)/3)
		}
		s.items = append(s.items, it)
	}
	return s
}

// replay runs the steps on a new store and a new model, up to the first wrong
// answer.
func (e *env) replay(steps []step) (failures, trace []string) {
	failures = trytest.Run(e.TB, func(tb testing.TB) {
		r := &replayer{env: newEnv(tb, e.harness), last: make(map[semel.Key]semel.ClaimRequest), tokens: make(map[semel.Key][]semel.Token)}
		r.model = &model{traits: r.traits, slack: slack, keys: make(map[semel.Key]*expected)}
		if !r.movable() {
			r.model.slack = patience
		}
		for _, s := range steps {
			if r.take(s); tb.Failed() {
				break
			}
		}
		trace = r.trace
	})
	return failures, trace
}

// replayer runs steps on a store and its model.
type replayer struct {
	*env
	model  *model
	last   map[semel.Key]semel.ClaimRequest // the last claim of each key
	tokens map[semel.Key][]semel.Token      // granted tokens, by key
	trace  []string
}

// compare records one answer, and the fault that the model found in it.
func (r *replayer) compare(wrong string, format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	if wrong != "" {
		line += "   <-- " + wrong
		r.Errorf("%s", line)
	}
	r.trace = append(r.trace, line)
}

func (r *replayer) take(s step) {
	r.model.now = r.now()
	switch s.verb {
	case "claim":
		r.takeClaim(s.items)
	case "complete":
		r.takeComplete(s.items)
	case "release":
		r.takeRelease(s.items)
	case "extend":
		r.takeExtend(s.items)
	case "pass":
		if r.movable() {
			r.advance(s.pass)
			r.compare("", "%v pass", s.pass)
		}
	case "purge":
		r.purge()
		r.model.purge()
		r.compare("", "purge")
	case "reopen":
		r.reopen()
		r.model.reopen()
		r.compare("", "reopen")
	default:
		r.takeByHand(s.verb, s.items[0])
	}
}

func itemKey(it item) semel.Key { return semel.Key{Scope: "random", ID: fmt.Sprint(it.key)} }

// token returns a token that was granted for the key, or one that was not.
func (r *replayer) token(it item) semel.Token {
	granted := r.tokens[itemKey(it)]
	if it.token >= 2 {
		return 1 << 60
	}
	if i := len(granted) - 1 - it.token; i >= 0 {
		return granted[i]
	}
	return 1 << 60
}

func (r *replayer) takeClaim(items []item) {
	reqs := make([]semel.ClaimRequest, len(items))
	for i, it := range items {
		key := itemKey(it)
		if last, ok := r.last[key]; ok && it.repeat {
			reqs[i] = last
			continue
		}
		req := semel.ClaimRequest{Key: key, Owner: r.owner(fmt.Sprint("worker ", len(r.trace))), Lease: it.lease, Window: it.window, Hold: it.hold, Done: it.done}
		if it.print != 0 {
			req.Fingerprint = print(it.print)
		}
		if it.old {
			req.Time = r.now().Add(-10 * r.window)
		}
		reqs[i], r.last[key] = req, req
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	if err := r.store.Claim(context.Background(), reqs, answers); err != nil {
		r.compare(err.Error(), "claim")
		return
	}
	for i, a := range answers {
		req := reqs[i]
		r.compare(r.model.claimed(req, a), "claim %s by %d (done %t, hold %t, print %.2s, lease %v, window %v, old %t) = %s %+v %s", req.Key, req.Owner.Nonce%1000,
			req.Done, req.Hold, req.Fingerprint, req.Lease, req.Window, !req.Time.IsZero(), a.Decision, a.Claim, describe(a.Result))
		if granted := r.tokens[req.Key]; a.Decision == semel.Fresh && !req.Done && (len(granted) == 0 || granted[len(granted)-1] != a.Claim.Token) {
			r.tokens[req.Key] = append(granted, a.Claim.Token)
		}
	}
}

func (r *replayer) takeComplete(items []item) {
	reqs := make([]semel.CompleteRequest, len(items))
	for i, it := range items {
		reqs[i] = semel.CompleteRequest{Key: itemKey(it), Token: r.token(it), Window: it.window, Result: semel.Result{Kind: it.completeResult}}
		if it.completeResult != semel.NoResult {
			reqs[i].Result.Data = []byte(it.result)
		}
	}
	errs := make([]error, len(reqs))
	if err := r.store.Complete(context.Background(), reqs, errs); err != nil {
		r.compare(err.Error(), "complete")
		return
	}
	for i, err := range errs {
		r.compare(r.model.completed(reqs[i], err), "complete %s with %d: %s for %v = %v", reqs[i].Key, reqs[i].Token, describe(reqs[i].Result), reqs[i].Window, err)
	}
}

func (r *replayer) takeRelease(items []item) {
	reqs := make([]semel.ReleaseRequest, len(items))
	for i, it := range items {
		reqs[i] = semel.ReleaseRequest{Key: itemKey(it), Token: r.token(it), Unknown: it.unknown}
	}
	errs := make([]error, len(reqs))
	if err := r.store.Release(context.Background(), reqs, errs); err != nil {
		r.compare(err.Error(), "release")
		return
	}
	for i, err := range errs {
		r.compare(r.model.released(reqs[i], err), "release %s with %d (unknown %t) = %v", reqs[i].Key, reqs[i].Token, reqs[i].Unknown, err)
	}
}

func (r *replayer) takeExtend(items []item) {
	reqs := make([]semel.ExtendRequest, len(items))
	for i, it := range items {
		reqs[i] = semel.ExtendRequest{Key: itemKey(it), Token: r.token(it), Lease: it.lease}
	}
	answers := make([]semel.ExtendAnswer, len(reqs))
	if err := r.store.Extend(context.Background(), reqs, answers); err != nil {
		r.compare(err.Error(), "extend")
		return
	}
	for i, a := range answers {
		r.compare(r.model.extended(reqs[i], a), "extend %s with %d by %v = %v, %v", reqs[i].Key, reqs[i].Token, reqs[i].Lease, a.LeaseEnd, a.Err)
	}
}

// takeByHand runs an operator's call, if the store has the ability.
func (r *replayer) takeByHand(verb string, it item) {
	key, ctx := itemKey(it), context.Background()
	if verb == "look" {
		if record, ok := r.look(key); ok {
			r.compare(r.model.looked(key, record), "look %s = %s under %d", key, record.State, record.Token)
		}
		return
	}
	resolver, ok := r.inner.(semel.Resolver)
	switch {
	case !ok:
	case verb == "remove":
		was, err := resolver.Remove(ctx, key)
		r.compare(r.model.removed(key, was, err), "remove %s = %t, %v", key, was, err)
	case verb == "resolve":
		result := text(it.result)
		r.store.resolving(key, result)
		err := resolver.Resolve(ctx, semel.ResolveRequest{Key: key, As: it.as, Result: result, Window: it.window})
		r.compare(r.model.resolved(key, it.as, result, it.window, err), "resolve %s as %s for %v = %v", key, it.as, it.window, err)
	}
}
