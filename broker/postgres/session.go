package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
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
}

var (
	_ pipeline.Session = (*Session)(nil)
	_ pipeline.Waiter  = (*Session)(nil)
	_ doctor.Readier   = (*Session)(nil)
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

// Ready implements doctor.Readier. It asks the store, whose database also gets
// the messages, and whether the server refuses the statement: the table may be missing.
func (s *Session) Ready(ctx context.Context) error {
	if ready, ok := semel.As[doctor.Readier](s.guard.Store()); ok {
		if err := ready.Ready(ctx); err != nil {
			return &pipeline.StoreError{Err: fmt.Errorf("store: %w", err)}
		}
	}
	if store, ok := semel.As[*pgstore.Store](s.guard.Store()); ok && s.write != nil {
		return s.write.refused(ctx, store.Connected)
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
		it.Decision, it.Result, it.Err, it.Filtered = semel.Undecided, semel.Result{}, nil, false
		it.Attempt = it.Tries + 1
		calls[i] = it.Call
	}
	p := &batch{Session: s, items: items}
	ctx, stop := watched(ctx, s.answers)
	defer stop()
	defer p.behind.watch(ctx, s.blockedBy)()
	outcomes := s.guard.DoTxBatch(ctx, calls, p.effect(ctx))
	for i := range items {
		outcomes[i].Err = silent(ctx, outcomes[i].Err)
		p.settle(i, &outcomes[i])
	}
}

// answers asks the server for a sign of life.
func (s *Session) answers(ctx context.Context) error {
	if store, ok := semel.As[*pgstore.Store](s.guard.Store()); ok {
		return store.Answers(ctx)
	}
	return nil
}

// batch is one call of Process.
type batch struct {
	*Session
	items  []*pipeline.Item
	behind lock
}

// effect returns the effect of the items that are new. The guard finds the items that
// fail.
func (p *batch) effect(ctx context.Context) pgstore.BatchEffect {
	if p.handle != nil {
		return pgstore.TxItemFunc(p.call)
	}
	statements := pgstore.TxQueueFunc(func(q *pgstore.Statements, fresh []*semel.BatchItem) error {
		rows, owners := p.write.rows(len(fresh)), make([]*semel.BatchItem, 0, len(fresh))
		for _, f := range fresh {
			switch pass, err := p.add(ctx, rows, f); {
			case err != nil:
				f.Err = &effectError{said: err}
			case pass:
				owners = append(owners, f)
			}
		}
		rows.statements(len(owners), q.Apart(), func(first, count int, sql string, args []any) {
			p.queue(q, owners[first:first+count], sql, args)
		})
		return nil
	})
	if p.write.known() {
		return statements
	}
	return pgstore.TxBatchFunc(func(ctx context.Context, tx pgx.Tx, fresh []*semel.BatchItem) error {
		err := p.write.learn(ctx, tx.Conn())
		switch {
		case err == nil:
			return statements.Send(ctx, tx, fresh)
		case isRefused(err) || isHeld(err) && !inConflict(err): // as it would be for each of them
			for _, f := range fresh {
				f.Err = &effectError{said: verdict(p.behind.explain(err), false)}
			}
			return nil
		}
		return err
	})
}

// add adds the row of an item, unless the item is filtered out.
func (p *batch) add(ctx context.Context, rows *rowArgs, f *semel.BatchItem) (pass bool, err error) {
	it := p.items[f.Index]
	original := it.Message.Body
	body, pass, err := p.change.Call(ctx, pipeline.DeliveryOf(it))
	if it.Filtered = err == nil && !pass; err != nil || it.Filtered {
		return false, err
	}
	it.Message.Body = body
	err = rows.add(it)
	it.Message.Body = original
	return err == nil, err
}

// queue queues a statement of one item or several.
func (p *batch) queue(q *pgstore.Statements, owners []*semel.BatchItem, sql string, args []any) {
	if len(owners) > 1 {
		q.Queue(nil, sql, args...)
		return
	}
	f := owners[0]
	statement := q.Queue(f, sql, args...)
	if p.write.versions {
		statement.Exec(func(tag pgconn.CommandTag) error {
			f.Data = p.write.result(tag.RowsAffected())
			return nil
		})
	}
}

// effectError is the error of an item's handler, or of its values. It stays with the outcome
// of the attempt that decides: an earlier attempt may have run the effect of an item whose
// key belongs to another one.
type effectError struct {
	said error // for the pipeline
	// err is what the guard sees, or nil. A permanent error is hidden: the guard would record
	// it as the key's result, and a parked message could not be redriven.
	err error
}

// Error implements error.
func (e *effectError) Error() string { return "the effect failed: " + e.said.Error() }

// Unwrap returns the error that the guard sees.
func (e *effectError) Unwrap() error { return e.err }

// call calls the handler for an item.
func (p *batch) call(ctx context.Context, tx pgx.Tx, f *semel.BatchItem) (err error) {
	defer func() {
		if r := recover(); r != nil { // its writes are rolled back
			err = &effectError{said: fmt.Errorf("the handler panicked: %v", r)}
		}
	}()
	result, err := p.handle(ctx, tx, pipeline.DeliveryOf(p.items[f.Index]))
	if err == nil {
		f.Data = result.Data
		return nil
	}
	said := err
	if isHeld(err) && !isAway(err) {
		said = verdict(p.behind.explain(err), false)
	}
	if _, permanent := errors.AsType[*semel.PermanentError](err); permanent {
		err = nil
	}
	return &effectError{said, err}
}

// settle converts an outcome of the guard to that of an item.
func (p *batch) settle(i int, out *semel.BatchOutcome) {
	it := p.items[i]
	it.Decision, it.Result, it.Err = out.Decision, out.Result, nil
	var (
		flight    *semel.InFlightError
		failed    *semel.PermanentError
		statement *pgstore.StatementError
		effect    *effectError
	)
	switch err := out.Err; {
	case err == nil, errors.Is(err, semel.ErrResultNotKept):
	case errors.As(err, &failed) && failed.Replayed: // a recorded failure is an outcome too
	case errors.As(err, &effect):
		it.Decision, it.Err = semel.Fresh, effect.said
	case errors.As(err, &statement):
		it.Decision, it.Err = semel.Fresh, verdict(p.write.named(p.behind.explain(statement.Err)), false)
		if isRefused(err) {
			p.write.targets.Store(nil) // a column may have another type now
		}
	case errors.As(err, &flight):
		it.Decision, it.Err = semel.InFlight, err
	case errors.Is(err, semel.ErrMismatch), errors.Is(err, semel.ErrLate):
		it.Err = err
	case refusesKey(err):
		it.Err = semel.Permanent(err)
	default:
		if p.write != nil {
			err = p.write.named(err)
		}
		it.Err = statementOrStore(err)
		if _, store := it.Err.(*pipeline.StoreError); !store {
			it.Decision = semel.Fresh
		}
	}
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
