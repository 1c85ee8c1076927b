package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
)

// host answers the questions that come one way to a process.
type host struct {
	*Process
	// store returns an open store; "" is the store whose socket the question came
	// through.
	store func(name string) (semel.Store, error)
	// changes: clients may change keys.
	changes bool
}

// maxQuestion limits the size of a question. The longest has a batch of keys.
const maxQuestion = 256 << 20

// ServeHTTP implements http.Handler for questions. The caller has checked who asks.
func (h *host) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var q question
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQuestion)).Decode(&q); err != nil {
		http.Error(w, "not a question: "+err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	lines := json.NewEncoder(w)
	write := func(a *answer) error { return lines.Encode(a) }
	last := &answer{End: true}
	if err := h.answer(r.Context(), &q, write); err != nil {
		last = &answer{Error: errorToWire(err)}
		last.Error.Text = h.Redact(last.Error.Text)
	}
	_ = write(last) // a client that disconnected needs no answer
}

// answer writes the lines of an answer, except for the last one.
func (h *host) answer(ctx context.Context, q *question, write func(*answer) error) error {
	switch q.Verb {
	case verbParked:
		return h.parked(ctx, q, write)
	case verbAuditTail:
		return h.auditTail(ctx, q, write)
	case verbJournal:
		j := h.Journal.Of(q.keys()...)
		return write(&answer{Journal: &j})
	}
	store, err := h.store(q.Store)
	if err != nil {
		return err
	}
	switch q.Verb {
	case verbLook, verbList, verbCount:
		return read(ctx, store, q, write)
	case verbRule:
		return rule(ctx, store, q, write)
	case verbScopes:
		return boundScopes(ctx, store, write)
	case verbLookDigest:
		by, err := able[semel.DigestResolver](store)
		if err != nil {
			return err
		}
		record, err := by.LookDigest(ctx, q.Digest)
		if err != nil {
			return err
		}
		return write(&answer{Record: recordToWire(&record)})
	}
	if !h.changes {
		return fmt.Errorf("the admin server changes no keys: run this command on the machine of the process, as its user, without --admin: %w", errors.ErrUnsupported)
	}
	return change(ctx, store, q, write)
}

// able returns an optional interface of a store.
func able[T any](store semel.Store) (T, error) {
	ability, ok := semel.As[T](store)
	if !ok {
		return ability, fmt.Errorf("the store of the running process cannot do this: %w", errors.ErrUnsupported)
	}
	return ability, nil
}

// auditTail answers with the last lines of the audit log of a store, or of the parked messages of a
// pipeline. It answers with none if they keep no such log.
func (h *host) auditTail(ctx context.Context, q *question, write func(*answer) error) (err error) {
	var of AuditTail
	if q.Pipeline != "" {
		letters, ok, failed := h.Parked(ctx, q.Pipeline)
		if failed != nil || !ok {
			return failed
		}
		defer func() { err = errors.Join(err, letters.Close()) }()
		of, _ = letters.(AuditTail) // nil: a table is in the audit log of its store
	} else {
		store, failed := h.store(q.Store)
		if failed != nil {
			return failed
		}
		of, _ = semel.As[AuditTail](store) // nil: it keeps none
	}
	if of == nil {
		return nil
	}
	lines, err := of.AuditTail(ctx, q.Most)
	for _, line := range lines {
		err = errors.Join(err, write(&answer{Line: line}))
	}
	return err
}

// parked answers with the parked messages of a pipeline, or with one of them.
func (h *host) parked(ctx context.Context, q *question, write func(*answer) error) (err error) {
	letters, ok, err := h.Parked(ctx, q.Pipeline)
	switch {
	case err != nil:
		return err
	case !ok && q.ID != "":
		return pipeline.ErrNotParked
	case !ok:
		return nil
	}
	defer func() { err = errors.Join(err, letters.Close()) }()
	if q.ID != "" {
		m, err := letters.Get(ctx, q.ID)
		if err != nil {
			return err
		}
		m.Error = h.Redact(m.Error)
		return write(&answer{Parked: m})
	}
	var writing error
	err = letters.List(ctx, q.Pipeline, func(m *pipeline.Parked) bool {
		m.Error = h.Redact(m.Error)
		writing = write(&answer{Parked: m})
		return writing == nil
	})
	return errors.Join(err, writing)
}

// read answers from the records of a store.
func read(ctx context.Context, store semel.Store, q *question, write func(*answer) error) error {
	inspector, err := able[semel.Inspector](store)
	if err != nil {
		return err
	}
	switch q.Verb {
	case verbCount:
		counts, err := inspector.Count(ctx)
		if err != nil {
			return err
		}
		return write(&answer{Counts: &counts})
	case verbLook:
		keys := q.keys()
		records := make([]semel.Record, len(keys))
		if err := inspector.Look(ctx, keys, records); err != nil {
			return err
		}
		for i := range records {
			if err := write(&answer{Record: recordToWire(&records[i])}); err != nil {
				return err
			}
		}
		return nil
	}
	for record, err := range inspector.List(ctx, semel.ListOptions{Scope: (*string)(q.Scope), State: q.State}) {
		if err == nil {
			err = write(&answer{Record: recordToWire(&record)})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// rule answers with the rule of a scope, and binds nothing.
func rule(ctx context.Context, store semel.Store, q *question, write func(*answer) error) error {
	binder, err := able[semel.ScopeBinder](store)
	if err != nil {
		return err
	}
	if q.Scope == nil {
		return fmt.Errorf("the question needs a scope: %w", semel.ErrInvalidRequest)
	}
	bound, err := binder.BindScope(ctx, string(*q.Scope), "")
	if err != nil {
		return err
	}
	return write(&answer{Rule: (*text)(&bound)})
}

// boundScopes answers with the scopes that are bound to a rule.
func boundScopes(ctx context.Context, store semel.Store, write func(*answer) error) error {
	lister, err := able[ScopeLister](store)
	if err != nil {
		return err
	}
	scopes, err := lister.BoundScopes(ctx)
	for _, scope := range scopes {
		err = errors.Join(err, write(&answer{Scope: (*text)(&scope)}))
	}
	return err
}

// change changes keys, or writes to the audit log.
func change(ctx context.Context, store semel.Store, q *question, write func(*answer) error) error {
	switch q.Verb {
	case verbAudit:
		log, err := able[auditor](store)
		if err != nil {
			return err
		}
		return log.Audit(ctx, q.Line)
	case verbClaim:
		return claim(ctx, store, q, write)
	case verbPurge:
		purger, err := able[semel.Purger](store)
		if err != nil {
			return err
		}
		purged, err := purger.Purge(ctx)
		return errors.Join(write(&answer{Purged: &purged}), err)
	case verbResolveDigest, verbRemoveDigest:
		by, err := able[semel.DigestResolver](store)
		if err != nil {
			return err
		}
		if q.Verb == verbResolveDigest {
			return by.ResolveDigest(ctx, q.Digest, semel.ResolveRequest{As: q.As, Result: q.Result, Window: q.Window})
		}
		found, err := by.RemoveDigest(ctx, q.Digest)
		return errors.Join(write(&answer{Found: &found}), err)
	case verbResolve, verbRemove:
		resolver, err := able[semel.Resolver](store)
		if err != nil {
			return err
		}
		if len(q.Keys) != 1 {
			return fmt.Errorf("a change needs one key: %w", semel.ErrInvalidRequest)
		}
		if q.Verb == verbResolve {
			return resolver.Resolve(ctx, semel.ResolveRequest{Key: q.Keys[0].plain(), As: q.As, Result: q.Result, Window: q.Window})
		}
		found, err := resolver.Remove(ctx, q.Keys[0].plain())
		return errors.Join(write(&answer{Found: &found}), err)
	}
	return fmt.Errorf("the running process does not know the question %q: use the same version of semel: %w", q.Verb, semel.ErrInvalidRequest)
}

// claim marks keys as done. No claim with a lease may come from another process, which
// cannot renew it.
func claim(ctx context.Context, store semel.Store, q *question, write func(*answer) error) error {
	requests, answers := make([]semel.ClaimRequest, len(q.Claims)), make([]semel.ClaimAnswer, len(q.Claims))
	for i, c := range q.Claims {
		requests[i] = c.ClaimRequest
		requests[i].Key = c.Key.plain()
		if !c.Done {
			return errOnlyDone
		}
	}
	if err := store.Claim(ctx, requests, answers); err != nil {
		return err
	}
	for i := range answers {
		if err := write(&answer{Claimed: &wireClaimed{answers[i], errorToWire(answers[i].Err)}}); err != nil {
			return err
		}
	}
	return nil
}

// errOnlyDone refuses claims that process messages.
var errOnlyDone = fmt.Errorf("another process has the store open, and processes its messages: %w", semel.ErrInvalidRequest)
