package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Session writes messages in the transaction that records their keys. No message
// is lost and none has its effect twice, whatever fails.
type Session struct {
	guard  *pgstore.Guard
	write  *writer
	change pipeline.FilterMap // may be nil
	handle Handler
	traits pipeline.SinkTraits
	// careful is the number of further batches that are sent one message at a
	// time, so that an error belongs to its message. That takes more round
	// trips.
	careful atomic.Int64
}

var (
	_ pipeline.Session = (*Session)(nil)
	_ pipeline.Waiter  = (*Session)(nil)
	_ semel.Readier    = (*Session)(nil)
)

// NewSession returns a session that writes as opts say. The guard's Wait should
// be 0, because the runner waits.
func NewSession(guard *pgstore.Guard, opts *Options) (*Session, error) {
	if guard == nil {
		return nil, fmt.Errorf("postgres: NewSession: the guard is nil: %w", semel.ErrInvalidRequest)
	}
	w, err := newWriter(opts)
	if err != nil {
		return nil, err
	}
	return &Session{guard: guard, write: w, change: opts.FilterMap, traits: pipeline.SinkTraits{Parallel: 4}}, nil
}

// Handler is an effect in the transaction that records the key. Its writes
// through tx commit together with the key, or not at all. It may be called again
// for the same message: see pgstore.TxFunc. Errors have the same meaning as in
// pipeline.Sink.
type Handler func(ctx context.Context, tx pgx.Tx, m pipeline.Delivery) (semel.Result, error)

// NewHandler returns a session whose effect is a function. It is called for each
// message behind a savepoint. NewHandler panics if guard or function is nil.
func NewHandler(guard *pgstore.Guard, fn Handler) *Session {
	if guard == nil || fn == nil {
		panic("postgres: NewHandler: the guard or the function is nil")
	}
	return &Session{guard: guard, handle: fn, traits: pipeline.SinkTraits{Parallel: 4}}
}

// Traits implements pipeline.Session.
func (s *Session) Traits() pipeline.SinkTraits { return s.traits }

// Ready implements semel.Readier. It asks the store, whose database also gets
// the messages.
func (s *Session) Ready(ctx context.Context) error {
	if ready, ok := semel.As[semel.Readier](s.guard.Store()); ok {
		if err := ready.Ready(ctx); err != nil {
			return &pipeline.StoreError{Err: fmt.Errorf("store: %w", err)}
		}
	}
	return nil
}

// BindScope implements pipeline.Session.
func (s *Session) BindScope(ctx context.Context, scope string, owner semel.ScopeOwner) error {
	return semel.BindScope(ctx, s.guard.Store(), scope, owner)
}

// WaitsFor implements pipeline.Waiter. It asks the server for locks.
func (s *Session) WaitsFor(ctx context.Context) (what string, ends bool) {
	what = "keys and rows in PostgreSQL"
	if lock := s.blockedBy(ctx); lock != "" {
		what += ", behind " + lock
	}
	return what, false
}

func (s *Session) blockedBy(ctx context.Context) string {
	if store, ok := semel.As[*pgstore.Store](s.guard.Store()); ok {
		lock, _ := store.WaitsFor(ctx)
		return lock
	}
	return ""
}

// Close implements pipeline.Session. It does not close the store.
func (s *Session) Close(context.Context) error { return nil }

// Abandon implements pipeline.Session. An ended transaction holds nothing.
func (s *Session) Abandon(context.Context, []*pipeline.Item) {}

// Process implements pipeline.Session.
func (s *Session) Process(ctx context.Context, items []*pipeline.Item) {
	calls := make([]semel.Call, len(items))
	for i, it := range items {
		it.Decision, it.Result, it.Err = semel.Undecided, semel.Result{}, nil
		it.Attempt = it.Tries + 1
		calls[i] = it.Call
	}
	var outcomes []semel.BatchOutcome
	effects := make([]error, len(items)) // errors of the effects themselves
	var behind lock
	ctx, stop := watched(ctx, s.answers)
	defer stop()
	defer behind.watch(ctx, s.blockedBy)()
	switch {
	case s.handle != nil:
		outcomes = s.handled(ctx, items, calls, effects, &behind)
	case s.careful.Load() > 0:
		s.careful.Add(-1)
		outcomes = s.carefully(ctx, items, calls, effects, &behind)
	default:
		outcomes = s.quickly(ctx, items, calls, effects, &behind)
	}
	for i, it := range items {
		outcomes[i].Err = silent(ctx, outcomes[i].Err)
		s.settle(it, &outcomes[i], effects[i])
	}
}

// answers asks the server for a sign of life.
func (s *Session) answers(ctx context.Context) error {
	if store, ok := semel.As[*pgstore.Store](s.guard.Store()); ok {
		return store.Answers(ctx)
	}
	return nil
}

// quickly sends keys and statements together. After an error the message that
// caused it is not known, so all messages are processed again one by one.
func (s *Session) quickly(ctx context.Context, items []*pipeline.Item, calls []semel.Call, effects []error, behind *lock) []semel.BatchOutcome {
	if s.write.versions || !s.write.known() { // the results are needed, or a connection
		return s.carefully(ctx, items, calls, effects, behind)
	}
	var b pgx.Batch
	place := make([]int, len(items)) // of its statement
	for i, it := range items {
		place[i] = b.Len()
		if !s.queue(ctx, &b, it) {
			// A message without values cannot be left out of the transaction
			// here.
			return s.carefully(ctx, items, calls, effects, behind)
		}
	}
	queued := b.QueuedQueries
	outcomes := s.guard.DoTxBatch(ctx, calls, pgstore.TxQueueFunc(func(b *pgx.Batch, fresh []*semel.BatchItem) error {
		for _, f := range fresh {
			if items[f.Index].Filtered {
				continue
			}
			q := queued[place[f.Index]]
			b.Queue(q.SQL, q.Arguments...)
		}
		return nil
	}))
	for i := range outcomes {
		if isRefused(outcomes[i].Err) || isHeld(outcomes[i].Err) {
			// Nothing was written. Sent apart from the claims, the statements show whether
			// the server refused them or the store, and which message a lock is of.
			return s.carefully(ctx, items, calls, effects, behind)
		}
		if outcomes[i].Err != nil && outcomes[i].Decision == semel.Undecided {
			s.careful.Store(20)
			break
		}
	}
	return outcomes
}

// queue adds the statement of an item to a batch, unless it is filtered out. It reports
// false if the item failed, and sets its Err.
func (s *Session) queue(ctx context.Context, b *pgx.Batch, it *pipeline.Item) bool {
	original := it.Message.Body
	body, pass, err := s.change.Call(ctx, pipeline.DeliveryOf(it))
	if it.Filtered = err == nil && !pass; it.Filtered {
		return true
	}
	if err != nil {
		it.Err = err
		return false
	}
	it.Message.Body = body
	defer func() { it.Message.Body = original }()
	return s.write.queue(b, it)
}

// carefully processes messages so that each error belongs to its message.
func (s *Session) carefully(ctx context.Context, items []*pipeline.Item, calls []semel.Call, effects []error, behind *lock) []semel.BatchOutcome {
	locks := 0
	return s.guard.DoTxBatch(ctx, calls, pgstore.TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
		if err := s.write.learn(ctx, tx.Conn()); isRefused(err) || isHeld(err) && !inConflict(err) {
			for _, f := range fresh {
				f.Err, effects[f.Index] = fmt.Errorf("%w: %w", errEffect, err), verdict(behind.explain(err), false)
			}
			return nil
		} else if err != nil {
			return err
		}
		var b pgx.Batch
		var queued []*semel.BatchItem
		bad := false
		for _, f := range fresh {
			it := items[f.Index]
			it.Err, effects[f.Index] = nil, nil
			if s.queue(ctx, &b, it) {
				if !it.Filtered {
					queued = append(queued, f)
				}
				continue
			}
			f.Err, effects[f.Index], bad = errEffect, it.Err, true
		}
		if bad {
			return nil // it is processed again without them
		}
		if len(queued) == 0 {
			return nil
		}
		n, err := send(ctx, tx, s.write, &b, func(i int, result []byte) { queued[i].Data = result }, len(queued))
		if err == nil {
			return nil
		}
		said := verdict(s.write.named(behind.explain(err)), false)
		waited := isHeld(err) && !inConflict(err)
		if waited {
			locks++
		}
		if isRefused(err) || locks > 1 { // it would refuse each of them; a second lock is that of the table
			for _, f := range queued {
				f.Err, effects[f.Index] = fmt.Errorf("%w: %w", errEffect, err), said
			}
			return nil
		}
		if isAway(said) && !waited || n >= len(queued) {
			return err
		}
		s.careful.Store(20)
		effects[queued[n].Index] = said
		queued[n].Err = fmt.Errorf("%w: %w", errEffect, err)
		return nil
	}))
}

// errEffect hides from the guard that an error is permanent. The guard would
// record it as the key's result, and a parked message could not be redriven.
var errEffect = errors.New("the effect failed")

func (s *Session) handled(ctx context.Context, items []*pipeline.Item, calls []semel.Call, effects []error, behind *lock) []semel.BatchOutcome {
	return s.guard.DoTxBatch(ctx, calls, pgstore.TxItemFunc(func(ctx context.Context, tx pgx.Tx, item *semel.BatchItem) (err error) {
		i := item.Index
		effects[i] = nil
		defer func() {
			if p := recover(); p != nil { // its writes are rolled back
				effects[i] = fmt.Errorf("the handler panicked: %v", p)
				err = errEffect
			}
		}()
		result, err := s.handle(ctx, tx, pipeline.DeliveryOf(items[i]))
		if err == nil {
			item.Data = result.Data
			return nil
		}
		if effects[i] = err; isHeld(err) && !isAway(err) {
			effects[i] = verdict(behind.explain(err), false)
		}
		var permanent *semel.PermanentError
		if errors.As(err, &permanent) {
			return fmt.Errorf("%w: %v", errEffect, err)
		}
		return err
	}))
}

// settle converts an outcome of the guard to that of an item.
func (s *Session) settle(it *pipeline.Item, out *semel.BatchOutcome, effect error) {
	it.Decision, it.Result, it.Err = out.Decision, out.Result, nil
	var (
		flight *semel.InFlightError
		failed *semel.PermanentError
	)
	switch err := out.Err; {
	case err == nil, errors.Is(err, semel.ErrResultNotKept):
	case errors.As(err, &failed) && failed.Replayed: // a recorded failure is an outcome too
	case effect != nil:
		it.Decision, it.Err = semel.Fresh, effect
	case errors.As(err, &flight):
		it.Decision, it.Err = semel.InFlight, err
	case errors.Is(err, semel.ErrMismatch), errors.Is(err, semel.ErrLate):
		it.Err = err
	case refusesKey(err):
		it.Err = semel.Permanent(err)
	default:
		it.Err = statementOrStore(s.named(err))
		if _, store := it.Err.(*pipeline.StoreError); !store {
			it.Decision = semel.Fresh
		}
	}
}

// named adds the column to an error of a statement. A handler has its own.
func (s *Session) named(err error) error {
	if s.write == nil {
		return err
	}
	return s.write.named(err)
}

// refusesKey reports whether the store refused a key or call itself. A missing
// table is an invalid request too, but not the fault of a message.
func refusesKey(err error) bool {
	var of *pgconn.PgError
	return (errors.Is(err, semel.ErrInvalidKey) || errors.Is(err, semel.ErrInvalidRequest)) && !errors.As(err, &of) && !errors.Is(err, pgstore.ErrSchema)
}

// statementOrStore distinguishes a statement that the server refused from a
// server that did not answer.
func statementOrStore(err error) error {
	said := verdict(err, false)
	if isAway(said) && !isHeld(err) || errors.Is(err, semel.ErrOutcomeUnknown) {
		return &pipeline.StoreError{Err: err}
	}
	return said
}
