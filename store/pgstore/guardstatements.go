package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// divisionByZero is how the statement of the quick form says that it did not
// make a row.
const divisionByZero = "22012"

// DoStatements is [Guard.DoTx] for an effect that is nothing but statements
// known beforehand: a new key and its effect take one round trip, with which
// the transaction begins and commits. queue adds the statements to a batch; it
// is called again with another one where the transaction is done again.
// Callbacks of queued queries run before the commit is known, and the batch must
// not begin or end a transaction.
//
// A known key makes the first attempt fail, which the server logs as a division
// by zero, and the decision takes three round trips more: where most messages
// are duplicates, DoTx is better. There is no result to store; else what is said
// of DoTx holds. Where a lost answer is asked for again, this delivery's own
// commit is reported as Duplicate.
func (g *Guard) DoStatements(ctx context.Context, call semel.Call, queue func(b *pgx.Batch)) (semel.Outcome, error) {
	run := func(ctx context.Context, u *unit, fresh []*semel.Item) ([]kept, error) {
		var b pgx.Batch
		queue(&b)
		if err := u.seen.note(u.tx.SendBatch(ctx, &b).Close()); err != nil {
			return nil, fmt.Errorf("pgstore: statement of %s: %w", call.Key, rolledBack(err))
		}
		return []kept{{item: fresh[0]}}, nil
	}
	return g.one(ctx, call, run, func(ctx context.Context, b *batch) bool {
		asked := time.Now()
		known, err := g.quick(ctx, &call, queue)
		switch {
		case err == nil:
			answer := semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}
			g.ObserveDecision(call.Key, &answer, time.Since(asked))
			g.Observe(semel.Event{Kind: semel.Completed, Key: call.Key, Elapsed: time.Since(asked)})
			b.outcomes[0].Outcome = semel.Outcome{Decision: semel.Fresh, Attempt: 1}
		case known && stateOf(err) == lockNotAvailable:
			b.fail(ctx, 0, errHeld)
		case known || repeatable(err):
			return false
		case errors.Is(err, semel.ErrOutcomeUnknown):
			b.doubt = err
			return false
		default:
			b.fail(ctx, 0, err)
		}
		return true
	})
}

// quick sends the claim and the statements as one transaction. If it was the
// claim that failed, because the key is known or held or the message is late,
// known is true.
func (g *Guard) quick(ctx context.Context, call *semel.Call, queue func(b *pgx.Batch)) (known bool, err error) {
	req := g.Request(call)
	req.Done = true
	if err := req.Validate(); err != nil {
		return false, fmt.Errorf("pgstore: claim %s: %w", call.Key, err)
	}
	u, err := g.store.unit(ctx)
	if err != nil {
		return false, err
	}
	defer u.end(ctx)
	p := newParams(1, u.opts.KeepIDs)
	digest := u.hasher.Key(req.Key)
	p.add(&digest, &req)
	args, err := textual(u.conn.Conn().TypeMap(), append([]any{u.lockWait}, p.args()...))
	if err != nil {
		return false, err
	}
	var b pgx.Batch
	b.Queue(u.sql().once, args...)
	queue(&b)
	br := u.conn.SendBatch(ctx, &b)
	if _, err := br.Exec(); err != nil {
		code := stateOf(err)
		return code == divisionByZero || code == lockNotAvailable, fmt.Errorf("pgstore: claim %s: %w", call.Key, failure(errors.Join(err, closed(br, err))))
	}
	if err := br.Close(); err != nil {
		return false, fmt.Errorf("pgstore: statement of %s: %w", call.Key, failure(err))
	}
	return false, nil
}
