// Package register models one key of a store as a linearizable register.
package register

import (
	"fmt"

	"github.com/anishathalye/porcupine"

	"github.com/semel-dev/semel"
)

// Call is a client's request for one key.
type Call struct {
	Key    semel.Key
	Verb   string
	Owner  uint64
	Token  semel.Token
	Result string
	Short  bool // the lease or window may have ended before the next call
}

// Reply is the answer to a call. A cancelled call has no answer. It may take
// effect at any later time, or never.
type Reply struct {
	Known    bool
	Decision semel.Decision
	Claim    semel.Claim
	Result   string
	Stale    bool
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

// Model defines the states that may follow a call with its reply.
func Model() porcupine.Model {
	m := porcupine.NondeterministicModel{
		Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
			byKey := make(map[semel.Key][]porcupine.Operation)
			for _, op := range history {
				key := op.Input.(Call).Key
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
			for _, s := range after(state.(register), input.(Call), output.(Reply)) {
				next = append(next, s)
			}
			return next
		},
	}
	return m.ToModel()
}

// after returns the possible next states. It returns none if the reply is
// impossible.
func after(s register, c Call, r Reply) []register {
	if c.Verb == "claim" {
		return afterClaim(s, c, r)
	}
	holds := s.state == semel.Claimed && s.token == c.Token
	again := c.Verb == "complete" && s.state == semel.Done && s.token == c.Token
	changed := s
	switch c.Verb {
	case "complete":
		changed.state, changed.result, changed.short = semel.Done, c.Result, c.Short
	case "release":
		changed = register{highest: s.highest}
	case "extend":
		changed.short = c.Short
	}
	switch {
	case !r.Known && holds:
		return []register{s, changed}
	case !r.Known || again && (!r.Stale || s.short):
		return []register{s}
	case holds && !r.Stale:
		return []register{changed}
	case !holds && r.Stale:
		return []register{s}
	}
	return nil
}

func afterClaim(s register, c Call, r Reply) []register {
	own := s.state == semel.Claimed && s.owner == c.Owner
	free := s.state == semel.Absent || s.short && !own || s.short && s.state == semel.Claimed
	granted := register{state: semel.Claimed, token: r.Claim.Token, highest: r.Claim.Token, attempt: 1, owner: c.Owner, short: c.Short}
	if s.state == semel.Claimed {
		granted.attempt = s.attempt + 1
	}
	// The token of a cancelled claim becomes known when an answer shows it.
	bound, fits := s, s.token == r.Claim.Token
	if s.token == 0 && s.state == semel.Claimed {
		fits = r.Claim.Token > s.highest
		bound.token, bound.highest = r.Claim.Token, r.Claim.Token
	}
	var next []register
	if !r.Known {
		if next = append(next, s); free {
			granted.token, granted.highest = 0, max(s.highest, s.token)
			next = append(next, granted)
		}
		return next
	}
	switch r.Decision {
	case semel.Fresh:
		if own && fits && r.Claim.Attempt == s.attempt {
			next = append(next, bound)
		}
		if free && r.Claim.Token > s.highest && r.Claim.Attempt == granted.attempt {
			next = append(next, granted)
		}
	case semel.InFlight:
		if s.state == semel.Claimed && !own && fits && r.Claim.Attempt == s.attempt {
			next = append(next, bound)
		}
	case semel.Duplicate:
		if s.state == semel.Done && r.Result == s.result {
			next = append(next, s)
		}
	}
	return next
}

// Describe returns a call and its answer as text.
func Describe(op porcupine.Operation) string {
	c, r := op.Input.(Call), op.Output.(Reply)
	answer := "unknown"
	switch {
	case r.Known && c.Verb == "claim":
		answer = fmt.Sprintf("%s, token %d, attempt %d, %q", r.Decision, r.Claim.Token, r.Claim.Attempt, r.Result)
	case r.Known && r.Stale:
		answer = "stale"
	case r.Known:
		answer = "ok"
	}
	return fmt.Sprintf("[%d, %d] %s %s owner %d token %d %q short %t = %s",
		op.Call, op.Return, c.Verb, c.Key, c.Owner, c.Token, c.Result, c.Short, answer)
}
