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

// batch is one call of DoTx or DoTxBatch.
type batch struct {
	g        *Guard
	calls    []semel.Call
	outcomes []semel.BatchOutcome
	run      effect
	// queue is the effect as statements, if it is nothing else.
	queue TxQueueFunc
	// apart means that the server refused a statement of several items, so that each
	// statement must be of one item.
	apart bool
	// turnedAway is how often an item failed because the server was busy.
	turnedAway int
	// doubt says why an earlier attempt may have been committed. It is nil if none
	// may have been.
	doubt error
}

func (g *Guard) newBatch(calls []semel.Call, run effect) *batch {
	return &batch{g: g, calls: calls, outcomes: make([]semel.BatchOutcome, len(calls)), run: run}
}

// stage is how far a transaction got.
type stage uint8

const (
	claiming stage = iota
	running
	committing
)

// attemptError says why a transaction was not committed, or may not have been.
type attemptError struct {
	err   error
	stage stage
	// retry: the server rolled the transaction back because of another one.
	retry bool
	// whole: no single call is the cause, so repeating each call alone does not
	// help.
	whole bool
	todo  []int // the calls without an outcome so far
}

// errHeld: an open transaction holds one of the keys.
var errHeld = errors.New("held by a transaction that has not ended")

// all decides calls with different keys, in one transaction, or in smaller ones if
// one of the calls fails.
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
		if busy(s.err) {
			b.turnedAway++
		}
		switch {
		case len(rest) > 0 && busy(s.err) && b.turnedAway > 1:
			for _, i := range rest {
				b.fail(ctx, i, failed[0].Err)
			}
		case len(rest) > 0:
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

// transact attempts one transaction. It retries if the server rolled it back
// because of another one. If the answer to the commit is lost, it claims the keys
// once more. That claim waits until the first transaction has ended, and shows
// how it ended.
func (b *batch) transact(ctx context.Context, todo []int) *attemptError {
	asked := b.doubt != nil
	for try := 0; ; {
		s := b.attempt(ctx, todo)
		if s == nil {
			return nil
		}
		todo = s.todo
		_, shared := errors.AsType[*sharedError](s.err)
		switch {
		case shared && !b.apart:
			b.apart = true
		case s.retry && try < b.g.store.opts.retries && backOff(ctx, try) == nil:
			try++
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

// attempt runs one transaction: claim, effect, commit. Calls that need no effect have
// their outcome afterwards, even if it returns an error for the others.
func (b *batch) attempt(ctx context.Context, todo []int) *attemptError {
	reqs := make([]semel.ClaimRequest, len(todo))
	for n, i := range todo {
		reqs[n] = b.g.Request(&b.calls[i])
		reqs[n].Done = true
	}
	answers := make([]semel.ClaimAnswer, len(reqs))
	asked := time.Now()
	u, err := b.g.store.begin(ctx)
	if err != nil {
		return b.unclaimed(todo, err)
	}
	defer u.end(ctx)
	u.seen.apart = b.apart
	optimistic := func() bool { return b.doubt == nil && b.g.optimism.justified() && u.sql.optimistic != "" }
	if b.queue != nil && optimistic() {
		if s, decided := b.quick(ctx, u, reqs, todo, asked); decided {
			return s
		}
	}
	claiming, end := b.g.BeginStep(ctx, semel.StepClaim, len(reqs))
	err = u.decide(claiming, reqs, answers, optimistic(), &b.g.mostly)
	end(common(answers), err)
	if err != nil {
		return b.unclaimed(todo, err)
	}
	// The claim waited for the transactions that held the keys, so its answer is
	// final.
	b.doubt = nil
	elapsed := time.Since(asked)
	items := make([]semel.BatchItem, len(todo))
	fresh := make([]*semel.BatchItem, 0, len(todo))
	for n, i := range todo {
		if answers[n].Decision == semel.Fresh {
			_, _ = b.g.Settle(ctx, &b.calls[i], &answers[n], elapsed) // a fresh answer has no error
			items[n] = semel.BatchItem{Index: i, Call: &b.calls[i], Claim: answers[n].Claim}
			fresh = append(fresh, &items[n])
		}
	}
	b.g.optimism.saw(len(fresh) == len(todo))
	var s *attemptError
	if len(fresh) > 0 {
		s = b.effect(ctx, u, fresh)
	}
	u.end(ctx) // parking a late message may take long and needs no transaction
	for n, i := range todo {
		if answers[n].Decision != semel.Fresh {
			b.settle(ctx, i, &answers[n], elapsed)
		}
	}
	return s
}

// common returns the decision of all answers, or Undecided if they differ.
func common(answers []semel.ClaimAnswer) semel.Decision {
	for i := range answers {
		if answers[i].Decision != answers[0].Decision {
			return semel.Undecided
		}
	}
	return answers[0].Decision
}

// unclaimed returns the error of a claim that failed.
func (b *batch) unclaimed(todo []int, err error) *attemptError {
	b.g.Observe(semel.Event{Kind: semel.EventStoreError, Key: b.calls[todo[0]].Key, Err: err})
	if stateOf(err) == lockNotAvailable {
		return &attemptError{err: fmt.Errorf("%w: %w", errHeld, err), todo: todo}
	}
	return &attemptError{err: fmt.Errorf("pgstore: claim: %w", err), todo: todo, retry: repeatable(err), whole: true}
}

// settle sets the outcome of a call whose claim was not granted.
func (b *batch) settle(ctx context.Context, i int, a *semel.ClaimAnswer, elapsed time.Duration) {
	out := &b.outcomes[i]
	out.Outcome, out.Err = b.g.Settle(ctx, &b.calls[i], a, elapsed)
	if a.Err != nil {
		out.Err = fmt.Errorf("pgstore: claim %s: %w", b.calls[i].Key, a.Err)
	}
}

// effect runs the effect of fresh items and commits.
func (b *batch) effect(ctx context.Context, u *guardTx, fresh []*semel.BatchItem) *attemptError {
	s := &attemptError{stage: running}
	for _, item := range fresh {
		s.todo = append(s.todo, item.Index)
	}
	u.held = fresh
	under, end := b.g.BeginStep(ctx, semel.StepEffect, len(fresh))
	returned := false
	defer func() {
		if !returned {
			end(semel.Undecided, semel.ErrPanic)
			for _, item := range fresh {
				b.g.Observe(semel.Event{Kind: semel.EventReleased, Key: item.Call.Key, Attempt: item.Claim.Attempt, Err: semel.ErrPanic})
			}
		}
	}()
	began := time.Now()
	all, err := b.run(under, u, fresh)
	took := time.Since(began)
	returned = true
	err = u.verdict(ctx, err)
	end(semel.Undecided, err)
	if err != nil {
		s.err = err
		s.retry = !isPermanent(err) && (repeatable(err) || u.aborted() && repeatable(u.seen.cause))
		s.whole = u.lost() || u.ended() || ctx.Err() != nil || b.queue != nil && waited(err)
		return s
	}
	stored := slices.Clone(all)
	for i := range stored {
		if most := b.g.store.opts.MaxResult; int64(len(stored[i].result.Data)) > most {
			stored[i].result = semel.Result{Kind: semel.NotKept}
		}
	}
	completing, end := b.g.BeginStep(ctx, semel.StepComplete, len(fresh))
	err = u.commit(completing, stored, b.g.commitTimeout)
	end(semel.Undecided, err)
	if err != nil {
		s.stage, s.err = committing, fmt.Errorf("pgstore: commit: %w", err)
		s.retry, s.whole = repeatable(err), errors.Is(err, semel.ErrOutcomeUnknown)
		return s
	}
	b.committed(fresh, all, took)
	return nil
}

// committed sets the outcomes of fresh items. Their effect took so long.
func (b *batch) committed(fresh []*semel.BatchItem, all []kept, took time.Duration) {
	for _, item := range fresh {
		b.outcomes[item.Index] = semel.BatchOutcome{Outcome: semel.Outcome{Attempt: item.Claim.Attempt}, Err: unfinished(item.Err)}
		if item.Err != nil {
			b.g.Observe(semel.Event{Kind: semel.EventReleased, Key: item.Call.Key, Attempt: item.Claim.Attempt, Err: item.Err})
		}
	}
	for _, k := range all {
		out := &b.outcomes[k.item.Index]
		out.Decision, out.Result = semel.Fresh, k.result
		b.g.Observe(semel.Event{Kind: semel.EventCompleted, Key: k.item.Call.Key, Elapsed: took})
	}
}

// fail sets the outcome of a call to the error of its effect, or of the transaction.
func (b *batch) fail(ctx context.Context, i int, err error) {
	call, out := &b.calls[i], &b.outcomes[i]
	switch {
	case errors.Is(err, errHeld):
		out.Decision = semel.InFlight
		out.Err = &semel.InFlightError{Key: call.Key, Holder: openTransaction}
	case isPermanent(err):
		*out = b.record(ctx, call, err)
	default:
		b.g.Observe(semel.Event{Kind: semel.EventReleased, Key: call.Key, Err: err})
		out.Err = unfinished(err)
	}
}

// unfinished returns the error of an effect that is not complete. It keeps only the
// text of an ErrResultNotKept, which belongs to another key: callers acknowledge the
// message of a complete effect.
func unfinished(err error) error {
	if errors.Is(err, semel.ErrResultNotKept) && !isPermanent(err) {
		return errors.New(err.Error())
	}
	return err
}

// record stores a permanent error as the result of its key. It uses its own
// transaction, because the effect's writes are already rolled back. If another
// delivery was decided in between, that decision is the outcome.
func (b *batch) record(ctx context.Context, call *semel.Call, failure error) semel.BatchOutcome {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), b.g.commitTimeout)
	defer cancel()
	recording := b.g.newBatch([]semel.Call{*call}, func(_ context.Context, _ *guardTx, fresh []*semel.BatchItem) ([]kept, error) {
		return []kept{{fresh[0], failedResult(failure)}}, nil
	})
	recording.all(ctx, []int{0})
	out := recording.outcomes[0]
	switch {
	case out.Decision == semel.Fresh && out.Err == nil:
		out.Err = failure
	case out.Err != nil && out.Decision != semel.Duplicate:
		out.Err = fmt.Errorf("pgstore: the permanent failure of %s is not recorded (%v): %w", call.Key, failure, out.Err)
	}
	return out
}

// inParts decides all calls, with at most most calls in a transaction. A repeated
// key is decided after its first call has an outcome.
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

// quick sends claims and statements as one implicit transaction, which the server
// begins and commits by itself. It decides nothing if a key is known, or if the
// effect needs an explicit transaction.
func (b *batch) quick(ctx context.Context, u *guardTx, reqs []semel.ClaimRequest, todo []int, asked time.Time) (s *attemptError, decided bool) {
	sql, args := u.optimisticInsert(reqs)
	if sql == "" {
		return nil, false
	}
	items := make([]semel.BatchItem, len(todo))
	fresh := make([]*semel.BatchItem, len(todo))
	for n, i := range todo {
		items[n] = semel.BatchItem{Index: i, Call: &b.calls[i], Claim: semel.Claim{Attempt: 1}}
		fresh[n] = &items[n]
	}
	statements := Statements{owners: make([]*semel.BatchItem, 1, 1+len(fresh)), apart: b.apart} // the claims have no owner
	if err := u.queue(&statements.batch, sql, args...); err != nil {
		return b.unclaimed(todo, err), true
	}
	if err := b.queue(&statements, fresh); err != nil || needsTransaction(statements.batch.QueuedQueries[1:], fresh) {
		return nil, false
	}
	if ctx.Err() != nil {
		return b.unclaimed(todo, causeOf(ctx)), true
	}
	// The statements may be committed. Canceling would only make the outcome
	// unknown.
	sent, cancel := outlasting(ctx, b.g.commitTimeout)
	defer cancel()
	sent, end := b.g.BeginStep(sent, semel.StepEffect, len(fresh))
	defer func() {
		if s == nil {
			end(semel.Undecided, nil)
		} else {
			end(semel.Undecided, s.err)
		}
	}()
	if failed, ok := b.sendQuick(sent, u, &statements, fresh, todo); !ok {
		return failed, failed != nil
	}
	answer, took := semel.ClaimAnswer{Decision: semel.Fresh, Claim: semel.Claim{Attempt: 1}}, time.Since(asked) // claims and statements are sent together
	for _, item := range fresh {
		_, _ = b.g.Settle(ctx, item.Call, &answer, took) // a fresh answer has no error
	}
	b.committed(fresh, withoutResults(fresh), took)
	return nil, true
}

// sendQuick sends the statements of quick. If it is not ok, they have no effect or an
// unknown one. Without an error, nothing is decided.
func (b *batch) sendQuick(ctx context.Context, u *guardTx, statements *Statements, fresh []*semel.BatchItem, todo []int) (failed *attemptError, ok bool) {
	br := u.conn.SendBatch(ctx, &statements.batch)
	if _, err := br.Exec(); err != nil {
		err = errors.Join(err, closed(br, err))
		if insertRefused(err) {
			b.g.optimism.saw(false)
			return nil, false
		}
		if _, ok := unprepared(err); refusesText(stateOf(err)) || ok {
			return nil, false // one by one, the server says which statement it is
		}
		s := b.unclaimed(todo, failure(err))
		if errors.Is(s.err, semel.ErrOutcomeUnknown) {
			s.stage = committing
		}
		return s, false
	}
	at, err := statements.read(br, 1)
	if err == nil {
		return nil, true
	}
	s := &attemptError{stage: committing, retry: repeatable(err), todo: todo}
	if statements.blame(at, err) {
		s.err = failedOf(fresh)
		return s, false
	}
	if statements.shared(at, err) {
		s.err = &sharedError{err}
		return s, false
	}
	s.err = fmt.Errorf("pgstore: statements: %w", failure(ofEffect(err)))
	s.whole = errors.Is(s.err, semel.ErrOutcomeUnknown) || waited(err)
	return s, false
}

// needsTransaction reports whether an effect needs an explicit transaction. It
// does if:
//   - an item has failed or has a result to store,
//   - callbacks must see the answers before the commit, or
//   - a statement may end the implicit transaction.
func needsTransaction(statements []*pgx.QueuedQuery, fresh []*semel.BatchItem) bool {
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

// outlasting returns a context that ends timeout after ctx ends. The caller must
// call cancel.
func outlasting(ctx context.Context, timeout time.Duration) (_ context.Context, cancel context.CancelFunc) {
	longer, end := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.AfterFunc(timeout, func() { end(context.Cause(ctx)) })
		context.AfterFunc(longer, func() { timer.Stop() })
	})
	return longer, func() {
		stop()
		end(nil)
	}
}

func withoutResults(fresh []*semel.BatchItem) []kept {
	all := make([]kept, len(fresh))
	for i, item := range fresh {
		all[i].item = item
	}
	return all
}
