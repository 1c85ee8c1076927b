package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/semel-dev/semel"
)

// batch is one call of DoTx or DoTxBatch.
type batch struct {
	g        *Guard
	calls    []semel.Call
	outcomes []semel.BatchOutcome
	run      effect
	// queue is the effect as statements, if it is nothing else.
	queue TxQueueFunc
	// doubt is why an earlier attempt may have been committed; nil is none.
	doubt error
}

func (g *Guard) newBatch(calls []semel.Call, run effect) *batch {
	return &batch{g: g, calls: calls, outcomes: make([]semel.BatchOutcome, len(calls)), run: run}
}

// stage is how far a transaction came.
type stage uint8

const (
	claiming stage = iota
	running
	committing
)

// setback is why a transaction was not committed, or perhaps not.
type setback struct {
	err   error
	stage stage
	// again: the server rolled it back because of another transaction.
	again bool
	// whole: it was nobody's fault among the calls, so that to try each alone
	// is of no use.
	whole bool
	todo  []int // the calls that have no outcome yet
}

// errHeld: a transaction that has not ended holds one of the keys.
var errHeld = errors.New("held by a transaction that has not ended")

// all decides calls with different keys: in one transaction, or in smaller ones
// if one of them fails.
func (b *batch) all(ctx context.Context, todo []int) {
	s := b.transact(ctx, todo)
	if s == nil {
		return
	}
	var failed itemErrors
	switch {
	case errors.As(s.err, &failed):
		rest := slices.Clone(s.todo)
		for _, item := range failed {
			b.fail(ctx, item.Index, item.Err)
			rest = slices.DeleteFunc(rest, func(i int) bool { return i == item.Index })
		}
		if len(rest) > 0 {
			b.all(ctx, rest)
		}
	case s.whole || len(s.todo) == 1:
		for _, i := range s.todo {
			b.fail(ctx, i, s.err)
		}
	default:
		for _, i := range s.todo {
			b.all(ctx, []int{i})
		}
	}
}

// transact attempts one transaction, again where the server wants that, and
// once more where the answer to the commit was lost: to claim the keys again
// waits until the first transaction has ended, and tells how.
func (b *batch) transact(ctx context.Context, todo []int) *setback {
	asked := b.doubt != nil
	pause := time.Millisecond
	for try := 0; ; {
		s := b.attempt(ctx, todo)
		if s == nil {
			return nil
		}
		todo = s.todo
		switch {
		case s.again && try < b.g.store.opts.Retries && sleep(ctx, pause/2+rand.N(pause)) == nil:
			try, pause = try+1, 2*pause
		case s.stage == committing && errors.Is(s.err, semel.ErrOutcomeUnknown) && !asked:
			asked, b.doubt = true, s.err
		case s.stage == claiming && b.doubt != nil:
			s.err, s.whole = fmt.Errorf("%w; asked again: %v", b.doubt, s.err), true
			return s
		default:
			return s
		}
	}
}

// attempt runs one transaction. Calls that need no effect have their outcome
// then, also where the others have a setback.
func (b *batch) attempt(ctx context.Context, todo []int) *setback {
	reqs := make([]semel.ClaimRequest, len(todo))
	for n, i := range todo {
		reqs[n] = b.g.Request(&b.calls[i])
		reqs[n].Done = true
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	asked := time.Now()
	u, err := b.g.store.unit(ctx)
	if err != nil {
		return b.unclaimed(todo, err)
	}
	defer u.end(ctx)
	hopeful := func() bool { return b.doubt == nil && b.g.calm.hopeful() && u.sql.hope != "" }
	if b.queue != nil && hopeful() {
		if s, decided := b.quick(ctx, u, reqs, todo, asked); decided {
			return s
		}
	}
	if err := u.decide(ctx, reqs, answers, hopeful()); err != nil {
		return b.unclaimed(todo, err)
	}
	// The claim waited for whoever held the keys: what it found is so.
	b.doubt = nil
	elapsed := time.Since(asked)
	items := make([]semel.Item, len(todo))
	fresh := make([]*semel.Item, 0, len(todo))
	for n, i := range todo {
		b.g.ObserveDecision(b.calls[i].Key, &answers[n], elapsed)
		if answers[n].Decision == semel.Fresh {
			items[n] = semel.Item{Index: i, Call: &b.calls[i], Claim: answers[n].Claim}
			fresh = append(fresh, &items[n])
		}
	}
	b.g.calm.saw(len(fresh) == len(todo))
	var s *setback
	if len(fresh) > 0 {
		s = b.effect(ctx, u, fresh, asked)
	}
	u.end(ctx) // to park a late message may take long and needs no transaction
	for n, i := range todo {
		if answers[n].Decision != semel.Fresh {
			b.settle(ctx, i, &answers[n])
		}
	}
	return s
}

// unclaimed is the setback of a claim that failed.
func (b *batch) unclaimed(todo []int, err error) *setback {
	b.g.Observe(semel.Event{Kind: semel.StoreError, Key: b.calls[todo[0]].Key, Err: err})
	if stateOf(err) == lockNotAvailable {
		return &setback{err: fmt.Errorf("%w: %w", errHeld, err), todo: todo}
	}
	return &setback{err: fmt.Errorf("pgstore: claim: %w", err), todo: todo, again: repeatable(err), whole: true}
}

func (b *batch) settle(ctx context.Context, i int, a *semel.ClaimAnswer) {
	out := &b.outcomes[i]
	if a.Err != nil {
		out.Err = fmt.Errorf("pgstore: claim %s: %w", b.calls[i].Key, a.Err)
		return
	}
	out.Outcome, out.Err = b.g.Settle(ctx, &b.calls[i], a)
}

// effect runs the effect of fresh items and commits.
func (b *batch) effect(ctx context.Context, u *unit, fresh []*semel.Item, asked time.Time) *setback {
	s := &setback{stage: running}
	for _, item := range fresh {
		s.todo = append(s.todo, item.Index)
		u.keys = append(u.keys, u.hasher.Key(item.Call.Key))
	}
	all, err := b.run(ctx, u, fresh)
	if err = u.verdict(ctx, err); err != nil {
		s.err = err
		s.again = !isPermanent(err) && (repeatable(err) || u.aborted() && repeatable(u.seen.cause))
		s.whole = u.lost() || u.ended() || ctx.Err() != nil
		return s
	}
	stored := slices.Clone(all)
	for i := range stored {
		if most := b.g.store.opts.MaxResult; int64(len(stored[i].result.Data)) > most {
			stored[i].result = semel.Result{Kind: semel.NotKept}
		}
	}
	if err := u.commit(ctx, stored, b.g.patience); err != nil {
		s.stage, s.err = committing, fmt.Errorf("pgstore: commit: %w", err)
		s.again, s.whole = repeatable(err), errors.Is(err, semel.ErrOutcomeUnknown)
		return s
	}
	b.committed(fresh, all, asked)
	return nil
}

// committed gives fresh items their outcomes.
func (b *batch) committed(fresh []*semel.Item, all []kept, asked time.Time) {
	for _, item := range fresh {
		b.outcomes[item.Index] = semel.BatchOutcome{Outcome: semel.Outcome{Attempt: item.Claim.Attempt}, Err: item.Err}
		if item.Err != nil {
			b.g.Observe(semel.Event{Kind: semel.Released, Key: item.Call.Key, Attempt: item.Claim.Attempt, Err: item.Err})
		}
	}
	for _, k := range all {
		out := &b.outcomes[k.item.Index]
		out.Decision, out.Result = semel.Fresh, k.result
		b.g.Observe(semel.Event{Kind: semel.Completed, Key: k.item.Call.Key, Elapsed: time.Since(asked)})
	}
}

// fail gives a call the error of its effect, or of the transaction.
func (b *batch) fail(ctx context.Context, i int, err error) {
	call, out := &b.calls[i], &b.outcomes[i]
	switch {
	case errors.Is(err, errHeld):
		out.Decision = semel.InFlight
		out.Err = &semel.InFlightError{Key: call.Key, Holder: "a transaction that did not end in " + b.g.store.opts.LockWait.String()}
	case isPermanent(err):
		*out = b.record(ctx, call, err)
	default:
		b.g.Observe(semel.Event{Kind: semel.Released, Key: call.Key, Err: err})
		out.Err = err
	}
}

// record makes a permanent error the result of its key, in a transaction of its
// own: what the effect had written is rolled back by now. Another delivery may
// have come in between and have done better; then that is the outcome.
func (b *batch) record(ctx context.Context, call *semel.Call, failure error) semel.BatchOutcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.g.patience)
	defer cancel()
	recording := b.g.newBatch([]semel.Call{*call}, func(_ context.Context, _ *unit, fresh []*semel.Item) ([]kept, error) {
		return []kept{{fresh[0], failedResult(failure)}}, nil
	})
	recording.all(ctx, []int{0})
	out := recording.outcomes[0]
	switch {
	case out.Decision == semel.Fresh && out.Err == nil:
		out.Err = failure
	case out.Err != nil && out.Decision != semel.Duplicate:
		out.Err = fmt.Errorf("pgstore: %s failed for good, which is not recorded (%v): %w", call.Key, failure, out.Err)
	}
	return out
}

// inParts decides all calls, some in each transaction. A key that comes again
// is decided after the first of its calls has its outcome.
func (b *batch) inParts(ctx context.Context, most int) {
	todo := make([]int, len(b.calls))
	for i := range todo {
		todo[i] = i
	}
	for len(todo) > 0 {
		var again []int
		seen := make(map[semel.Key]bool, len(todo))
		now := slices.DeleteFunc(todo, func(i int) bool {
			key := b.calls[i].Key
			if seen[key] {
				again = append(again, i)
			}
			was := seen[key]
			seen[key] = true
			return was
		})
		for part := range slices.Chunk(now, most) {
			b.all(ctx, part)
		}
		todo = again
	}
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

func withoutResults(fresh []*semel.Item) []kept {
	all := make([]kept, len(fresh))
	for i, item := range fresh {
		all[i].item = item
	}
	return all
}
