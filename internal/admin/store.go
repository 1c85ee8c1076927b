package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// Store is a store that another process has open. It can do what operators need: read
// records, settle them, and mark keys as done. It cannot process messages. Each method
// blocks for one answer of the process. All are safe for concurrent use.
type Store struct {
	client *Client
	name   string
}

// auditor is a store with an audit log.
type auditor interface {
	Audit(ctx context.Context, line []byte) error
}

// AuditTail is a store, or a place of parked messages, with an audit log that can be read. The
// newest line comes last.
type AuditTail interface {
	AuditTail(ctx context.Context, most int) ([][]byte, error)
}

// ScopeLister is a store that knows which scopes are bound to a rule.
type ScopeLister interface {
	BoundScopes(ctx context.Context) ([]string, error)
}

var (
	_ ScopeLister          = (*Store)(nil)
	_ semel.Inspector      = (*Store)(nil)
	_ semel.Resolver       = (*Store)(nil)
	_ semel.DigestResolver = (*Store)(nil)
	_ semel.Purger         = (*Store)(nil)
	_ semel.ScopeBinder    = (*Store)(nil)
	_ auditor              = (*Store)(nil)
	_ AuditTail            = (*Store)(nil)
	_ AuditTail            = (*DeadLetters)(nil)
)

// Store returns a store of the process; "" is the store whose socket was dialled.
func (c *Client) Store(name string) *Store { return &Store{c, name} }

// ask sends a question about the store.
func (s *Store) ask(ctx context.Context, q question, each func(*answer) bool) error {
	q.Store = s.name
	return s.client.ask(ctx, &q, each)
}

// one sends a question whose answer has one line at most, and returns it.
func (s *Store) one(ctx context.Context, q question) (line answer, err error) {
	err = s.ask(ctx, q, func(a *answer) bool {
		line = *a
		return true
	})
	return line, err
}

// orZero returns a part of an answer, or its zero value if the answer lacks it.
func orZero[T any](part *T) (value T) {
	if part != nil {
		value = *part
	}
	return value
}

// Look implements semel.Inspector.
func (s *Store) Look(ctx context.Context, keys []semel.Key, records []semel.Record) error {
	n := 0
	err := s.ask(ctx, question{Verb: verbLook, Keys: toWire(keys...)}, func(a *answer) bool {
		if a.Record != nil && n < len(records) {
			records[n] = a.Record.plain()
			n++
		}
		return true
	})
	if err == nil && n != len(keys) {
		err = fmt.Errorf("%d answers for %d keys: use the same version of semel", n, len(keys))
	}
	return err
}

// List implements semel.Inspector.
func (s *Store) List(ctx context.Context, opts semel.ListOptions) iter.Seq2[semel.Record, error] {
	return func(yield func(semel.Record, error) bool) {
		stopped := false
		err := s.ask(ctx, question{Verb: verbList, Scope: (*text)(opts.Scope), State: opts.State}, func(a *answer) bool {
			stopped = a.Record != nil && !yield(a.Record.plain(), nil)
			return !stopped
		})
		if err != nil && !stopped {
			yield(semel.Record{}, err)
		}
	}
}

// Count implements semel.Inspector.
func (s *Store) Count(ctx context.Context) (semel.Counts, error) {
	a, err := s.one(ctx, question{Verb: verbCount})
	return orZero(a.Counts), err
}

// BindScope implements semel.ScopeBinder for an empty rule. It binds nothing: the
// process binds the scopes of its pipelines itself.
func (s *Store) BindScope(ctx context.Context, scope, rule string) (bound string, _ error) {
	if rule != "" {
		return "", errOnlyDone
	}
	a, err := s.one(ctx, question{Verb: verbRule, Scope: (*text)(&scope)})
	return string(orZero(a.Rule)), err
}

// BoundScopes implements ScopeLister.
func (s *Store) BoundScopes(ctx context.Context) (scopes []string, err error) {
	err = s.ask(ctx, question{Verb: verbScopes}, func(a *answer) bool {
		if a.Scope != nil {
			scopes = append(scopes, string(*a.Scope))
		}
		return true
	})
	return scopes, err
}

// LookDigest implements semel.DigestResolver.
func (s *Store) LookDigest(ctx context.Context, d semel.Digest) (semel.Record, error) {
	a, err := s.one(ctx, question{Verb: verbLookDigest, Digest: d})
	record := orZero(a.Record)
	return record.plain(), err
}

// Resolve implements semel.Resolver.
func (s *Store) Resolve(ctx context.Context, req semel.ResolveRequest) error {
	_, err := s.one(ctx, question{Verb: verbResolve, Keys: toWire(req.Key), As: req.As, Result: req.Result, Window: req.Window})
	return err
}

// ResolveDigest implements semel.DigestResolver.
func (s *Store) ResolveDigest(ctx context.Context, d semel.Digest, req semel.ResolveRequest) error {
	_, err := s.one(ctx, question{Verb: verbResolveDigest, Digest: d, As: req.As, Result: req.Result, Window: req.Window})
	return err
}

// Remove implements semel.Resolver.
func (s *Store) Remove(ctx context.Context, key semel.Key) (bool, error) {
	a, err := s.one(ctx, question{Verb: verbRemove, Keys: toWire(key)})
	return orZero(a.Found), err
}

// RemoveDigest implements semel.DigestResolver.
func (s *Store) RemoveDigest(ctx context.Context, d semel.Digest) (bool, error) {
	a, err := s.one(ctx, question{Verb: verbRemoveDigest, Digest: d})
	return orZero(a.Found), err
}

// Purge implements semel.Purger.
func (s *Store) Purge(ctx context.Context) (int64, error) {
	a, err := s.one(ctx, question{Verb: verbPurge})
	return orZero(a.Purged), err
}

// Audit appends a line to the audit log of the store. It returns when the line is as
// durable as the store.
func (s *Store) Audit(ctx context.Context, line []byte) error {
	_, err := s.one(ctx, question{Verb: verbAudit, Line: json.RawMessage(line)})
	return err
}

// Journal returns the journal that the process has of the keys, of all of them together.
func (s *Store) Journal(ctx context.Context, keys []semel.Key) (all KeyJournal, err error) {
	err = s.ask(ctx, question{Verb: verbJournal, Keys: toWire(keys...)}, func(a *answer) bool {
		if j := a.Journal; j != nil {
			all = KeyJournal{j.Since, j.Start, append(all.Entries, j.Entries...), append(all.Now, j.Now...)}
		}
		return true
	})
	return all, err
}

// AuditTail implements AuditTail. A store that keeps no audit log has no lines.
func (s *Store) AuditTail(ctx context.Context, most int) ([][]byte, error) {
	return s.client.auditTail(ctx, &question{Verb: verbAuditTail, Store: s.name, Most: most})
}

// auditTail asks for the last lines of an audit log.
func (c *Client) auditTail(ctx context.Context, q *question) (lines [][]byte, err error) {
	err = c.ask(ctx, q, func(a *answer) bool {
		if a.Line != nil {
			lines = append(lines, a.Line)
		}
		return true
	})
	return lines, err
}

// Claim implements semel.Store for claims with Done.
func (s *Store) Claim(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer) error {
	q, n := question{Verb: verbClaim}, 0
	for _, r := range reqs {
		if !r.Done {
			return errOnlyDone
		}
		q.Claims = append(q.Claims, wireClaim{r, wireOf(r.Key)})
	}
	err := s.ask(ctx, q, func(a *answer) bool {
		if a.Claimed != nil && n < len(answers) {
			answers[n] = a.Claimed.ClaimAnswer
			answers[n].Err = a.Claimed.Err.plain()
			n++
		}
		return true
	})
	if err == nil && n != len(reqs) {
		err = fmt.Errorf("%d answers for %d claims: use the same version of semel", n, len(reqs))
	}
	return err
}

// Complete implements semel.Store. It refuses.
func (s *Store) Complete(context.Context, []semel.CompleteRequest, []error) error { return errOnlyDone }

// Release implements semel.Store. It refuses.
func (s *Store) Release(context.Context, []semel.ReleaseRequest, []error) error { return errOnlyDone }

// Extend implements semel.Store. It refuses.
func (s *Store) Extend(context.Context, []semel.ExtendRequest, []semel.ExtendAnswer) error {
	return errOnlyDone
}

// Traits implements semel.Store. A store of another process promises nothing by itself.
func (s *Store) Traits() semel.Traits { return semel.Traits{} }

// DeadLetters are the parked messages of a pipeline of the process. They can be read,
// not settled.
type DeadLetters struct {
	client   *Client
	pipeline string
}

var _ pipeline.DeadLetters = (*DeadLetters)(nil)

// Parked returns the parked messages of a pipeline of the process. Closing them closes
// the client.
func (c *Client) Parked(pipeline string) *DeadLetters { return &DeadLetters{c, pipeline} }

// List implements pipeline.DeadLetters.
func (l *DeadLetters) List(ctx context.Context, name string, fn func(*pipeline.Parked) bool) error {
	return l.client.ask(ctx, &question{Verb: verbParked, Pipeline: name}, func(a *answer) bool {
		return a.Parked == nil || fn(a.Parked)
	})
}

// Get implements pipeline.DeadLetters.
func (l *DeadLetters) Get(ctx context.Context, id string) (found *pipeline.Parked, err error) {
	if id == "" {
		return nil, pipeline.ErrNotParked
	}
	err = l.client.ask(ctx, &question{Verb: verbParked, Pipeline: l.pipeline, ID: id}, func(a *answer) bool {
		found = a.Parked
		return true
	})
	if err == nil && found == nil {
		err = fmt.Errorf("%s: %w", id, pipeline.ErrNotParked)
	}
	return found, err
}

// AuditTail implements AuditTail. A process whose parked messages have no audit log of their own
// has no lines.
func (l *DeadLetters) AuditTail(ctx context.Context, most int) ([][]byte, error) {
	return l.client.auditTail(ctx, &question{Verb: verbAuditTail, Pipeline: l.pipeline, Most: most})
}

// Settle implements pipeline.DeadLetters. It refuses.
func (l *DeadLetters) Settle(context.Context, *pipeline.Parked, pipeline.Settlement) error {
	return errSettlesNothing
}

// Audit implements pipeline.DeadLetters. It refuses, as Settle does.
func (l *DeadLetters) Audit(context.Context, []byte) error { return errSettlesNothing }

var errSettlesNothing = fmt.Errorf("the admin server settles no parked messages: %w", errors.ErrUnsupported)

// Close implements pipeline.DeadLetters.
func (l *DeadLetters) Close() error { return l.client.Close() }
