package semel

import (
	"context"
	"errors"
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
// is no goroutine while no answer was lost. What the process leaves behind at its end
// stays in the store until its lease ends.
type unused struct {
	guard *Guard
	count atomic.Int64 // of claims; most guards never have one

	mu     sync.Mutex // guards the fields below, and the fields of each claim
	claims map[Key][]*unusedClaim
	timer  *time.Timer
	next   time.Time // when the timer fires; zero if it does not
}

// mostUnused bounds the memory for unused claims.
const mostUnused = 1 << 14

// unusedClaim is the claim of a task.
type unusedClaim struct {
	req     ClaimRequest
	private bool          // the store may release it later: no task takes it over
	asking  bool          // the store is being asked
	pause   time.Duration // until the next question
	due     time.Time     // of the next question
	// until is set when the store has answered that it has no such claim. It may still get
	// one that is under way, so it is asked until then.
	until time.Time
}

// abandon remembers the claims of tasks that are Lost and will not ask again.
func (u *unused) abandon(tasks []*Task) {
	for _, t := range tasks {
		if t.lost && !t.doubt && !t.delivered {
			u.add(&unusedClaim{req: u.guard.request(t.Call, t.owner), private: t.left})
		}
		t.lost = false
	}
}

const (
	firstQuestion = 50 * time.Millisecond
	lastQuestion  = time.Second
)

func (u *unused) add(c *unusedClaim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.count.Load() >= mostUnused {
		return
	}
	u.count.Add(1)
	if u.claims == nil {
		u.claims = map[Key][]*unusedClaim{}
	}
	u.claims[c.req.Key] = append(u.claims[c.req.Key], c)
	c.pause = firstQuestion
	u.schedule(c, time.Now())
}

// take returns the owner of an unused claim that is the same as that of a call, and
// forgets the claim. The owner is zero if there is none. A claim whose release is under
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

// schedule sets the time of the next question about a claim. The caller holds u.mu.
func (u *unused) schedule(c *unusedClaim, now time.Time) {
	c.due = now.Add(c.pause)
	c.pause = min(2*c.pause, lastQuestion)
	if !u.next.IsZero() && !c.due.Before(u.next) {
		return
	}
	u.next = c.due
	if u.timer == nil {
		u.timer = time.AfterFunc(c.due.Sub(now), u.ask)
	} else {
		u.timer.Reset(c.due.Sub(now))
	}
}

// ask asks the store about the claims that are due, and gives back those that it has.
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
}

// begin returns the claims that are due, and sets the timer for the others.
func (u *unused) begin(now time.Time) (due []*unusedClaim) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.next = time.Time{}
	var next *unusedClaim
	for _, list := range u.claims {
		for _, c := range list {
			switch {
			case c.asking:
			case !c.due.After(now):
				c.asking = true
				due = append(due, c)
			case next == nil || c.due.Before(next.due):
				next = c
			}
		}
	}
	if next != nil {
		u.next = next.due
		u.timer.Reset(next.due.Sub(now))
	}
	return due
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
// that it makes none.
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
	var ours []*unusedClaim
	var at []int
	for i := range records {
		if fates[i] = absentClaim; records[i].State == Claimed && records[i].Holder == claims[i].req.Owner.Name {
			ours, at = append(ours, claims[i]), append(at, i)
		}
	}
	for n, fate := range u.giveBack(ctx, ours) {
		fates[at[n]] = fate
	}
	return fates
}

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
// closed, for instance, will not answer any more.
func unanswered(fates []claimFate, err error) []claimFate {
	if Classify(err) == ClassPermanent {
		for i := range fates {
			fates[i] = endedClaim
		}
	}
	return fates
}
