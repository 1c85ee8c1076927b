package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// queueFunc adds the statements of fresh items to a batch.
type queueFunc func(b *pgx.Batch, fresh []*semel.Item)

// DoStatements is [Guard.DoTx] for an effect that is nothing but statements
// known beforehand: queue adds them to a batch. While keys are new, as most are
// in most streams, key and effect go to the server together and commit in one
// round trip.
//
// queue is called again, with another batch, where the transaction is done
// again. The batch must not begin or end a transaction: one whose text has a word
// for that is sent as by DoTx, where it is found out. Where its queries have
// callbacks, an error of theirs rolls back, which takes two round trips more.
// There is no result to store. What else is said of DoTx holds; where key and
// effect went together, the end of ctx does not call them back, and they are
// waited for as a commit is.
func (g *Guard) DoStatements(ctx context.Context, call semel.Call, queue func(b *pgx.Batch)) (semel.Outcome, error) {
	if queue == nil {
		return g.one(ctx, call, noEffect, nil)
	}
	all := func(b *pgx.Batch, _ []*semel.Item) { queue(b) }
	return g.one(ctx, call, queued(all), all)
}

// DoBatchStatements is [Guard.DoStatements] for many calls in one transaction:
// queue adds the statements of those that are fresh, one for each or one for
// all. It is [Guard.DoTxBatch] in all else.
func (g *Guard) DoBatchStatements(ctx context.Context, calls []semel.Call, queue func(b *pgx.Batch, fresh []*semel.Item)) []semel.BatchOutcome {
	b := g.newBatch(calls, queued(queue))
	b.queue = queue
	b.inParts(ctx, maxStatement)
	return b.outcomes
}

// queued is the effect in a transaction that has claimed its keys.
func queued(queue queueFunc) effect {
	if queue == nil {
		return noEffect
	}
	return func(ctx context.Context, u *unit, fresh []*semel.Item) ([]kept, error) {
		var b pgx.Batch
		queue(&b, fresh)
		u.seen.sentAll(&b)
		if err := u.seen.note(u.tx.SendBatch(ctx, &b).Close()); err != nil {
			return nil, fmt.Errorf("pgstore: statements: %w", rolledBack(err))
		}
		return withoutResults(fresh), nil
	}
}

func withoutResults(fresh []*semel.Item) []kept {
	all := make([]kept, len(fresh))
	for i, item := range fresh {
		all[i].item = item
	}
	return all
}

// quick sends claims and statements as one transaction, which the server begins
// and commits by itself. It is not decided if a key was not new, or if callbacks
// must see the answers before the commit, or if a statement may end what the
// server began.
func (b *batch) quick(ctx context.Context, u *unit, reqs []semel.ClaimRequest, todo []int, asked time.Time) (s *setback, decided bool) {
	sql, args := u.hopes(reqs)
	if sql == "" {
		return nil, false
	}
	items := make([]semel.Item, len(todo))
	fresh := make([]*semel.Item, len(todo))
	for n, i := range todo {
		items[n] = semel.Item{Index: i, Call: &b.calls[i], Claim: semel.Claim{Attempt: 1}}
		fresh[n] = &items[n]
	}
	var statements pgx.Batch
	if err := u.queue(&statements, sql, args...); err != nil {
		return b.unclaimed(todo, err), true
	}
	b.queue(&statements, fresh)
	if needsTransaction(statements.QueuedQueries[1:]) {
		return nil, false
	}
	if ctx.Err() != nil {
		return b.unclaimed(todo, causeOf(ctx)), true
	}
	// Whatever is sent may be committed: to cancel it would only raise a doubt.
	sent, cancel := outlasting(ctx, b.g.patience)
	defer cancel()
	br := u.conn.SendBatch(sent, &statements)
	if _, err := br.Exec(); err != nil {
		err = errors.Join(err, closed(br, err))
		if dashed(err) {
			b.g.calm.saw(false)
			return nil, false
		}
		s := b.unclaimed(todo, failure(err))
		if errors.Is(s.err, semel.ErrOutcomeUnknown) {
			s.stage = committing
		}
		return s, true
	}
	if err := failure(br.Close()); err != nil {
		unknown := errors.Is(err, semel.ErrOutcomeUnknown)
		return &setback{
			err: fmt.Errorf("pgstore: statements: %w", err), stage: committing, again: repeatable(err), whole: unknown, todo: todo,
		}, true
	}
	answer := semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}
	for _, item := range fresh {
		b.g.ObserveDecision(item.Call.Key, &answer, time.Since(asked))
	}
	b.committed(fresh, withoutResults(fresh), asked)
	return nil, true
}

// needsTransaction reports whether statements cannot do without one that was
// begun before.
func needsTransaction(statements []*pgx.QueuedQuery) bool {
	last := ""
	for _, q := range statements {
		if q.Fn != nil || q.SQL != last && mayEnd(q.SQL) {
			return true
		}
		last = q.SQL
	}
	return false
}

// outlasting returns a context that ends so long after ctx does. The caller must
// call cancel.
func outlasting(ctx context.Context, patience time.Duration) (_ context.Context, cancel context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(patience, func() { end(context.Cause(ctx)) })
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		end(nil)
	}
}
