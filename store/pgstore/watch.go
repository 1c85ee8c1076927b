package pgstore

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/semel-dev/semel"
)

// ErrNotYours is the error of Commit and Rollback in an effect. The guard ends
// the transaction, because only the guard knows what else is in it.
var ErrNotYours = fmt.Errorf("the guard commits this transaction when the effect returns nil, and rolls it back after an error: remove Commit and Rollback from the effect: %w", semel.ErrInvalidRequest)

// inFailedTransaction is the server's answer to every statement after an error.
const inFailedTransaction = "25P02"

// watch tracks the state of a transaction while its effect runs.
type watch struct {
	conn *pgconn.PgConn
	// cause is why the transaction was aborted. The server answers its commit with
	// a rollback and no reason.
	cause error
	// ended means that a statement of the effect ended it, even if another
	// transaction was begun since.
	ended bool
	// doubtful means that the effect may have ended it and begun another in one
	// step, unseen. The key's row tells.
	doubtful bool
	// commits means that the effect may have ended it with a commit.
	commits bool
	// apart is for the Statements of the effect.
	apart bool
}

// note records the state of the transaction after a statement. It returns the
// error that it is given.
func (w *watch) note(err error) error {
	w.ended = w.ended || idle(w.conn)
	if code := stateOf(err); code != "" && code != inFailedTransaction {
		w.cause = err
	}
	return err
}

// sent examines the text of a statement before it is sent.
func (w *watch) sent(sql string) {
	if mayBegin(sql) {
		w.doubtful = true
		w.commits = w.commits || mayCommit(sql)
	}
}

// sentAll examines the statements of a batch.
func (w *watch) sentAll(b *pgx.Batch) {
	last := ""
	for _, q := range b.QueuedQueries {
		if q.SQL != last { // most texts are the same
			w.sent(q.SQL)
		}
		last = q.SQL
	}
}

// idle reports that no transaction is open.
func idle(conn *pgconn.PgConn) bool {
	return !conn.IsClosed() && !conn.IsBusy() && conn.TxStatus() == 'I'
}

// effectTx is the transaction as an effect sees it.
type effectTx struct {
	pgx.Tx
	watch *watch
	// inner is a savepoint that the effect began and may end.
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

// Conn implements pgx.Tx. Statements sent on it are not tracked.
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

// The functions below look for words in the text of statements, to find those
// that may begin or end a transaction. They do not parse SQL, so they also find a
// word in a literal or a comment. The caller then checks further, so that no
// statement is refused because of a word.

// mayBegin reports whether a text may begin a transaction: BEGIN, START
// TRANSACTION, or COMMIT AND CHAIN. Columns may have such names too, which is
// harmless.
func mayBegin(sql string) bool {
	if !hasWord(sql, "begin", "chain", "transaction") {
		return false // as for nearly all statements: one scan
	}
	return hasWord(sql, "begin") || hasWord(sql, "transaction") && commands(sql, "start", "prepare") ||
		hasWord(sql, "chain") && commands(sql, "abort", "commit", "end", "rollback")
}

// mayCommit reports whether a text that may begin a transaction may also commit
// one first.
func mayCommit(sql string) bool {
	return commands(sql, "commit", "prepare") || hasWord(sql, "chain") && commands(sql, "end")
}

// mayEnd reports whether a text may begin or end a transaction, or call something
// that can do so in an implicit transaction.
func mayEnd(sql string) bool {
	return hasWord(sql, "abort", "begin", "commit", "rollback") || commands(sql, "call", "end", "prepare", "start")
}

// commands reports whether one of the words may be a command. It is at the start
// of the text, in one of several statements, or after a comment. END, for
// example, also ends CASE.
func commands(sql string, words ...string) bool {
	if !hasWord(sql, words...) {
		return false
	}
	sql = strings.Trim(sql, "; \t\r\n")
	if strings.Contains(sql, ";") || strings.Contains(sql, "--") || strings.Contains(sql, "/*") {
		return true
	}
	for _, word := range words {
		if n := len(word); len(sql) >= n && strings.EqualFold(sql[:n], word) && (len(sql) == n || !isLetter(sql[n])) {
			return true
		}
	}
	return false
}

// hasWord reports whether one of the lower-case words occurs in a text, in any
// case and not as part of a longer word. It runs for each statement, so it does
// not allocate.
func hasWord(sql string, words ...string) bool {
	var first uint32 // one bit for each letter that starts a word
	for _, word := range words {
		first |= 1 << (word[0] - 'a')
	}
	inside := false
	for i := range len(sql) {
		letter := isLetter(sql[i])
		if letter && !inside && first&(1<<(sql[i]|0x20-'a')) != 0 {
			for _, word := range words {
				end := i + len(word)
				if sql[i]|0x20 == word[0] && end <= len(sql) && strings.EqualFold(sql[i:end], word) && (end == len(sql) || !isLetter(sql[end])) {
					return true
				}
			}
		}
		inside = letter
	}
	return false
}

// isLetter reports whether a byte is a letter or the underscore. Digits do not
// count: a word may start after a number.
func isLetter(b byte) bool {
	return b == '_' || 'a' <= b|0x20 && b|0x20 <= 'z'
}
