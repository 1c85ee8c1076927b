package storetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/semel-dev/semel"
)

// bug is one fault that a store may have.
type bug string

const (
	none                    bug = ""
	marksBeforeCompletion   bug = "marks a key done when it is claimed"
	ignoresTokenOnComplete  bug = "ignores the token of a completion"
	ignoresTokenOnRelease   bug = "ignores the token of a release"
	ignoresTokenOnExtend    bug = "ignores the token of an extension"
	losesAttempt            bug = "loses the attempt at a take-over"
	forgetsOwner            bug = "takes its own claim for another's after a lost reply"
	forgetsDoneOwner        bug = "takes its own done claim for another's after a lost reply"
	comparesNonces          bug = "tells who made a key done by the nonce alone"
	keepsOwnerInTransaction bug = "takes a committed transaction for one whose answer was lost"
	ownsNobodys             bug = "takes all who do not say who they are for one"
	grantsTwiceInBatch      bug = "grants a key twice in one batch"
	forgetsEarly            bug = "forgets before the window ends"
	forgetsNever            bug = "never forgets"
	forgetsTooLate          bug = "remembers for longer than window and tick"
	dropsEmptyResult        bug = "makes an empty result none"
	mixesResults            bug = "replays another key's result"
	lendsResults            bug = "answers with memory that it uses again"
	concatenates            bug = "puts scope and id together"
	acceptsEmptyKey         bug = "accepts an empty key"
	ignoresMismatchInFlight bug = "does not see another payload in flight"
	retriesHold             bug = "treats hold as retry"
	unknownExpires          bug = "forgets unknown keys"
	checksThenInserts       bug = "checks first and inserts later"
	reusesTokens            bug = "restarts tokens after release"
	extendsUnknown          bug = "extends the lease of an unknown key"
	keepsFirstLease         bug = "answers a repeated claim with its first lease"
	neverLate               bug = "is never late"
	keepsFirstOrigin        bug = "keeps the origin of a claim that another took over"
	keepsCancelledClaims    bug = "keeps a claim that was cancelled for ever"
	followsWall             bug = "follows the wall clock back"
	losesOnReopen           bug = "says durable and is not"
	losesClaimsOnReopen     bug = "says that claims are durable and forgets them"
	losesExtensionsOnReopen bug = "forgets that a lease was extended"
	losesOwnersOnReopen     bug = "forgets who owns a claim"
	purgesClaims            bug = "purges claims"
	commitsAlways           bug = "commits what is rolled back"
	hidesTransacted         bug = "lists a key of a transaction without its id"
	bindsAgain              bug = "binds a scope to the newest rule"
	bindsNothing            bug = "binds a scope to an empty rule"
	restartsTokens          bug = "restarts its tokens when it is opened again"
	leavesOutcomesOpen      bug = "says of each refusal that its outcome is unknown"
	forgetsClasses          bug = "refuses with errors that have no class"
	storesTooMuch           bug = "cuts a result that is too large"
	refusesWithoutClass     bug = "refuses a second opener with an error without a class"
)

// claimBroken makes a claim with the bug, if it is a bug of claims.
func (r *reference) claimBroken(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) bool {
	switch {
	case r.bug == keepsCancelledClaims && ctx.Err() != nil:
		// The call returns before it knows its answer, but the claim is made
		// under a name that no caller uses.
		for i := range reqs {
			req := reqs[i]
			req.Owner, req.Lease = semel.Owner{}, semel.Forever/2
			r.mu.Lock()
			r.claim(req)
			r.mu.Unlock()
		}
	case r.bug == checksThenInserts && len(reqs) == 1 && len(answers) == 1:
		r.mu.Lock()
		r.tick()
		absent := r.get(reqs[0].Key).State == semel.Absent && r.validate(reqs[0]) == nil && reqs[0].Time.IsZero() && !r.closed && ctx.Err() == nil
		r.mu.Unlock()
		if !absent {
			return false
		}
		runtime.Gosched() // the race
		r.mu.Lock()
		answers[0] = r.grant(reqs[0], record{})
		r.mu.Unlock()
		return true
	}
	return false
}

// claimedBroken changes correct answers into those of a bug.
func (r *reference) claimedBroken(reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) {
	if r.bug != grantsTwiceInBatch {
		return
	}
	fresh := make(map[semel.Key]bool)
	for i, req := range reqs {
		if fresh[req.Key] {
			r.last++
			answers[i].Decision, answers[i].Claim.Token, answers[i].Result = semel.Fresh, r.last, semel.Result{}
			if req.Done {
				answers[i].Claim.Token = 0
			}
		}
		fresh[req.Key] = fresh[req.Key] || answers[i].Decision == semel.Fresh
	}
}

// replay returns the result of a duplicate.
func (p *place) replay(key semel.Key, result semel.Result) semel.Result {
	switch {
	case p.bug == dropsEmptyResult && len(result.Data) == 0:
		return semel.Result{}
	case p.bug == mixesResults:
		for other, rec := range p.records {
			if other != key && rec.State == semel.Done {
				return rec.Result
			}
		}
	case p.bug == lendsResults:
		p.lent = append(p.lent[:0], result.Data...)
		result.Data = p.lent
	}
	return result
}

// tokenFor returns the token of a new claim.
func (p *place) tokenFor(key semel.Key) semel.Token {
	if p.bug != reusesTokens {
		return p.nextToken()
	}
	return p.records[p.key(key)].Token + 1
}

// unclassed is a store whose refusals of single keys have the wrong class.
type unclassed struct{ *reference }

func (u *unclassed) change(err error) error {
	switch {
	case err == nil:
		return nil
	case u.bug == leavesOutcomesOpen:
		return fmt.Errorf("%w: %w", semel.ErrOutcomeUnknown, err)
	}
	return errors.New(err.Error())
}

// Complete implements semel.Store.
func (u *unclassed) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	err := u.reference.Complete(ctx, reqs, answers)
	for i := range answers {
		answers[i] = u.change(answers[i])
	}
	return err
}
