package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
)

// rollbackWait is the maximum wait for a rollback. After that, the connection is
// closed, which has the same effect.
const rollbackWait = 5 * time.Second

// readCommitted is the only isolation level at which a claim sees what another
// transaction committed while the claim waited for it.
var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted}

// guardTx is one transaction of a guard, on its own connection. It begins with
// the first statement, in the same round trip.
type guardTx struct {
	session
	conn *pgxpool.Conn
	tx   pgx.Tx // nil until it has begun
	seen watch
	held []*semel.BatchItem // the items whose keys it claimed, once known
}

// begin acquires a connection. The caller must call end.
func (s *Store) begin(ctx context.Context) (*guardTx, error) {
	// The store may be closed while the transaction runs. The connection then stays
	// open until the end of the transaction.
	if err := s.enter(ctx, "begin", 0, 0); err != nil {
		return nil, err
	}
	defer s.leave()
	var conn *pgxpool.Conn
	err := within(ctx, s.patience, func(ctx context.Context) (err error) {
		conn, err = pooled{s.pool}.acquire(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgstore: connect: %w", rolledBack(err))
	}
	u := &guardTx{conn: conn, seen: watch{conn: conn.Conn().PgConn()}}
	u.session = session{Store: s, q: u, lockWait: s.wait, patience: s.patience}
	return u, nil
}

// Query implements querier.
func (u *guardTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if u.tx != nil {
		return u.tx.Query(ctx, sql, args...)
	}
	var b pgx.Batch
	b.BeginTx(readCommitted)
	if err := u.queue(&b, sql, args...); err != nil {
		return nil, err
	}
	br := u.conn.SendBatch(ctx, &b)
	u.tx = br.Tx()
	if _, err := br.Exec(); err != nil {
		return nil, errors.Join(err, closed(br, err))
	}
	rows, err := br.Query()
	if err != nil {
		return nil, errors.Join(err, closed(br, err))
	}
	return &lastRows{Rows: rows, br: br}, nil
}

// queue adds one of our statements to a batch. Batches use the mode of the pool.
// If that mode does not ask the server for parameter types, arguments are sent as
// text.
func (u *guardTx) queue(b *pgx.Batch, sql string, args ...any) error {
	if len(args) > 0 {
		if _, ok := args[0].(pgx.QueryExecMode); ok {
			args = args[1:]
		}
	}
	if u.asTexts {
		texts, err := textual(u.conn.Conn().TypeMap(), args)
		if err != nil {
			return err
		}
		args = texts
	}
	b.Queue(u.plans.text(sql), args...)
	return nil
}

// closed closes a batch and returns its error together with err.
func closed(br pgx.BatchResults, err error) error {
	if e := br.Close(); !errors.Is(e, err) && !errors.Is(err, e) {
		return e
	}
	return nil
}

// lastRows are the last result of a batch. Closing them closes the batch.
type lastRows struct {
	pgx.Rows
	br  pgx.BatchResults
	err error
}

// Close implements pgx.Rows.
func (r *lastRows) Close() {
	r.Rows.Close()
	r.err = r.br.Close()
}

// Err implements pgx.Rows.
func (r *lastRows) Err() error {
	if err := r.Rows.Err(); err != nil {
		return err
	}
	return r.err
}

// verdict says why the transaction cannot be committed after its effect, which
// returned err.
func (u *guardTx) verdict(ctx context.Context, err error) error {
	u.verify(ctx)
	switch {
	case u.ended():
		ended := errors.New("pgstore: the effect ended the transaction, with what it had written and perhaps the key")
		if err != nil {
			ended = fmt.Errorf("%w (%v)", ended, err)
		}
		return fmt.Errorf("%w: %w", ended, semel.ErrOutcomeUnknown)
	case err != nil && u.lost() && !isPermanent(err):
		return fmt.Errorf("pgstore: rolled back: %w: %w", semel.ErrStoreUnavailable, err)
	case err != nil:
		return err
	case u.lost():
		return fmt.Errorf("pgstore: the connection was lost before the commit: %w", semel.ErrStoreUnavailable)
	case u.conn.Conn().PgConn().IsBusy():
		return fmt.Errorf("pgstore: the effect left the rows of a query open: %w", semel.ErrInvalidRequest)
	case u.aborted() && u.seen.cause != nil:
		return fmt.Errorf("pgstore: the effect continued after a statement had failed: %w", failure(ofEffect(u.seen.cause)))
	case u.aborted():
		return fmt.Errorf("pgstore: the effect continued after a statement had failed: %w", semel.ErrInvalidRequest)
	}
	return nil
}

// verify checks, in doubtful cases, whether the transaction is still the one that
// claimed the keys: their rows are then its own. It asks nothing if the server
// would not answer.
func (u *guardTx) verify(ctx context.Context) {
	c := u.conn.Conn().PgConn()
	if !u.seen.doubtful || len(u.held) == 0 || c.IsClosed() || c.IsBusy() || c.TxStatus() != 'T' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWait)
	defer cancel()
	keys := make(pgtype.FlatArray[[16]byte], len(u.held))
	for i, item := range u.held {
		keys[i] = u.hasher.Key(item.Call.Key)
	}
	own, err := collect(ctx, u.session, u.sql.held, []any{keys}, pgx.RowTo[bool])
	if err != nil {
		_ = u.seen.note(err) // the transaction is aborted or the connection lost, which is noticed elsewhere
		return
	}
	u.seen.doubtful, u.seen.commits, u.seen.ended = false, false, u.seen.ended || len(own) == 0
}

// lost reports that the connection is gone. The server rolls back what was not
// committed.
func (u *guardTx) lost() bool { return u.conn.Conn().IsClosed() }

// aborted reports that the server refuses everything but a rollback.
func (u *guardTx) aborted() bool { return u.conn.Conn().PgConn().TxStatus() == 'E' }

// ended reports that the effect itself sent COMMIT or ROLLBACK. If it may have
// done so and the server can no longer be asked, ended returns true.
func (u *guardTx) ended() bool {
	return u.seen.ended || idle(u.seen.conn) || u.seen.commits && (u.aborted() || u.lost())
}

// broken says why the transaction cannot continue, whatever its effect returned.
func (u *guardTx) broken(ctx context.Context) error {
	switch {
	case u.ended():
		return semel.ErrOutcomeUnknown
	case ctx.Err() != nil:
		return causeOf(ctx)
	}
	return semel.ErrStoreUnavailable
}

// kept is a key to commit, with its result.
type kept struct {
	item   *semel.BatchItem
	result semel.Result
}

// commit stores results and commits, in one round trip. It continues after the
// caller has gone: a commit that was started should not end in doubt.
func (u *guardTx) commit(ctx context.Context, all []kept, commitTimeout time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), commitTimeout)
	defer cancel()
	var keys pgtype.FlatArray[[16]byte]
	var results pgtype.FlatArray[[]byte]
	for _, k := range all {
		if stored := encodeResult(k.result); stored != nil {
			keys, results = append(keys, u.hasher.Key(k.item.Call.Key)), append(results, stored)
		}
	}
	if len(keys) == 0 {
		return u.committed(u.tx.Commit(ctx))
	}
	var b pgx.Batch
	if err := u.queue(&b, u.sql.keep, u.lockWait, keys, results); err != nil {
		return err
	}
	b.Queue("commit")
	br := u.conn.SendBatch(ctx, &b)
	stored, err := br.Exec()
	if err == nil {
		tag, e := br.Exec()
		if err = e; err == nil && tag.String() == "ROLLBACK" {
			err = pgx.ErrTxCommitRollback
		}
	}
	if e := br.Close(); err == nil {
		err = e
	}
	if err == nil && stored.RowsAffected() != int64(len(keys)) {
		return fmt.Errorf("%d of %d keys were there at the commit; has the effect ended the transaction?: %w",
			stored.RowsAffected(), len(keys), semel.ErrOutcomeUnknown)
	}
	return u.committed(err)
}

// committed classifies the answer to a commit.
func (u *guardTx) committed(err error) error {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		if u.seen.cause != nil {
			err = u.seen.cause
		}
		return rolledBack(err)
	}
	return failure(err)
}

// undo rolls back, so that the next statement begins a new transaction.
func (u *guardTx) undo(ctx context.Context) error {
	u.tx, u.seen.ended = nil, false
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rollbackWait)
	defer cancel()
	_, err := u.conn.Exec(ctx, "rollback")
	return err
}

// end rolls back what was not committed and returns the connection. A second call
// does nothing.
func (u *guardTx) end(ctx context.Context) {
	if u.conn == nil {
		return
	}
	if c := u.conn.Conn().PgConn(); !c.IsClosed() && !c.IsBusy() && c.TxStatus() != 'I' {
		_ = u.undo(ctx) // if this fails, the connection is closed
	}
	u.conn.Release() // closes a connection that is not idle
	u.conn = nil
}

// rolledBack classifies an error of a transaction that cannot have been
// committed, so that no outcome is unknown.
func rolledBack(err error) error {
	f := failure(err)
	switch {
	case f == nil || !errors.Is(f, semel.ErrOutcomeUnknown) || errors.Is(err, semel.ErrOutcomeUnknown):
		return f
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return fmt.Errorf("%w: %w", semel.ErrStoreUnavailable, err)
}
