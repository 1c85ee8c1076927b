package pgstore

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/semel-dev/semel"
)

// calm tells whether the keys that are claimed have all been new lately. While
// they are, claims hope that the next ones are too, which is faster, and costs
// more where it is wrong. A guard and a store each have one.
type calm struct{ streak atomic.Int32 }

// calmAfter is how many transactions or calls in a row had new keys alone before
// the next one hopes: at one wrong hope in so many, hoping loses nothing.
const calmAfter = 16

func (c *calm) hopeful() bool { return c.streak.Load() >= calmAfter }

// saw learns from a transaction or call.
func (c *calm) saw(allNew bool) {
	switch {
	case !allNew:
		c.streak.Store(0)
	case c.streak.Load() < calmAfter:
		c.streak.Add(1)
	}
}

const (
	uniqueViolation  = "23505"
	notNullViolation = "23502"
)

// dashed reports whether the error of a hopeful statement says that the hope
// was wrong: a key is known, or a message late. Any other means what it says.
func dashed(err error) bool {
	code := stateOf(err)
	return code == uniqueViolation || code == notNullViolation
}

// leastHope is the fewest keys for which a call of a store hopes, or teaches it
// to: with less, the round trip and the commit are most of what a call costs.
const leastHope = 16

// hope makes the rows of keys if all of them are new, for the first request of
// each, and says whether it did.
func (c *claims) hope(ctx context.Context, keys []asked) (bool, error) {
	// What fails in a transaction of others would end it.
	if !c.alone || len(keys) < c.leastHope || !c.calm.hopeful() {
		return false, nil
	}
	sql, args := c.hopes(keys)
	if sql == "" {
		return false, nil
	}
	if _, err := collect(ctx, c.session, sql, args[1:], noRow); err != nil {
		if dashed(err) {
			c.calm.saw(false)
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

// hopes returns the hopeful statement for the first requests of keys, with its
// arguments, or none if one of them is not done in one step.
func (c *claims) hopes(keys []asked) (sql string, args []any) {
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
		sql = c.sql.hopeOne
		args = []any{c.lockWait, [16]byte(keys[0].key), pgtype.Interval{Microseconds: span.Int64, Valid: span.Valid}, fingerprint(first.Fingerprint)}
		if c.opts.KeepIDs {
			args = append(args, []byte(first.Key.Scope), []byte(first.Key.ID))
		}
		return sql, args
	case same:
		sql, args = c.sql.hopeSame, []any{c.lockWait, digestsOf(keys), spanOf(first)}
	default:
		p := c.params(keys)
		sql, args = c.sql.hope, []any{c.lockWait, p.keys, p.spans, p.fingerprints, p.deadlines}
	}
	if c.opts.KeepIDs {
		scopes, ids := c.readable(keys)
		args = append(args, scopes, ids)
	}
	return sql, args
}

// decide claims different keys in the transaction.
func (u *unit) decide(ctx context.Context, reqs []semel.ClaimRequest, answers []semel.ClaimAnswer, hopeful bool) error {
	if hopeful {
		sql, args := u.hopes(reqs)
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
		if !dashed(err) {
			return rolledBack(err)
		}
		if err := u.undo(ctx); err != nil {
			return fmt.Errorf("roll back: %w", rolledBack(err))
		}
	}
	return u.claim(ctx, reqs, answers)
}

// hopes returns the hopeful statement for requests with different keys, with
// its arguments, or none if there are requests that are not valid.
func (u *unit) hopes(reqs []semel.ClaimRequest) (sql string, args []any) {
	c := claims{u.session, reqs, make([]semel.ClaimAnswer, len(reqs))}
	keys := c.sorted()
	if len(keys) < len(reqs) {
		return "", nil
	}
	return c.hopes(keys)
}
