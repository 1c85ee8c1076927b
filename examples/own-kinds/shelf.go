package main

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/connector"
	"github.com/semel-dev/semel/doctor"
)

// shelfKind is a kind of store: keys in memory, up to a number of them.
type shelfKind struct{ most int }

var _ interface {
	connector.Store
	connector.Linter
} = (*shelfKind)(nil)

func newShelf() connector.Store { return &shelfKind{} }

// Kind implements connector.Kind.
func (*shelfKind) Kind() string { return "shelf" }

// Fields implements connector.Kind.
func (k *shelfKind) Fields() (doc string, fields []connector.Field) {
	return "Keys in memory, for one process.", []connector.Field{
		{Name: "most", Value: &k.most, Doc: "How many keys it keeps.", Least: 1, Most: 1_000_000, Default: "100000"},
	}
}

// About implements connector.Store.
func (*shelfKind) About() connector.StoreAbout {
	return connector.StoreAbout{ClaimsEnd: true, BestEffort: true, Gaps: []string{"after the end of the process every message has its effect again"}}
}

// Lint implements connector.Linter.
func (k *shelfKind) Lint() []connector.Finding {
	return []connector.Finding{{
		Severity: doctor.Warning, Repeat: true, Found: "a shelf forgets its keys at the end of the process",
		Cost: "repeated messages have their effect again", Remedy: "use a store that lasts",
	}}
}

// Open implements connector.Store.
func (k *shelfKind) Open(context.Context, *connector.Env) (semel.Store, error) {
	return open(k.most, time.Now), nil
}

// shelf is an open store. All its methods are safe for concurrent use.
type shelf struct {
	most int
	wall func() time.Time

	mu        sync.Mutex // guards the fields below
	closed    bool
	records   map[semel.Key]record
	token     semel.Token // the last one
	now, seen time.Time   // of the store, and of the wall clock when it was last read
}

type record struct {
	semel.Record
	owner semel.Owner
	hold  bool
	inOne bool // completed by a claim with Done
}

func open(most int, wall func() time.Time) *shelf {
	now := wall()
	return &shelf{most: most, wall: wall, records: map[semel.Key]record{}, token: semel.Token(now.UnixNano()), now: now, seen: now}
}

var _ semel.Store = (*shelf)(nil)

// Traits implements semel.Store.
func (*shelf) Traits() semel.Traits { return semel.Traits{Exact: true, Results: true} }

// Close implements io.Closer.
func (s *shelf) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// each decides the requests of a call one by one. The store's time never steps back.
func (s *shelf) each(ctx context.Context, reqs, answers int, decide func(i int)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return fmt.Errorf("shelf: %w", semel.ErrClosed)
	case ctx.Err() != nil:
		return fmt.Errorf("shelf: %w: %w", semel.ErrStoreUnavailable, context.Cause(ctx))
	case reqs != answers:
		return fmt.Errorf("shelf: %d requests, %d answers: %w", reqs, answers, semel.ErrInvalidRequest)
	}
	wall := s.wall()
	s.now, s.seen = s.now.Add(max(wall.Sub(s.seen), 0)), wall
	for i := range reqs {
		decide(i)
	}
	return nil
}

// get returns the record of a key as it is now.
func (s *shelf) get(key semel.Key) record {
	r := s.records[key]
	switch {
	case r.State == semel.Done && !r.Expires.IsZero() && !s.now.Before(r.Expires):
		delete(s.records, key)
		return record{}
	case r.State == semel.Claimed && r.hold && !s.now.Before(r.LeaseEnd):
		r.State = semel.Unknown
	}
	return r
}

// claim returns what a record says of its claim.
func (r *record) claim() semel.Claim {
	return semel.Claim{Token: r.Token, Attempt: r.Attempt, LeaseEnd: r.LeaseEnd}
}

// Claim implements semel.Store.
func (s *shelf) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	return s.each(ctx, len(reqs), len(answers), func(i int) { answers[i] = s.decide(&reqs[i]) })
}

func (s *shelf) decide(req *semel.ClaimRequest) semel.ClaimAnswer {
	if err := req.Validate(); err != nil {
		return semel.ClaimAnswer{Err: err}
	}
	r := s.get(req.Key)
	own := r.owner == req.Owner && req.Owner != semel.Owner{}
	switch {
	case r.State == semel.Absent && req.Late(s.now):
		return semel.ClaimAnswer{Decision: semel.Late}
	case r.State == semel.Absent && len(s.records) >= s.most:
		return semel.ClaimAnswer{Err: fmt.Errorf("shelf: it has %d keys: %w", s.most, semel.ErrStoreFull)}
	case r.State == semel.Absent:
		return s.grant(req, r)
	case !r.Fingerprint.Matches(req.Fingerprint):
		return semel.ClaimAnswer{Decision: semel.Mismatch, Claim: r.claim()}
	case r.State == semel.Done && r.inOne && req.Done && own:
		return semel.ClaimAnswer{Decision: semel.Fresh}
	case r.State == semel.Done:
		return semel.ClaimAnswer{Decision: semel.Duplicate, Result: copied(r.Result)}
	case r.State == semel.Unknown:
		return semel.ClaimAnswer{Decision: semel.OutcomeUnknown, Claim: r.claim(), Holder: r.Holder}
	case own && !req.Done: // a repeated request
		if end := s.now.Add(req.Lease); end.After(r.LeaseEnd) {
			r.LeaseEnd = end
			s.records[req.Key] = r
		}
		return semel.ClaimAnswer{Decision: semel.Fresh, Claim: r.claim()}
	case s.now.Before(r.LeaseEnd):
		return semel.ClaimAnswer{Decision: semel.InFlight, Claim: r.claim(), Holder: r.Holder}
	}
	return s.grant(req, r)
}

// grant gives a key to a request. before is its record.
func (s *shelf) grant(req *semel.ClaimRequest, before record) semel.ClaimAnswer {
	r := record{owner: req.Owner, hold: req.Hold, inOne: req.Done, Record: semel.Record{
		Key: req.Key, State: semel.Claimed, Attempt: before.Attempt + 1, Holder: req.Owner.Name, Fingerprint: req.Fingerprint, FirstSeen: s.now,
	}}
	if before.State != semel.Absent {
		r.FirstSeen = before.FirstSeen
	}
	if req.Done {
		s.keep(r, semel.Result{}, req.Window)
		return semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: r.Attempt}}
	}
	s.token++
	r.Token, r.LeaseEnd = s.token, s.now.Add(req.Lease)
	s.records[req.Key] = r
	return semel.ClaimAnswer{Decision: semel.Fresh, Claim: r.claim()}
}

// keep remembers a key that is done.
func (s *shelf) keep(r record, result semel.Result, window time.Duration) {
	r.State, r.LeaseEnd, r.Result, r.ResultSize = semel.Done, time.Time{}, copied(result), len(result.Data)
	if window != semel.Forever {
		r.Expires = s.now.Add(window)
	}
	s.records[r.Key] = r
}

// copied returns a result with memory of its own: that of a request belongs to the caller.
func copied(r semel.Result) semel.Result {
	r.Data = bytes.Clone(r.Data)
	return r
}

// stale is the answer to a token that does not hold a key.
func stale(key semel.Key, token semel.Token, r *record) error {
	return &semel.StaleTokenError{Key: key, Token: token, State: r.State, Current: r.Token}
}

// Complete implements semel.Store.
func (s *shelf) Complete(ctx context.Context, reqs []semel.CompleteRequest, answers []error) error {
	return s.each(ctx, len(reqs), len(answers), func(i int) {
		req := &reqs[i]
		if answers[i] = req.Validate(0); answers[i] != nil {
			return
		}
		switch r := s.get(req.Key); {
		case r.State == semel.Absent || r.Token != req.Token || req.Token == 0:
			answers[i] = stale(req.Key, req.Token, &r)
		case r.State != semel.Done: // otherwise the request was repeated
			s.keep(r, req.Result, req.Window)
		}
	})
}

// Release implements semel.Store.
func (s *shelf) Release(ctx context.Context, reqs []semel.ReleaseRequest, answers []error) error {
	return s.each(ctx, len(reqs), len(answers), func(i int) {
		req := &reqs[i]
		if answers[i] = req.Validate(); answers[i] != nil {
			return
		}
		switch r := s.get(req.Key); {
		case r.State != semel.Claimed && r.State != semel.Unknown || r.Token != req.Token:
			answers[i] = stale(req.Key, req.Token, &r)
		case req.Unknown:
			r.State = semel.Unknown
			s.records[req.Key] = r
		default:
			delete(s.records, req.Key)
		}
	})
}

// Extend implements semel.Store.
func (s *shelf) Extend(ctx context.Context, reqs []semel.ExtendRequest, answers []semel.ExtendAnswer) error {
	return s.each(ctx, len(reqs), len(answers), func(i int) {
		req := &reqs[i]
		if answers[i].Err = req.Validate(); answers[i].Err != nil {
			return
		}
		r := s.get(req.Key)
		if r.State != semel.Claimed || r.Token != req.Token {
			answers[i].Err = stale(req.Key, req.Token, &r)
			return
		}
		r.LeaseEnd = s.now.Add(req.Lease)
		s.records[req.Key] = r
		answers[i].LeaseEnd = r.LeaseEnd
	})
}

var _ semel.Inspector = (*shelf)(nil)

// Look implements semel.Inspector.
func (s *shelf) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	return s.each(ctx, len(keys), len(records), func(i int) {
		if records[i] = s.get(keys[i]).Record; records[i].State == semel.Absent {
			records[i].Key = keys[i]
		}
	})
}

// List implements semel.Inspector.
func (s *shelf) List(ctx context.Context, opts semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		var list []semel.Record
		err := s.each(ctx, 0, 0, nil)
		s.mu.Lock()
		for key := range s.records {
			if r := s.get(key).Record; err == nil && r.State != semel.Absent && opts.Selects(&r) {
				r.Result.Data = nil
				list = append(list, r)
			}
		}
		s.mu.Unlock() // what the caller does may take long
		for _, r := range list {
			if !yield(r, nil) {
				return
			}
		}
		if err != nil {
			yield(semel.Record{}, err)
		}
	}
}

// Count implements semel.Inspector.
func (s *shelf) Count(ctx context.Context) (c semel.Counts, err error) {
	if err := s.each(ctx, 0, 0, nil); err != nil {
		return c, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.records {
		r := s.get(key)
		switch r.State {
		case semel.Claimed:
			c.Claimed++
		case semel.Unknown:
			c.Unknown++
		case semel.Done:
			c.Done++
			c.Oldest = max(c.Oldest, s.now.Sub(r.FirstSeen))
		}
		c.MemoryBytes += int64(len(key.Scope) + len(key.ID) + r.ResultSize + 300)
	}
	return c, nil
}
