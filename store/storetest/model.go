package storetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/semel-dev/semel"
)

// model is the expected behaviour of a store in its simplest form. Keys are
// independent of each other. Where the contract leaves a choice, the model
// allows each one and follows the store's answer.
type model struct {
	traits semel.Traits
	slack  time.Duration // possible error of the suite's time
	now    time.Time
	keys   map[semel.Key]*expected
}

// expected is the expected record of a key.
type expected struct {
	state    semel.State
	claim    semel.Claim
	owner    semel.Owner
	hold     bool
	print    semel.Fingerprint
	vague    bool // the store may or may not have kept print
	result   semel.Result
	expires  time.Time     // zero means never
	maybe    time.Time     // until then, the store may still remember it
	inOne    bool          // completed by a Done claim of owner
	reopened bool          // completed before the store was opened
	void     bool          // the claim may have been forgotten
	orphan   bool          // the claim has Hold and its process has ended: it may already be unknown
	granted  time.Time     // when the claim was granted …
	window   time.Duration // … and its window
	released semel.Token
	past     []semel.Token // tokens that completed the key in earlier lives
}

func (m *model) key(k semel.Key) *expected {
	if m.keys[k] == nil {
		m.keys[k] = new(expected)
	}
	return m.keys[k]
}

// abandoned is the minimum time after its lease for which a store must remember
// an abandoned claim, so that the next claim gets its attempt. The store may
// forget it earlier if its window has ended. Claims whose messages never return
// would otherwise stay forever.
const abandoned = time.Hour

// settle updates a record to the current time. fading reports that a done
// record may or may not be forgotten.
func (m *model) settle(x *expected) (fading bool) {
	switch {
	case x.state == semel.Claimed && x.hold && !m.now.Before(x.claim.LeaseEnd):
		x.state = semel.Unknown
	case x.state == semel.Claimed && !x.hold && x.claim.LeaseEnd.Before(m.now) &&
		(m.now.Sub(x.granted) >= x.window || m.now.Sub(x.claim.LeaseEnd) >= abandoned):
		x.void = true
	case x.state == semel.Done && !x.expires.IsZero() && !m.now.Before(x.expires):
		if !m.now.Before(x.expires.Add(m.traits.Tick)) && !m.now.Before(x.maybe) {
			m.forget(x)
			return false
		}
		return true
	}
	return false
}

func (m *model) forget(x *expected) {
	past := x.past
	if x.state == semel.Done && x.claim.Token != 0 {
		past = append(past, x.claim.Token)
	}
	*x = expected{released: x.claim.Token, past: past}
}

// reopen applies the end of the process.
func (m *model) reopen() {
	for _, x := range m.keys {
		switch {
		case !m.traits.Durable:
			m.forget(x)
		case x.state == semel.Claimed:
			x.void, x.orphan = !x.hold && (x.void || !m.traits.DurableClaims), x.hold
		case x.state == semel.Done:
			x.reopened = true
		}
	}
}

// purge applies a purge, which may forget claims whose leases have ended.
func (m *model) purge() {
	for _, x := range m.keys {
		if x.state == semel.Claimed && !x.hold && !m.now.Before(x.claim.LeaseEnd) {
			x.void = true
		}
	}
}

// claimed compares the answer to a claim with the expected one. It returns a
// description of the fault, or "".
func (m *model) claimed(req semel.ClaimRequest, a semel.ClaimAnswer) string {
	x := m.key(req.Key)
	fading := m.settle(x)
	mismatch := !x.print.Matches(req.Fingerprint)
	switch {
	case a.Err != nil:
		return "the claim is refused: " + a.Err.Error()
	case a.Decision == semel.Fresh && fading && req.Done && x.inOne && x.owner == req.Owner:
		if x.maybe = m.now.Add(req.Window + m.traits.Tick); req.Window == semel.Forever {
			x.maybe = m.now.AddDate(1000, 0, 0)
		}
		return want(a, semel.Fresh) // it recognised itself, or started again
	case a.Decision == semel.Fresh && fading:
		m.forget(x)
	case a.Decision == semel.Fresh && x.state == semel.Claimed && x.void && !(x.owner == req.Owner && a.Claim.Token == x.claim.Token):
		return m.granted(x, req, a, "void")
	case a.Decision == semel.Late && fading:
		m.forget(x)
	case a.Decision == semel.Late && x.state == semel.Claimed && x.void:
		m.forget(x)
	case a.Decision == semel.OutcomeUnknown && x.orphan:
		x.state = semel.Unknown
	}
	if x.state != semel.Absent && mismatch && !x.vague {
		return want(a, semel.Mismatch)
	}
	if x.state != semel.Absent && mismatch && a.Decision == semel.Mismatch {
		return ""
	}
	switch x.state {
	case semel.Absent:
		if !req.Time.IsZero() && req.Window != semel.Forever && m.now.Sub(req.Time) > req.Window {
			return want(a, semel.Late)
		}
		return m.granted(x, req, a, "absent")
	case semel.Claimed:
		return m.claimedAgain(x, req, a)
	case semel.Unknown:
		return sameAs(a, semel.OutcomeUnknown, x)
	}
	if x.inOne && req.Done && x.owner == req.Owner {
		if a.Claim != (semel.Claim{}) {
			return fmt.Sprintf("a done claim that is repeated is answered with %+v", a.Claim)
		}
		return want(a, semel.Fresh)
	}
	if wrong := want(a, semel.Duplicate); wrong != "" {
		return wrong
	}
	if m.traits.Results && !equalResults(a.Result, x.result) {
		return fmt.Sprintf("the result is %s, want %s", describe(a.Result), describe(x.result))
	}
	return ""
}

// claimedAgain checks a claim of a key that is already claimed.
func (m *model) claimedAgain(x *expected, req semel.ClaimRequest, a semel.ClaimAnswer) string {
	ended := !m.now.Before(x.claim.LeaseEnd)
	if x.owner == req.Owner && !req.Done && a.Decision == semel.Fresh && a.Claim.Token == x.claim.Token {
		if a.Claim.Attempt != x.claim.Attempt {
			return fmt.Sprintf("the claim repeats itself with attempt %d, had %d", a.Claim.Attempt, x.claim.Attempt)
		}
		before, end := x.claim.LeaseEnd, m.now.Add(req.Lease)
		x.claim.LeaseEnd = a.Claim.LeaseEnd
		if end.Before(before) {
			end = before
		}
		if a.Claim.LeaseEnd.Before(end.Add(-m.slack)) || a.Claim.LeaseEnd.After(end.Add(m.slack+m.traits.Tick)) {
			return fmt.Sprintf("the repeated claim ends at %v, want %v", a.Claim.LeaseEnd, end)
		}
		return ""
	}
	if x.owner == req.Owner && !req.Done {
		return "the claim does not recognise itself"
	}
	if !ended {
		return sameAs(a, semel.InFlight, x)
	}
	return m.granted(x, req, a, "ended")
}

// granted checks a claim that must be granted.
func (m *model) granted(x *expected, req semel.ClaimRequest, a semel.ClaimAnswer, how string) string {
	if wrong := want(a, semel.Fresh); wrong != "" {
		return wrong
	}
	attempt, before := 1, *x
	if how == "ended" || how == "void" && a.Claim.Attempt > 1 {
		attempt = x.claim.Attempt + 1
	}
	*x = expected{owner: req.Owner, hold: req.Hold, print: req.Fingerprint, granted: m.now, window: req.Window, past: before.past}
	if how != "absent" && req.Fingerprint.IsZero() && !before.print.IsZero() {
		x.print, x.vague = before.print, true
	}
	if req.Done {
		x.state, x.inOne, x.expires = semel.Done, true, m.end(req.Window)
		if a.Claim.Token != 0 {
			return fmt.Sprintf("a claim with done has token %d", a.Claim.Token)
		}
		return ""
	}
	x.state, x.claim = semel.Claimed, a.Claim
	switch {
	case a.Claim.Attempt != attempt:
		return fmt.Sprintf("the attempt is %d, want %d", a.Claim.Attempt, attempt)
	case a.Claim.LeaseEnd.Before(m.now.Add(req.Lease-m.slack)) || a.Claim.LeaseEnd.After(m.now.Add(req.Lease+m.slack+m.traits.Tick)):
		return fmt.Sprintf("the lease ends at %v, want %v", a.Claim.LeaseEnd, m.now.Add(req.Lease))
	}
	return ""
}

// end returns the end of a window. Zero means never.
func (m *model) end(window time.Duration) time.Time {
	if window == semel.Forever {
		return time.Time{}
	}
	return m.now.Add(window)
}

func want(a semel.ClaimAnswer, d semel.Decision) string {
	if a.Decision != d {
		return fmt.Sprintf("the answer is %s, want %s", a.Decision, d)
	}
	return ""
}

// sameAs checks for an answer that shows the current claim.
func sameAs(a semel.ClaimAnswer, d semel.Decision, x *expected) string {
	if a.Decision != d || a.Claim.Token != x.claim.Token || a.Claim.Attempt != x.claim.Attempt || a.Holder != x.owner.Name {
		return fmt.Sprintf("the answer is %s, %+v of %q, want %s, %+v of %q", a.Decision, a.Claim, a.Holder, d, x.claim, x.owner.Name)
	}
	return ""
}

// holds reports whether a token certainly or possibly holds the key.
func (x *expected) holds(token semel.Token) bool {
	return (x.state == semel.Claimed || x.state == semel.Unknown) && x.claim.Token == token && token != 0
}

// completed compares the answer to a completion with the expected one.
func (m *model) completed(req semel.CompleteRequest, err error) string {
	x := m.key(req.Key)
	fading := m.settle(x)
	stale := errors.Is(err, semel.ErrStaleToken)
	switch again := x.state == semel.Done && !x.inOne && x.claim.Token == req.Token && req.Token != 0; {
	case x.holds(req.Token) && err == nil:
		x.state, x.void, x.orphan, x.result, x.expires = semel.Done, false, false, req.Result, m.end(req.Window)
		return ""
	case x.holds(req.Token) && x.void && stale:
		m.forget(x)
		return ""
	case again && (err == nil || stale && (fading || x.reopened)):
		return ""
	case x.state == semel.Done && err == nil && slices.Contains(x.past, req.Token):
		return "" // it did complete the key earlier, and the key is done
	case x.holds(req.Token) || again || !stale:
		return fmt.Sprintf("the completion is answered %v; the key is %s under token %d", err, x.state, x.claim.Token)
	}
	return ""
}

// released compares the answer to a release with the expected one.
func (m *model) released(req semel.ReleaseRequest, err error) string {
	x := m.key(req.Key)
	m.settle(x)
	stale := errors.Is(err, semel.ErrStaleToken)
	switch {
	case x.holds(req.Token) && err == nil:
		if x.void, x.orphan = false, false; req.Unknown {
			x.state = semel.Unknown
		} else {
			m.forget(x)
		}
		return ""
	case x.holds(req.Token) && stale && x.void:
		m.forget(x)
		return ""
	case x.state == semel.Absent && x.released == req.Token && err == nil:
		return "" // a repeated release
	case x.holds(req.Token) || !stale:
		return fmt.Sprintf("the release is answered %v; the key is %s under token %d", err, x.state, x.claim.Token)
	}
	return ""
}

// extended compares the answer to an extension with the expected one.
func (m *model) extended(req semel.ExtendRequest, a semel.ExtendAnswer) string {
	x := m.key(req.Key)
	m.settle(x)
	stale := errors.Is(a.Err, semel.ErrStaleToken)
	switch {
	case x.state == semel.Unknown && stale:
		return ""
	case x.state == semel.Unknown:
		return fmt.Sprintf("the extension of an unknown key is answered %v", a.Err)
	case x.holds(req.Token) && a.Err == nil:
		x.state, x.void, x.orphan, x.claim.LeaseEnd = semel.Claimed, false, false, a.LeaseEnd
		if end := m.now.Add(req.Lease); a.LeaseEnd.Before(end.Add(-m.slack)) || a.LeaseEnd.After(end.Add(m.slack+m.traits.Tick)) {
			return fmt.Sprintf("the lease ends at %v, want %v", a.LeaseEnd, end)
		}
		return ""
	case x.holds(req.Token) && stale && x.orphan:
		x.state = semel.Unknown
		return ""
	case x.holds(req.Token) && stale && x.void:
		m.forget(x)
		return ""
	case x.holds(req.Token) || !stale:
		return fmt.Sprintf("the extension is answered %v; the key is %s under token %d", a.Err, x.state, x.claim.Token)
	}
	return ""
}

// resolved compares the answer to a resolution with the expected one.
func (m *model) resolved(key semel.Key, as semel.State, result semel.Result, window time.Duration, err error) string {
	x := m.key(key)
	if m.settle(x); x.orphan && err == nil {
		x.state = semel.Unknown
	}
	switch {
	case x.state != semel.Unknown && errors.Is(err, semel.ErrNotUnknown):
	case x.state == semel.Unknown && err == nil && as == semel.Absent:
		m.forget(x)
	case x.state == semel.Unknown && err == nil:
		x.state, x.result, x.expires, x.vague = semel.Done, result, m.end(window), true
		x.claim = semel.Claim{} // the holder is now too late
	default:
		return fmt.Sprintf("to resolve as %s is answered %v; the key is %s", as, err, x.state)
	}
	return ""
}

// removed compares the answer to a removal with the expected one.
func (m *model) removed(key semel.Key, was bool, err error) string {
	x := m.key(key)
	maybe := m.settle(x) || x.void
	if err != nil || was != (x.state != semel.Absent) && !maybe {
		return fmt.Sprintf("to remove is answered %t, %v; the key is %s", was, err, x.state)
	}
	m.forget(x)
	return ""
}

// looked compares a record from a lookup with the expected one.
func (m *model) looked(key semel.Key, r semel.Record) string {
	x := m.key(key)
	maybe := m.settle(x) || x.void
	switch {
	case r.State == semel.Absent && maybe:
	case r.State == semel.Unknown && x.orphan:
		x.state = semel.Unknown
	case r.State != x.state:
		return fmt.Sprintf("look shows %s, want %s", r.State, x.state)
	case (x.state == semel.Claimed || x.state == semel.Unknown) && r.Token != x.claim.Token:
		return fmt.Sprintf("look shows token %d, want %d", r.Token, x.claim.Token)
	}
	return ""
}
