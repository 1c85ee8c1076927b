package pgstore

import (
	"context"
	"fmt"

	"github.com/semel-dev/semel"
)

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
	c := u.claims(reqs, make([]semel.ClaimAnswer, len(reqs)))
	keys := c.sorted()
	if len(keys) < len(reqs) {
		return "", nil
	}
	return c.hopes(keys)
}
