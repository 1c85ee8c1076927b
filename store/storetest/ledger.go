package storetest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/semel-dev/semel"
)

// ledger wraps a store and checks each answer against the earlier requests:
//   - A Duplicate has a completion behind it.
//   - A result belongs to its key.
//   - No token repeats or shrinks.
//   - No answer contradicts itself.
//
// It does not delay or reorder calls.
type ledger struct {
	tb     testing.TB
	mu     sync.Mutex // guards all fields below
	store  semel.Store
	traits semel.Traits
	keys   map[semel.Key]*history
	seen   map[semel.Decision]int
}

// history is the suite's requests for one key.
type history struct {
	completions []*semel.Result // requested and not refused
	grants      map[semel.Token]semel.Owner
	highest     semel.Token
}

var _ semel.Store = (*ledger)(nil)

func newLedger(tb testing.TB) *ledger {
	return &ledger{tb: tb, keys: make(map[semel.Key]*history), seen: make(map[semel.Decision]int)}
}

// use sets the store behind the ledger. It may hold the data of the previous
// store.
func (l *ledger) use(store semel.Store) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.store, l.traits = store, store.Traits()
}

// reopened records that the store's process has ended.
func (l *ledger) reopened(traits semel.Traits) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, h := range l.keys {
		if !traits.Durable {
			h.completions = nil
		}
	}
}

// decided returns how many answers had the decision.
func (l *ledger) decided(d semel.Decision) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[d]
}

func (l *ledger) history(key semel.Key) *history {
	h := l.keys[key]
	if h == nil {
		h = &history{grants: make(map[semel.Token]semel.Owner)}
		l.keys[key] = h
	}
	return h
}

// completing records that a completion is requested.
func (l *ledger) completing(key semel.Key, result semel.Result) *semel.Result {
	h := l.history(key)
	h.completions = append(h.completions, &result)
	return &result
}

// refused records that the store refused a completion, so no Duplicate can rest
// on it.
func (l *ledger) refused(key semel.Key, completion *semel.Result) {
	h := l.history(key)
	for i, c := range h.completions {
		if c == completion {
			h.completions = append(h.completions[:i:i], h.completions[i+1:]...)
			return
		}
	}
}

// Claim implements semel.Store.
func (l *ledger) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	l.mu.Lock()
	store := l.store
	highest := make([]semel.Token, len(reqs))
	completions := make([]*semel.Result, len(reqs))
	for i, req := range reqs {
		highest[i] = l.history(req.Key).highest
		if req.Done {
			completions[i] = l.completing(req.Key, semel.Result{})
		}
	}
	l.mu.Unlock()

	err := store.Claim(ctx, reqs, answers)

	l.mu.Lock()
	defer l.mu.Unlock()
	if len(answers) != len(reqs) {
		return err
	}
	for i, a := range answers {
		if err != nil && a.Decision == semel.Undecided && a.Err == nil {
			continue
		}
		l.check(reqs[i], a, highest[i])
		if completions[i] != nil && a.Decision != semel.Fresh {
			l.refused(reqs[i].Key, completions[i])
		}
	}
	return err
}

// check compares one answer with the history of its key.
func (l *ledger) check(req semel.ClaimRequest, a semel.ClaimAnswer, highest semel.Token) {
	l.tb.Helper()
	l.seen[a.Decision]++
	h := l.history(req.Key)
	switch {
	case a.Err != nil && a.Decision != semel.Undecided:
		l.tb.Errorf("claim of %s is answered %s and with the error %v", req.Key, a.Decision, a.Err)
		return
	case a.Err != nil:
		for _, allowed := range []error{semel.ErrInvalidKey, semel.ErrInvalidRequest, semel.ErrStoreFull, semel.ErrCorrupt} {
			if errors.Is(a.Err, allowed) {
				return
			}
		}
		l.tb.Errorf("claim of %s: the error of one key is not allowed: %v", req.Key, a.Err)
		return
	}
	switch a.Decision {
	case semel.Fresh:
		l.checkFresh(req, a, h, highest)
	case semel.Duplicate:
		l.checkDuplicate(req, a, h)
	case semel.InFlight, semel.OutcomeUnknown:
		l.checkHolder(req, a, h)
	case semel.Mismatch, semel.Late:
	default:
		l.tb.Errorf("claim of %s is answered %s without an error", req.Key, a.Decision)
	}
}

func (l *ledger) checkFresh(req semel.ClaimRequest, a semel.ClaimAnswer, h *history, highest semel.Token) {
	l.tb.Helper()
	token := a.Claim.Token
	if req.Done {
		if token != 0 {
			l.tb.Errorf("a claim of %s with Done is granted token %d, want 0", req.Key, token)
		}
		return
	}
	if token == 0 || a.Claim.Attempt < 1 || a.Claim.LeaseEnd.IsZero() {
		l.tb.Errorf("claim of %s is granted as %+v: token, attempt and lease end must be set", req.Key, a.Claim)
	}
	if before, ok := h.grants[token]; ok && before != req.Owner {
		l.tb.Errorf("token %d of %s is granted to %v, which %v had", token, req.Key, req.Owner, before)
	} else if !ok && token <= highest {
		l.tb.Errorf("claim of %s is granted token %d after %d: tokens must grow", req.Key, token, highest)
	}
	h.grants[token] = req.Owner
	h.highest = max(h.highest, token)
}

func (l *ledger) checkDuplicate(req semel.ClaimRequest, a semel.ClaimAnswer, h *history) {
	l.tb.Helper()
	if len(h.completions) == 0 {
		l.tb.Errorf("claim of %s is answered duplicate, but no caller completed it: the message is lost", req.Key)
		return
	}
	if !l.traits.Results {
		return
	}
	for _, c := range h.completions {
		if equalResults(*c, a.Result) {
			return
		}
	}
	l.tb.Errorf("claim of %s replays the result %s, which no caller gave this key", req.Key, describe(a.Result))
}

func (l *ledger) checkHolder(req semel.ClaimRequest, a semel.ClaimAnswer, h *history) {
	l.tb.Helper()
	if a.Claim.Token == 0 {
		l.tb.Errorf("claim of %s is answered %s without the present claim", req.Key, a.Decision)
	}
	if holder, ok := h.grants[a.Claim.Token]; ok && holder.Name != a.Holder {
		l.tb.Errorf("claim of %s is answered %s with holder %q, but token %d is held by %q",
			req.Key, a.Decision, a.Holder, a.Claim.Token, holder.Name)
	}
}

// Complete implements semel.Store.
func (l *ledger) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	l.mu.Lock()
	store := l.store
	completions := make([]*semel.Result, len(reqs))
	for i, req := range reqs {
		completions[i] = l.completing(req.Key, req.Result)
	}
	l.mu.Unlock()

	err := store.Complete(ctx, reqs, answers)

	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range min(len(reqs), len(answers)) {
		if answers[i] != nil && semel.Classify(answers[i]) == semel.ClassPermanent {
			l.refused(reqs[i].Key, completions[i])
		}
	}
	return err
}

// Release implements semel.Store.
func (l *ledger) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return l.current().Release(ctx, reqs, answers)
}

// Extend implements semel.Store.
func (l *ledger) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return l.current().Extend(ctx, reqs, answers)
}

// Traits implements semel.Store.
func (l *ledger) Traits() semel.Traits { return l.current().Traits() }

// resolving records that an operator completes a key.
func (l *ledger) resolving(key semel.Key, result semel.Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.completing(key, result)
}

func (l *ledger) current() semel.Store {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.store
}
