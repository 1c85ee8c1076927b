package pgstore

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// An optimistic insert is a plain INSERT of keys that are expected to be new. It
// takes a third less server work than ON CONFLICT, and fails as a whole if one of
// the keys is known.

// optimism records whether all keys that were claimed recently were new. While
// they are, the next claim uses an optimistic insert. A guard and a store each
// have one.
type optimism struct{ streak atomic.Int32 }

// optimisticAfter is how many transactions or calls in a row must have only new
// keys before the next one is optimistic. If one in so many fails, nothing is
// lost on average.
const optimisticAfter = 16

func (o *optimism) justified() bool { return o.streak.Load() >= optimisticAfter }

// saw records the result of a transaction or call.
func (o *optimism) saw(allNew bool) {
	switch {
	case !allNew:
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
	same := true
	for i := range keys {
		r := &c.reqs[keys[i].which[0]]
		if !r.Done {
			return "", nil
		}
		same = same && r.Window == first.Window && r.Fingerprint.IsZero() && !c.hasher.deadline(r).Valid
	}
	switch {
	case len(keys) == 1 && !c.hasher.deadline(first).Valid:
		span := spanOf(first)
		sql = c.sql.optimisticOne
		args = []any{c.lockWait, [16]byte(keys[0].key), pgtype.Interval{Microseconds: span.Int64, Valid: span.Valid}, fingerprint(first.Fingerprint), c.maker(first)}
		if c.has.ids {
			args = append(args, []byte(first.Key.Scope), []byte(first.Key.ID))
		}
		if c.has.origins {
			args = append(args, encodeOrigin(first.Origin))
		}
		return sql, args
	case same:
		sql, args = c.sql.optimisticSame, []any{c.lockWait, digestsOf(keys), spanOf(first), c.makersOf(keys)}
	default:
		p := c.params(keys)
		sql, args = c.sql.optimistic, []any{c.lockWait, p.keys, p.spans, p.fingerprints, p.deadlines, p.makers}
	}
	return sql, c.withOptional(args, keys)
}

// decide claims different keys in the transaction.
func (u *guardTx) decide(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, optimistic bool) error {
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
	return u.claim(ctx, reqs, answers)
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
