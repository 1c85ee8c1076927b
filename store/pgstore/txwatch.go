package pgstore

import (
	"context"
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrNotYours is what an effect gets that commits or rolls back its
// transaction. The guard does that: it knows what else is in it.
var ErrNotYours = errors.New("the guard ends this transaction; return an error to have it rolled back")

// inFailedTransaction is what the server answers to all that follows an error.
const inFailedTransaction = "25P02"

// watch remembers what became of a transaction under its effect.
type watch struct {
	conn *pgconn.PgConn
	// cause is why it was aborted. One that is aborted answers its commit with
	// a rollback and no reason.
	cause error
	// ended says that a statement of the effect ended it, also if another was
	// begun since.
	ended bool
	// doubtful says that the effect may have ended it and begun another, between
	// which nothing was seen: the key's row tells.
	doubtful bool
	// commits says that it may have ended it with a commit.
	commits bool
}

// note looks at the transaction after a statement, and returns the error it is
// given.
func (w *watch) note(err error) error {
	w.ended = w.ended || idle(w.conn)
	if code := stateOf(err); code != "" && code != inFailedTransaction {
		w.cause = err
	}
	return err
}

// sent looks at the text of a statement before it goes.
func (w *watch) sent(sql string) {
	if mayBegin(sql) {
		w.doubtful = true
		w.commits = w.commits || mayCommit(sql)
	}
}

// sentAll does so for those of a batch.
func (w *watch) sentAll(b *pgx.Batch) {
	last := ""
	for _, q := range b.QueuedQueries {
		if q.SQL != last { // most are the same
			w.sent(q.SQL)
		}
		last = q.SQL
	}
}

// idle reports that no transaction is open.
func idle(conn *pgconn.PgConn) bool {
	return !conn.IsClosed() && !conn.IsBusy() && conn.TxStatus() == 'I'
}

// effectTx is the transaction as an effect gets it.
type effectTx struct {
	pgx.Tx
	watch *watch
	// inner is a savepoint of the effect's own, which it may end.
	inner bool
}

// Begin implements pgx.Tx.
func (t *effectTx) Begin(ctx context.Context) (pgx.Tx, error) {
	tx, err := t.Tx.Begin(ctx)
	if err != nil {
		return nil, t.watch.note(err)
	}
	return &effectTx{tx, t.watch, true}, nil
}

// Commit implements pgx.Tx.
func (t *effectTx) Commit(ctx context.Context) error {
	if !t.inner {
		return ErrNotYours
	}
	return t.watch.note(t.Tx.Commit(ctx))
}

// Rollback implements pgx.Tx.
func (t *effectTx) Rollback(ctx context.Context) error {
	if !t.inner {
		return ErrNotYours
	}
	return t.watch.note(t.Tx.Rollback(ctx))
}

// Conn implements pgx.Tx. What is sent on it is not seen.
func (t *effectTx) Conn() *pgx.Conn {
	t.watch.doubtful = true
	return t.Tx.Conn()
}

// Exec implements pgx.Tx.
func (t *effectTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	t.watch.sent(sql)
	tag, err := t.Tx.Exec(ctx, sql, args...)
	return tag, t.watch.note(err)
}

// Query implements pgx.Tx.
func (t *effectTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	t.watch.sent(sql)
	rows, err := t.Tx.Query(ctx, sql, args...)
	return &watchedRows{rows, t.watch}, t.watch.note(err)
}

// QueryRow implements pgx.Tx.
func (t *effectTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	t.watch.sent(sql)
	return &watchedRow{t.Tx.QueryRow(ctx, sql, args...), t.watch}
}

// Prepare implements pgx.Tx.
func (t *effectTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	t.watch.sent(sql)
	described, err := t.Tx.Prepare(ctx, name, sql)
	return described, t.watch.note(err)
}

// CopyFrom implements pgx.Tx.
func (t *effectTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	n, err := t.Tx.CopyFrom(ctx, table, columns, rows)
	return n, t.watch.note(err)
}

// SendBatch implements pgx.Tx.
func (t *effectTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	t.watch.sentAll(b)
	return &watchedBatch{t.Tx.SendBatch(ctx, b), t.watch}
}

type watchedRows struct {
	pgx.Rows
	watch *watch
}

// Next implements pgx.Rows.
func (r *watchedRows) Next() bool {
	more := r.Rows.Next()
	if !more {
		_ = r.watch.note(r.Rows.Err())
	}
	return more
}

// Close implements pgx.Rows.
func (r *watchedRows) Close() {
	r.Rows.Close()
	_ = r.watch.note(r.Rows.Err())
}

type watchedRow struct {
	pgx.Row
	watch *watch
}

// Scan implements pgx.Row.
func (r *watchedRow) Scan(dest ...any) error { return r.watch.note(r.Row.Scan(dest...)) }

type watchedBatch struct {
	pgx.BatchResults
	watch *watch
}

// Exec implements pgx.BatchResults.
func (b *watchedBatch) Exec() (pgconn.CommandTag, error) {
	tag, err := b.BatchResults.Exec()
	return tag, b.watch.note(err)
}

// Query implements pgx.BatchResults.
func (b *watchedBatch) Query() (pgx.Rows, error) {
	rows, err := b.BatchResults.Query()
	return &watchedRows{rows, b.watch}, b.watch.note(err)
}

// QueryRow implements pgx.BatchResults.
func (b *watchedBatch) QueryRow() pgx.Row {
	return &watchedRow{b.BatchResults.QueryRow(), b.watch}
}

// Close implements pgx.BatchResults.
func (b *watchedBatch) Close() error { return b.watch.note(b.BatchResults.Close()) }
