package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/semel-dev/semel"
)

// place is the storage of the reference store: a map behind a mutex. Several
// stores may be open on one place if its traits say Shared.
type place struct {
	traits semel.Traits
	bug    bug // none, except for the broken stores
	wall   func() time.Time

	mu      sync.Mutex // guards all fields below
	records map[semel.Key]record
	rules   map[string]string // of scopes
	lent    []byte            // with the bug lendsResults, the memory of the last answer
	last    semel.Token
	opened  int
	now     time.Time // the store's time, and the wall clock at the last check
	seen    time.Time
}

type record struct {
	semel.Record
	owner semel.Owner
	hold  bool
	inOne bool // completed by a Done claim of owner
	// granted is the lease's end before any extension.
	granted time.Time
	// unlisted: with the bug hidesTransacted, lists omit the ID.
	unlisted bool
}

// reference is the store that the suite accepts as correct.
type reference struct {
	*place
	closed bool
}

var (
	_ semel.Store     = (*reference)(nil)
	_ semel.Inspector = (*reference)(nil)
	_ semel.Resolver  = (*reference)(nil)
	_ semel.Purger    = (*reference)(nil)
)

// harnessOf returns the harness of a reference store with these traits.
func harnessOf(traits semel.Traits, b bug) Harness {
	h := Harness{New: func(tb testing.TB, now func() time.Time) func() (semel.Store, error) {
		p := &place{traits: traits, bug: b, wall: now, records: make(map[semel.Key]record), rules: make(map[string]string), now: now(), seen: now()}
		if b != leavesOutcomesOpen && b != forgetsClasses {
			return p.open
		}
		return func() (semel.Store, error) {
			store, err := p.open()
			if err != nil {
				return nil, err
			}
			return &unclassed{store.(*reference)}, nil
		}
	}}
	if traits.Transactional {
		h.Transact = transact
	}
	if !traits.Exact {
		h.Collide = func(semel.Store) (first, second semel.Key) {
			return semel.Key{Scope: "s", ID: "exact"}, semel.Key{Scope: "s", ID: "not exact"}
		}
	}
	return h
}

func (p *place) open() (semel.Store, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case !p.keeps():
		p = &place{traits: p.traits, bug: p.bug, wall: p.wall, records: make(map[semel.Key]record), rules: make(map[string]string), now: p.wall(), seen: p.wall(), last: p.firstToken()}
	case p.opened > 0 && !p.traits.Shared && p.bug == refusesWithoutClass:
		return nil, errors.New("open elsewhere")
	case p.opened > 0 && !p.traits.Shared:
		return nil, fmt.Errorf("open elsewhere: %w", semel.ErrStoreUnavailable)
	}
	if p.opened == 0 {
		p.endProcess()
	}
	p.opened++
	return &reference{place: p}, nil
}

// endProcess applies the end of the last process to its claims.
func (p *place) endProcess() {
	for key, rec := range p.records {
		switch {
		case rec.State != semel.Claimed || rec.hold:
		case !p.traits.DurableClaims || p.bug == losesClaimsOnReopen:
			delete(p.records, key)
		case p.bug == losesExtensionsOnReopen:
			rec.LeaseEnd = rec.granted
			p.records[key] = rec
		case p.bug == losesOwnersOnReopen:
			rec.owner = semel.Owner{}
			p.records[key] = rec
		}
	}
}

func (p *place) keeps() bool { return p.traits.Durable && p.bug != losesOnReopen }

// firstToken makes tokens grow across a reopen, even if nothing else is kept.
func (p *place) firstToken() semel.Token {
	if p.bug == restartsTokens {
		return 0
	}
	return semel.Token(p.wall().UnixNano()) + semel.Token(p.opened)<<40
}

// Close implements io.Closer.
func (r *reference) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.closed {
		r.closed = true
		r.opened--
	}
	return nil
}

// enter begins a call. It fails if the store is closed, if the context is
// cancelled, or if the numbers of requests and answers differ.
func (r *reference) enter(ctx context.Context, reqs, answers int) error {
	switch {
	case r.closed:
		return fmt.Errorf("reference: %w", semel.ErrClosed)
	case ctx.Err() != nil:
		return fmt.Errorf("reference: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
	case reqs != answers:
		return fmt.Errorf("reference: %d requests, %d answers: %w", reqs, answers, semel.ErrInvalidRequest)
	}
	r.tick()
	return nil
}

// tick reads the wall clock, which may step back.
func (p *place) tick() {
	wall := p.wall()
	if d := wall.Sub(p.seen); d > 0 || p.bug == followsWall {
		p.now = p.now.Add(d)
	}
	p.seen = wall
}

// key returns the key of a record in the map.
func (p *place) key(k semel.Key) semel.Key {
	switch {
	case p.bug == concatenates:
		return semel.Key{ID: k.Scope + k.ID}
	case !p.traits.Exact:
		k.ID = strings.TrimPrefix(k.ID, "not ")
	}
	return k
}

// get returns the record at the current time.
func (p *place) get(k semel.Key) record {
	rec := p.records[p.key(k)]
	switch {
	case rec.State == semel.Done && !rec.Expires.IsZero() && p.forgets(rec.Expires):
		delete(p.records, p.key(k))
		return record{}
	case rec.State == semel.Claimed && rec.hold && !p.now.Before(rec.LeaseEnd) && p.bug != retriesHold:
		rec.State = semel.Unknown
	case rec.State == semel.Unknown && p.bug == unknownExpires && !p.now.Before(rec.LeaseEnd.Add(time.Hour)):
		delete(p.records, p.key(k))
		return record{}
	}
	return rec
}

func (p *place) forgets(expires time.Time) bool {
	switch p.bug {
	case forgetsEarly:
		return p.now.After(expires.Add(-time.Second))
	case forgetsNever:
		return false
	case forgetsTooLate:
		expires = expires.Add(time.Second)
	}
	if t := p.traits.Tick; t > 0 { // as coarse as allowed
		expires = expires.Add(t - 1).Truncate(t)
	}
	return !p.now.Before(expires)
}

func (p *place) nextToken() semel.Token {
	p.last++
	return p.last
}

// Claim implements semel.Store.
func (r *reference) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	if r.claimBroken(ctx, reqs, answers) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, len(reqs), len(answers)); err != nil {
		return err
	}
	for i, req := range reqs {
		answers[i] = r.claim(req)
	}
	r.claimedBroken(reqs, answers)
	return nil
}

func (p *place) claim(req semel.ClaimRequest) semel.ClaimAnswer {
	if err := p.validate(req); err != nil {
		return semel.ClaimAnswer{Err: err}
	}
	rec := p.get(req.Key)
	held := rec.answer()
	switch ended := !p.now.Before(rec.LeaseEnd); {
	case rec.State == semel.Absent:
		if !req.Time.IsZero() && req.Window != semel.Forever && p.now.Sub(req.Time) > req.Window && p.bug != neverLate {
			return semel.ClaimAnswer{Decision: semel.Late}
		}
	case !rec.Fingerprint.Matches(req.Fingerprint) && !(p.bug == ignoresMismatchInFlight && rec.State == semel.Claimed):
		return semel.ClaimAnswer{Decision: semel.Mismatch, Claim: held.Claim}
	case rec.State == semel.Done && rec.inOne && req.Done && p.same(rec.owner, req.Owner):
		return semel.ClaimAnswer{Decision: semel.Fresh}
	case rec.State == semel.Done:
		return semel.ClaimAnswer{Decision: semel.Duplicate, Result: p.replay(req.Key, rec.Result)}
	case rec.State == semel.Unknown:
		held.Decision = semel.OutcomeUnknown
		return held
	case rec.owner == req.Owner && !req.Done && p.bug != forgetsOwner && (req.Owner != semel.Owner{} || p.bug == ownsNobodys):
		if end := p.now.Add(req.Lease); end.After(rec.LeaseEnd) && p.bug != keepsFirstLease {
			rec.LeaseEnd = end
			p.records[p.key(req.Key)] = rec
		}
		held = rec.answer()
		held.Decision, held.Holder = semel.Fresh, ""
		return held
	case !ended:
		held.Decision = semel.InFlight
		return held
	}
	return p.grant(req, rec)
}

// same reports whether two owners are the same owner who repeats a claim.
func (p *place) same(first, second semel.Owner) bool {
	switch p.bug {
	case forgetsDoneOwner:
		return false
	case comparesNonces:
		return first.Nonce == second.Nonce
	}
	return first == second && (first != semel.Owner{} || p.bug == ownsNobodys)
}

func (p *place) validate(req semel.ClaimRequest) error {
	if err := req.Key.Validate(); err != nil && !(p.bug == acceptsEmptyKey && req.Key.ID == "") {
		return err
	}
	if req.Window <= 0 || req.Lease <= 0 && !req.Done || len(req.Origin) > semel.MaxOriginBytes {
		return fmt.Errorf("reference: window %v, lease %v: %w", req.Window, req.Lease, semel.ErrInvalidRequest)
	}
	return nil
}

// answer returns an answer that shows the record's claim.
func (rec record) answer() semel.ClaimAnswer {
	return semel.ClaimAnswer{Claim: semel.Claim{Token: rec.Token, Attempt: rec.Attempt, LeaseEnd: rec.LeaseEnd}, Holder: rec.Holder}
}

func (p *place) grant(req semel.ClaimRequest, before record) semel.ClaimAnswer {
	rec := record{owner: req.Owner, hold: req.Hold, inOne: req.Done, Record: semel.Record{
		Key: req.Key, State: semel.Claimed, Attempt: before.Attempt + 1, Holder: req.Owner.Name,
		Fingerprint: req.Fingerprint, FirstSeen: p.now, LeaseEnd: p.now.Add(req.Lease),
	}}
	if before.State != semel.Absent {
		rec.FirstSeen = before.FirstSeen
	}
	if p.traits.Origins {
		rec.Origin = req.Origin
	}
	if p.bug == keepsFirstOrigin && before.Origin != "" {
		rec.Origin = before.Origin
	}
	if p.bug == losesAttempt {
		rec.Attempt = 1
	}
	if req.Done {
		rec.State, rec.LeaseEnd = semel.Done, time.Time{}
		p.keep(rec, req.Window)
		return semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: rec.Attempt}}
	}
	rec.Token, rec.granted = p.tokenFor(req.Key), rec.LeaseEnd
	p.records[p.key(req.Key)] = rec
	a := rec.answer()
	a.Decision, a.Holder = semel.Fresh, ""
	if p.bug == marksBeforeCompletion {
		rec.State = semel.Done
		p.keep(rec, req.Window)
	}
	return a
}

// keep stores a done record.
func (p *place) keep(rec record, window time.Duration) {
	if rec.Expires = p.now.Add(window); window == semel.Forever {
		rec.Expires = time.Time{}
	}
	if !p.traits.Results {
		rec.Result = semel.Result{}
	}
	rec.ResultSize = len(rec.Result.Data)
	p.records[p.key(rec.Key)] = rec
}

// stale returns the error of a token that does not hold the key.
func (p *place) stale(k semel.Key, token semel.Token) error {
	rec := p.get(k)
	return &semel.StaleTokenError{Key: k, Token: token, State: rec.State, Current: rec.Token}
}

// Complete implements semel.Store.
func (r *reference) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, len(reqs), len(answers)); err != nil {
		return err
	}
	for i, req := range reqs {
		answers[i] = r.complete(req)
	}
	return nil
}

func (p *place) complete(req semel.CompleteRequest) error {
	if err := req.Key.Validate(); err != nil {
		return err
	}
	rec := p.get(req.Key)
	holds := rec.State != semel.Absent && rec.Token == req.Token && req.Token != 0
	switch {
	case req.Window <= 0:
		return fmt.Errorf("reference: window %v: %w", req.Window, semel.ErrInvalidRequest)
	case p.bug == storesTooMuch:
		req.Result.Data = req.Result.Data[:min(int64(len(req.Result.Data)), p.traits.MaxResult)]
	}
	switch {
	case p.traits.MaxResult > 0 && int64(len(req.Result.Data)) > p.traits.MaxResult:
		return fmt.Errorf("reference: %d bytes: %w", len(req.Result.Data), semel.ErrResultTooLarge)
	case !holds && !(p.bug == ignoresTokenOnComplete && rec.State == semel.Claimed):
		return p.stale(req.Key, req.Token)
	case rec.State == semel.Done:
		return nil
	}
	rec.State, rec.LeaseEnd = semel.Done, time.Time{}
	rec.Result = semel.Result{Kind: req.Result.Kind, Data: bytes.Clone(req.Result.Data)}
	p.keep(rec, req.Window)
	return nil
}

// Release implements semel.Store.
func (r *reference) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, len(reqs), len(answers)); err != nil {
		return err
	}
	for i, req := range reqs {
		answers[i] = r.release(req)
	}
	return nil
}

func (p *place) release(req semel.ReleaseRequest) error {
	if err := req.Key.Validate(); err != nil {
		return err
	}
	rec := p.get(req.Key)
	open := rec.State == semel.Claimed || rec.State == semel.Unknown
	if !open || rec.Token != req.Token && p.bug != ignoresTokenOnRelease {
		return p.stale(req.Key, req.Token)
	}
	if !req.Unknown {
		delete(p.records, p.key(req.Key))
		return nil
	}
	rec.State = semel.Unknown
	p.records[p.key(req.Key)] = rec
	return nil
}

// Extend implements semel.Store.
func (r *reference) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, len(reqs), len(answers)); err != nil {
		return err
	}
	for i, req := range reqs {
		answers[i] = r.extend(req)
	}
	return nil
}

func (p *place) extend(req semel.ExtendRequest) semel.ExtendAnswer {
	if err := req.Key.Validate(); err != nil {
		return semel.ExtendAnswer{Err: err}
	}
	if req.Lease <= 0 {
		return semel.ExtendAnswer{Err: fmt.Errorf("reference: lease %v: %w", req.Lease, semel.ErrInvalidRequest)}
	}
	rec := p.get(req.Key)
	claimed := rec.State == semel.Claimed || rec.State == semel.Unknown && p.bug == extendsUnknown
	if !claimed || rec.Token != req.Token && p.bug != ignoresTokenOnExtend {
		return semel.ExtendAnswer{Err: p.stale(req.Key, req.Token)}
	}
	rec.State, rec.LeaseEnd = semel.Claimed, p.now.Add(req.Lease)
	p.records[p.key(req.Key)] = rec
	return semel.ExtendAnswer{LeaseEnd: rec.LeaseEnd}
}

// Traits implements semel.Store.
func (r *reference) Traits() semel.Traits { return r.traits }

// transact claims in a transaction. A rollback restores the whole place.
func transact(ctx context.Context, store semel.Store, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, commit bool) error {
	r := store.(*reference)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.enter(ctx, len(reqs), len(answers)); err != nil {
		return err
	}
	saved := make(map[semel.Key]record, len(r.records))
	for key, rec := range r.records {
		saved[key] = rec
	}
	for i, req := range reqs {
		if r.bug != keepsOwnerInTransaction {
			req.Owner = semel.Owner{} // the effect commits with the claim
		}
		answers[i] = r.claim(req)
		if rec, ok := r.records[r.key(req.Key)]; ok && r.bug == hidesTransacted {
			rec.unlisted = true
			r.records[r.key(req.Key)] = rec
		}
	}
	if !commit && r.bug != commitsAlways {
		r.records = saved
	}
	return nil
}
