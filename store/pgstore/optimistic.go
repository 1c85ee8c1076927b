package pgstore

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// An optimistic insert is a plain INSERT of keys that are expected to be new. It
// takes a third less server work than ON CONFLICT, and fails as a whole if one of
// the keys is known. If some keys are known, a guard reads their rows in the same statement,
// and the INSERT is of the others.

// optimism records whether optimistic inserts of the keys that were claimed recently
// succeeded, or would have. While they do, the next claim uses one. A store has one for
// calls whose keys are all new. A guard also has one for transactions in which some are
// known.
type optimism struct{ streak atomic.Int32 }

// optimisticAfter is how many transactions or calls in a row must succeed before
// the next one is optimistic. If one in so many fails, nothing is
// lost on average.
const optimisticAfter = 16

func (o *optimism) justified() bool { return o.streak.Load() >= optimisticAfter }

// saw records the result of a transaction or call.
func (o *optimism) saw(succeeds bool) {
	switch {
	case !succeeds:
		o.streak.Store(0)
	case o.streak.Load() < optimisticAfter:
		o.streak.Add(1)
	}
}

const (
	uniqueViolation  = "23505"
	notNullViolation = "23502"
)

// insertRefused reports whether an optimistic insert failed because a key is
// known or a message is late. All other errors are real.
func insertRefused(err error) bool {
	code := stateOf(err)
	return code == uniqueViolation || code == notNullViolation
}

// leastOptimistic is the minimum number of keys with which a store call is
// optimistic and counts for later calls. With fewer keys, the round trip and the
// commit are most of the cost.
const leastOptimistic = 16

// insertOptimistically inserts the rows of keys, for the first request of each, if
// all of them are new. It reports whether it did.
func (c *claims) insertOptimistically(ctx context.Context, keys []asked) (bool, error) {
	// Inside a caller's transaction, a failure would abort it.
	if !c.alone || len(keys) < c.leastOptimistic || !c.optimism.justified() {
		return false, nil
	}
	sql, args := c.optimisticInsert(keys)
	if sql == "" {
		return false, nil
	}
	if _, err := collect(ctx, c.session, sql, args[1:], noRow); err != nil {
		if insertRefused(err) {
			c.optimism.saw(false)
			return false, nil
		}
		return false, err
	}
	for i := range keys {
		k := &keys[i]
		c.answers[k.which[0]] = semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}
		k.which = k.which[1:]
	}
	return true, nil
}

func noRow(pgx.CollectableRow) (struct{}, error) { return struct{}{}, nil }

// optimisticInsert returns the statement for the first requests of keys, with its
// arguments. It returns none if one of the requests is not done in one step.
func (c *claims) optimisticInsert(keys []asked) (sql string, args []any) {
	first := &c.reqs[keys[0].which[0]]
	for i := range keys {
		if !c.reqs[keys[i].which[0]].Done {
			return "", nil
		}
	}
	if len(keys) == 1 {
		span := spanOf(first)
		sql = c.sql.optimisticOne
		args = []any{c.lockWait, [16]byte(keys[0].key), pgtype.Interval{Microseconds: span.Int64, Valid: span.Valid}, fingerprint(first.Fingerprint), c.maker(first), c.hasher.deadline(first)}
		if c.has.ids {
			args = append(args, []byte(first.Key.Scope), []byte(first.Key.ID))
		}
		if c.has.origins {
			args = append(args, encodeOrigin(first.Origin))
		}
		return sql, args
	}
	if args, same := c.sameArgs(keys); same {
		return c.sql.optimisticSame, args
	}
	p := c.params(keys)
	return c.sql.optimistic, c.withOptional([]any{c.lockWait, p.keys, p.spans, p.fingerprints, p.deadlines, p.makers}, keys)
}

// sameArgs returns the arguments of a statement whose keys have the same window and no
// fingerprint. It reports false if the first requests of the keys differ from that.
func (c *claims) sameArgs(keys []asked) (args []any, same bool) {
	first := &c.reqs[keys[0].which[0]]
	var earliest pgtype.Timestamptz
	for i := range keys {
		r := &c.reqs[keys[i].which[0]]
		if r.Window != first.Window || !r.Fingerprint.IsZero() {
			return nil, false
		}
		if d := c.hasher.deadline(r); !earliest.Valid || before(d, earliest) {
			earliest = d
		}
	}
	return c.withOptional([]any{c.lockWait, digestsOf(keys), spanOf(first), c.makersOf(keys), earliest}, keys), true
}

// before reports whether deadline a is before b, which is valid.
func before(a, b pgtype.Timestamptz) bool {
	switch {
	case !a.Valid || b.InfinityModifier == pgtype.NegativeInfinity:
		return false
	case a.InfinityModifier == pgtype.NegativeInfinity:
		return true
	}
	return a.Time.Before(b.Time)
}

// insertMost inserts the rows of keys without one, and decides the requests of the others
// by their rows. It reports false if the insert failed. Keys whose rows others change
// concurrently stay open.
func (c *claims) insertMost(ctx context.Context, keys []asked) (bool, error) {
	for i := range keys {
		if !c.reqs[keys[i].which[0]].Done {
			return false, nil
		}
	}
	args, same := c.sameArgs(keys)
	if !same || c.sql.optimisticMost == "" {
		return false, nil
	}
	type place struct {
		row
		now time.Time
	}
	known, err := collect(ctx, c.session, c.sql.optimisticMost, args[1:], func(rows pgx.CollectableRow) (p place, err error) {
		err = scanRow(rows, &p.row, &p.now, columns{ids: c.has.ids})
		return p, err
	})
	if err != nil {
		return false, err
	}
	there := make(map[semel.Digest]struct{}, len(known))
	var changes []change
	for i := range known {
		p := &known[i]
		there[p.key] = struct{}{}
		k := find(keys, p.key)
		if c.settle(k, &p.row, p.now); len(k.which) > 0 {
			changes = append(changes, c.changed(&p.row, &c.reqs[k.which[0]], p.now))
		}
	}
	for i := range keys {
		k := &keys[i]
		if _, known := there[k.key]; !known {
			c.answers[k.which[0]] = semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}
			k.which = k.which[1:]
		}
	}
	if len(changes) == 0 {
		return true, nil
	}
	return true, c.put(ctx, keys, changes)
}

// decide claims different keys in the transaction. With optimistic, all are expected to be
// new. mostly is about transactions in which some are known.
func (u *guardTx) decide(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, optimistic bool, mostly *optimism) error {
	if optimistic {
		sql, args := u.optimisticInsert(reqs)
		if sql == "" {
			return u.claim(ctx, reqs, answers)
		}
		rows, err := u.query(ctx, u, sql, args...)
		if err == nil {
			rows.Close()
			err = rows.Err()
		}
		if err == nil {
			for i := range answers {
				answers[i] = semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}
			}
			return nil
		}
		if !insertRefused(err) {
			return rolledBack(err)
		}
		if err := u.undo(ctx); err != nil {
			return fmt.Errorf("roll back: %w", rolledBack(err))
		}
	}
	return u.decideMost(ctx, reqs, answers, mostly)
}

// decideMost claims different keys of which some may be known.
func (u *guardTx) decideMost(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, mostly *optimism) error {
	if mostly.justified() && len(reqs) >= leastOptimistic {
		c := u.claims(reqs, answers)
		if keys := c.sorted(); len(keys) > 0 && len(keys) <= maxStatement {
			done, err := c.insertMost(ctx, keys)
			switch {
			case done && err == nil:
				if keys = open(keys); len(keys) > 0 {
					err = c.decide(ctx, keys)
				}
				return err
			case err != nil && !insertRefused(err):
				return err
			case err != nil:
				mostly.saw(false)
				if err := u.undo(ctx); err != nil {
					return fmt.Errorf("roll back: %w", rolledBack(err))
				}
			}
		}
	}
	err := u.claim(ctx, reqs, answers)
	if err == nil {
		mostly.saw(!slices.ContainsFunc(answers, func(a semel.ClaimAnswer) bool { return a.Decision == semel.Late }))
	}
	return err
}

// optimisticInsert returns the statement for requests with different keys, with
// its arguments. It returns none if a request is invalid.
func (u *guardTx) optimisticInsert(reqs []semel.ClaimRequest) (sql string, args []any) {
	c := u.claims(reqs, make([]semel.ClaimAnswer, len(reqs)))
	keys := c.sorted()
	if len(keys) < len(reqs) {
		return "", nil
	}
	return c.optimisticInsert(keys)
}
