package pgstore

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/semel-dev/semel"
)

// calm tells whether the keys that a guard claims have all been new lately.
// While they are, claims hope that the next ones are too, which is faster, and
// costs more where it is wrong.
type calm struct{ streak atomic.Int32 }

// calmAfter is how many transactions in a row had new keys alone, before the
// next one hopes: at one wrong hope in so many, hoping loses nothing.
const calmAfter = 16

func (c *calm) hopeful() bool { return c.streak.Load() >= calmAfter }

// saw learns from a transaction.
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

// hopes returns the hopeful statement with its arguments, or none if there are
// requests that are not valid.
func (u *unit) hopes(reqs []semel.ClaimRequest) (sql string, args []any) {
	for i := range reqs {
		if reqs[i].Validate() != nil || u.hasher.check(reqs[i].Key) != nil {
			return "", nil
		}
	}
	if len(reqs) == 1 {
		r := &reqs[0]
		args = []any{u.lockWait, [16]byte(u.hasher.Key(r.Key)), spanOf(r), fingerprint(r.Fingerprint), u.hasher.deadline(r)}
		if u.opts.KeepIDs {
			args = append(args, []byte(r.Key.Scope), []byte(r.Key.ID))
		}
		return u.sql().hopeOne, args
	}
	type keyed struct {
		key semel.Digest
		req *semel.ClaimRequest
	}
	memo := u.hasher.memo()
	order := make([]keyed, len(reqs))
	for i := range reqs {
		order[i] = keyed{memo.Key(reqs[i].Key), &reqs[i]}
	}
	slices.SortFunc(order, func(a, b keyed) int { return bytes.Compare(a.key[:], b.key[:]) })
	p := newParams(u.hasher, len(reqs), u.opts.KeepIDs)
	for i := range order {
		p.add(&order[i].key, order[i].req)
	}
	if sql, args = u.sql().hopeSame, []any{u.lockWait, p.keys, p.spans[0]}; !p.same() {
		sql, args = u.sql().hope, []any{u.lockWait, p.keys, p.spans, p.fingerprints, p.deadlines}
	}
	if u.opts.KeepIDs {
		args = append(args, p.scopes, p.ids)
	}
	return sql, args
}

// same reports whether the keys differ in nothing else.
func (p *params) same() bool {
	for i := range p.keys {
		if p.spans[i] != p.spans[0] || p.fingerprints[i].Valid || p.deadlines[i].Valid {
			return false
		}
	}
	return true
}
