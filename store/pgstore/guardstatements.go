package pgstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

func (queue TxQueueFunc) batch() (effect, int) {
	if queue == nil {
		return noEffect, maxStatement
	}
	return together(func(ctx context.Context, tx pgx.Tx, fresh []*semel.Item) error {
		var b pgx.Batch
		if err := queue(&b, fresh); err != nil {
			return err
		}
		if slices.ContainsFunc(fresh, func(item *semel.Item) bool { return item.Err != nil }) {
			return nil // it is done again without them
		}
		if err := tx.SendBatch(ctx, &b).Close(); err != nil {
			return fmt.Errorf("pgstore: statements: %w", rolledBack(err))
		}
		return nil
	}), maxStatement
}

func withoutResults(fresh []*semel.Item) []kept {
	all := make([]kept, len(fresh))
	for i, item := range fresh {
		all[i].item = item
	}
	return all
}

// quick sends claims and statements as one transaction, which the server begins
// and commits by itself. It is not decided if a key was not new, or if the effect
// needs a transaction that is begun before it.
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
	if err := b.queue(&statements, fresh); err != nil || needsTransaction(statements.QueuedQueries[1:], fresh) {
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

// needsTransaction reports whether an effect needs a transaction that is begun
// before it: an item has failed or has a result to store, callbacks must see the
// answers before the commit, or a statement may end what the server began by itself.
func needsTransaction(statements []*pgx.QueuedQuery, fresh []*semel.Item) bool {
	for _, item := range fresh {
		if item.Err != nil || item.Data != nil {
			return true
		}
	}
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
