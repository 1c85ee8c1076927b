package semel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// unused are claims whose answers were lost, or whose releases were, and for which no
// effect has happened. The store may have granted them, or may do so when it gets to them:
// a server that was stopped executes what it has received. Such a claim would block its
// key, and would later look as if its effect had begun.
//
// The next task with the key asks for the claim again, as its owner. Otherwise unused asks
// the store what became of it, and gives it back. A timer starts each question, so there
// is no goroutine while no answer was lost, and one question at a time. What the process
// leaves behind at its end stays in the store until its lease ends, and so does what is
// too much to remember.
type unused struct {
	guard *Guard
	count atomic.Int64 // of claims; most guards never have one

	mu     sync.Mutex // guards the fields below, and the fields of each claim
	claims map[Key][]*unusedClaim
	timer  *time.Timer
	next   time.Time // when the timer fires; zero if it does not
	busy   bool      // a question is under way
}

// mostUnused bounds the memory for unused claims.
const mostUnused = 1 << 14

// errTooManyUnused is why a claim is not remembered.
var errTooManyUnused = fmt.Errorf("the guard remembers no more than %d claims whose answers were lost, so its lease must end before the key is claimed again: %w", mostUnused, ErrOutcomeUnknown)

// unusedClaim is the claim of a task.
type unusedClaim struct {
	req     ClaimRequest
	private bool          // the store may release it later: no task takes it over
	asking  bool          // the store is being asked
	pause   time.Duration // until the next question
	due     time.Time     // of the next question
	// until is set when the store has answered that it has no such claim. It may still get a
	// claim that is under way, so it is asked until then.
	until time.Time
	// other is the record of the key if it is that of another claim of the guard.
	other recordID
}

// recordID tells one claimed record of a key from those before and after it.
type recordID struct {
	token     Token
	firstSeen time.Time
}

// abandon remembers the claims of tasks that are Lost and will not ask again.
func (u *unused) abandon(tasks []*Task) {
	for _, t := range tasks {
		if t.lost && !t.doubt && !t.delivered && !u.add(&unusedClaim{req: u.guard.request(t.Call, t.owner), private: t.left}) {
			u.guard.observeError(t.Call.Key, errTooManyUnused)
		}
		t.lost = false
	}
}

const (
	firstQuestion = 50 * time.Millisecond
	lastQuestion  = time.Second
)

// add reports whether there was room for a claim.
func (u *unused) add(c *unusedClaim) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count.Load() >= mostUnused {
		return false
	}
	u.count.Add(1)
	if u.claims == nil {
		u.claims = map[Key][]*unusedClaim{}
	}
	u.claims[c.req.Key] = append(u.claims[c.req.Key], c)
	c.pause = firstQuestion
	u.schedule(c, time.Now())
	return true
}

// take returns the owner of an unused claim that is the same as that of a call, and
// forgets the claim. The owner is zero if none exists. A claim whose release is under
// way is not taken over: it would end while the effect of the task runs.
func (u *unused) take(call *Call) Owner {
	if u.count.Load() == 0 {
		return Owner{}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, c := range u.claims[call.Key] {
		if !c.asking && !c.private && c.until.IsZero() && c.req.Fingerprint == call.Fingerprint {
			u.forget(c)
			return c.req.Owner
		}
	}
	return Owner{}
}

// forget removes a claim. The caller holds u.mu.
func (u *unused) forget(c *unusedClaim) {
	rest := slices.DeleteFunc(u.claims[c.req.Key], func(other *unusedClaim) bool { return other == c })
	if len(rest) == 0 {
		delete(u.claims, c.req.Key)
	} else {
		u.claims[c.req.Key] = rest
	}
	u.count.Add(-1)
}

// schedule sets the time of the next question about a claim. The end of a question that is
// under way sets the timer. The caller holds u.mu.
func (u *unused) schedule(c *unusedClaim, now time.Time) {
	c.due = now.Add(c.pause)
	c.pause = min(2*c.pause, lastQuestion)
	if u.busy || !u.next.IsZero() && !c.due.Before(u.next) {
		return
	}
	u.next = c.due
	if u.timer == nil {
		u.timer = time.AfterFunc(c.due.Sub(now), u.ask)
	} else {
		u.timer.Reset(c.due.Sub(now))
	}
}

// ask asks the store about the claims that are due, and gives the granted ones back.
func (u *unused) ask() {
	due := u.begin(time.Now())
	if len(due) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), u.guard.opts.Lease)
	defer cancel()
	fates := u.withdraw(ctx, due)
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	u.busy = false
	for i, c := range due {
		c.asking = false
		switch {
		case fates[i] == endedClaim, fates[i] == absentClaim && !c.until.IsZero() && now.After(c.until):
			u.forget(c)
			continue
		case fates[i] == absentClaim && c.until.IsZero():
			c.until = now.Add(u.guard.opts.Lease)
		}
		if fates[i] == absentClaim {
			c.pause = u.guard.opts.Heartbeat
		}
		u.schedule(c, now)
	}
	u.wake(now)
}

// begin returns the claims that are due, and otherwise sets the timer for the next one.
func (u *unused) begin(now time.Time) (due []*unusedClaim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.next = time.Time{}
	if u.busy {
		return nil
	}
	for _, list := range u.claims {
		for _, c := range list {
			if !c.due.After(now) {
				c.asking = true
				due = append(due, c)
			}
		}
	}
	if u.busy = len(due) > 0; !u.busy {
		u.wake(now)
	}
	return due
}

// wake sets the timer for the claim that is due next. The caller holds u.mu.
func (u *unused) wake(now time.Time) {
	u.next = time.Time{}
	for _, list := range u.claims {
		for _, c := range list {
			if u.next.IsZero() || c.due.Before(u.next) {
				u.next = c.due
			}
		}
	}
	if !u.next.IsZero() {
		u.timer.Reset(u.next.Sub(now))
	}
}

// claimFate is what the store knows of an unused claim.
type claimFate uint8

const (
	openClaim   claimFate = iota // it did not answer
	absentClaim                  // it has no such claim now
	endedClaim                   // nothing is left to ask
)

// errUnused is why a claim of unused is given back.
var errUnused = errors.New("an answer about the claim was lost, and no effect has happened")

// withdraw gives back claims that the store has granted. It reads the records first, so
// that it makes none. It also extends the lease of a record before it claims: the record may
// be that of another task of the guard, whose late completion a take-over would refuse.
func (u *unused) withdraw(ctx context.Context, claims []*unusedClaim) []claimFate {
	fates := make([]claimFate, len(claims))
	inspector, ok := As[Inspector](u.guard.store)
	if !ok { // a second look would claim again
		for i, fate := range u.giveBack(ctx, claims) {
			if fates[i] = fate; fate == absentClaim {
				fates[i] = endedClaim
			}
		}
		return fates
	}
	keys, records := make([]Key, len(claims)), make([]Record, len(claims))
	for i, c := range claims {
		keys[i] = c.req.Key
	}
	if err := inspector.Look(ctx, keys, records); err != nil {
		return unanswered(fates, err)
	}
	var at []int
	var leases []ExtendRequest
	for i, r := range records {
		if fates[i] = absentClaim; r.State == Claimed && r.Holder == claims[i].req.Owner.Name && claims[i].other != r.identity() {
			at = append(at, i)
			leases = append(leases, ExtendRequest{Key: keys[i], Token: r.Token, Lease: u.guard.opts.Lease})
		}
	}
	if len(at) == 0 {
		return fates
	}
	lasting := make([]ExtendAnswer, len(leases))
	if err := u.guard.store.Extend(ctx, leases, lasting); err != nil {
		for _, i := range at {
			fates[i] = openClaim
		}
		return unanswered(fates, err)
	}
	var ours []*unusedClaim
	n := 0
	for k, i := range at {
		if lasting[k].Err == nil { // otherwise the record has just changed
			ours = append(ours, claims[i])
			at[n] = i
			n++
		}
	}
	for k, fate := range u.giveBack(ctx, ours) {
		i := at[k]
		if fates[i] = fate; fate == absentClaim {
			claims[i].other = records[i].identity()
		}
	}
	return fates
}

func (r *Record) identity() recordID { return recordID{r.Token, r.FirstSeen} }

// giveBack asks for claims again, as their owners, and releases those that it gets.
func (u *unused) giveBack(ctx context.Context, claims []*unusedClaim) []claimFate {
	fates := make([]claimFate, len(claims))
	if len(claims) == 0 {
		return fates
	}
	reqs, answers := make([]ClaimRequest, len(claims)), make([]ClaimAnswer, len(claims))
	for i, c := range claims {
		reqs[i] = c.req
	}
	unanswered(fates, u.guard.store.Claim(ctx, reqs, answers))
	var held []*Task
	var at []int
	for i := range answers {
		switch a := &answers[i]; {
		case a.Decision == Fresh:
			claims[i].private = true // even if the answer to the release is lost; see take
			held, at = append(held, &Task{Call: &Call{Key: reqs[i].Key}, Claim: a.Claim}), append(at, i)
			u.guard.Observe(Event{Kind: EventReleased, Key: reqs[i].Key, Attempt: a.Claim.Attempt, Err: errUnused})
		case a.Decision != Undecided, a.Err != nil && Classify(a.Err) == ClassPermanent:
			fates[i] = absentClaim
		}
	}
	if len(held) == 0 {
		return fates
	}
	open := u.guard.NewBatch().release(ctx, held)
	for n, i := range at {
		if !slices.Contains(open, held[n]) {
			fates[i] = absentClaim
		}
	}
	return fates
}

// unanswered sets fates by the error of a whole call, and returns them. A store that is
// closed, for instance, no longer answers.
func unanswered(fates []claimFate, err error) []claimFate {
	if Classify(err) == ClassPermanent {
		for i := range fates {
			fates[i] = endedClaim
		}
	}
	return fates
}
