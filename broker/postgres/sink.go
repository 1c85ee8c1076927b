package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/semel-dev/semel"
	"github.com/semel-dev/semel/doctor"
	"github.com/semel-dev/semel/internal/pglock"
	"github.com/semel-dev/semel/pipeline"
	"github.com/semel-dev/semel/store/pgstore"
)

// Sink writes messages whose keys are in another store. Create it with Open.
type Sink struct {
	pool  *pgxpool.Pool
	write *writer
}

var (
	_ pipeline.Sink   = (*Sink)(nil)
	_ pipeline.Waiter = (*Sink)(nil)
	_ doctor.Readier  = (*Sink)(nil)
)

// Open connects to a database and returns a sink that closes the connections
// with itself. It blocks until the server has answered. It works behind a
// pooler. Without one, default_query_exec_mode=cache_statement in the address
// saves the server some work.
func Open(ctx context.Context, dsn string, opts *Options) (*Sink, error) {
	w, err := newWriter(opts)
	if err != nil {
		return nil, err
	}
	if opts.FilterMap != nil {
		return nil, fmt.Errorf("postgres: Options.FilterMap: it is for a Session: use that of pipeline.TwoPhaseOptions: %w", semel.ErrInvalidRequest)
	}
	config, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, fmt.Errorf("postgres: the address is not one of PostgreSQL: %w", semel.ErrInvalidRequest) // its text may be the password
	}
	if !strings.Contains(dsn, "default_query_exec_mode") {
		// No state stays in the session, because there may be a pooler.
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	limitConnect(config)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("postgres: %w: %w", semel.ErrStoreUnavailable, err)
	}
	return &Sink{pool, w}, nil
}

// limitConnect limits an attempt to connect, unless the address does.
func limitConnect(config *pgxpool.Config) {
	if config.ConnConfig.ConnectTimeout == 0 {
		config.ConnConfig.ConnectTimeout = 5 * time.Second
	}
}

// Traits implements pipeline.Sink.
func (s *Sink) Traits() pipeline.SinkTraits { return pipeline.SinkTraits{Parallel: 4} }

// Ready implements doctor.Readier. It also asks whether the server refuses the statement: the
// table may be missing.
func (s *Sink) Ready(ctx context.Context) error {
	if err := s.pool.Ping(ctx); err != nil {
		return fmt.Errorf("postgres: %w", err)
	}
	return s.write.refused(ctx, func(ctx context.Context, use func(*pgx.Conn) error) error {
		return s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return use(conn.Conn()) })
	})
}

// WaitsFor implements pipeline.Waiter. It asks the server for locks.
func (s *Sink) WaitsFor(ctx context.Context) (what string, ends bool) {
	what = "rows in PostgreSQL"
	if lock := s.blockedBy(ctx); lock != "" {
		what += ", behind " + lock
	}
	return what, false
}

func (s *Sink) blockedBy(ctx context.Context) string {
	lock, _ := pglock.Holder(ctx, s.pool.Config().ConnConfig) // a server that does not answer is reported by the calls that wait
	return lock
}

// Close implements pipeline.Sink. The connections to a server that does not answer are
// closed some seconds later.
func (s *Sink) Close(ctx context.Context) error {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.pool.Close()
	}()
	select {
	case <-closed:
	case <-ctx.Done():
	}
	return nil
}

// Deliver implements pipeline.Sink with one transaction for all items. An item
// that fails is left out, and the others are written again.
func (s *Sink) Deliver(ctx context.Context, items []*pipeline.Item) {
	todo, again, behind := items, 3, 0
	for len(todo) > 0 {
		failed, err := s.together(ctx, todo)
		switch {
		case err == nil:
			return
		case inConflict(err) && again > 0:
			again-- // the others have their locks now
			continue
		case failed == nil && len(todo) > 1 && !isAway(err) && !errors.Is(err, semel.ErrOutcomeUnknown) && ctx.Err() == nil:
			// The server refused to commit, and does not say for which item.
			for i := range todo {
				s.Deliver(ctx, todo[i:i+1])
			}
			return
		case failed != nil && isHeld(err):
			behind++
		}
		if failed == nil || behind > 1 { // a second lock is that of the table
			for _, it := range todo {
				it.Err = err
			}
			return
		}
		failed.Err = err
		rest := make([]*pipeline.Item, 0, len(todo))
		for _, it := range todo {
			if it.Err == nil {
				rest = append(rest, it)
			}
		}
		todo = rest
	}
}

// together writes items in one transaction. It returns the error, and the item that caused the
// error, if any.
func (s *Sink) together(ctx context.Context, items []*pipeline.Item) (*pipeline.Item, error) {
	ctx, stop := watched(ctx, func(ctx context.Context) error { return pgstore.Answers(ctx, s.pool.Config().ConnConfig) })
	defer stop()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return nil, verdict(silent(ctx, err), false)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // no effect after a commit; it closes a connection that it cannot roll back
	}()
	var behind lock
	defer behind.watch(ctx, s.blockedBy)()
	if err := s.write.learn(ctx, tx.Conn()); err != nil {
		return nil, verdict(behind.explain(silent(ctx, err)), false)
	}
	var b pgx.Batch
	queued := make([]*pipeline.Item, 0, len(items))
	for _, it := range items {
		it.Err, it.Result = nil, semel.Result{}
		args, err := s.write.args(it)
		if it.Err = err; err == nil {
			b.Queue(s.write.sql, args...)
			queued = append(queued, it)
		}
	}
	if len(queued) == 0 {
		return nil, nil
	}
	n, err := send(ctx, tx, s.write, &b, func(i int, result []byte) {
		queued[i].Result = resultOf(result)
	}, len(queued))
	if err != nil {
		return blame(queued, n, s.write.named(behind.explain(silent(ctx, err))))
	}
	return nil, verdict(silent(ctx, tx.Commit(ctx)), true)
}

// blame finds the item that caused an error, by the number of successful
// statements.
func blame(items []*pipeline.Item, n int, err error) (*pipeline.Item, error) {
	said := verdict(err, false)
	if isAway(said) && !isHeld(err) || n >= len(items) {
		return nil, said
	}
	return items[n], said
}

// send executes a batch and reports the result of each statement. On an error it
// returns the number of successful statements.
func send(ctx context.Context, tx pgx.Tx, w *writer, b *pgx.Batch, each func(i int, result []byte), most int) (int, error) {
	answers := tx.SendBatch(ctx, b)
	for i := range most {
		tag, err := answers.Exec()
		if err != nil {
			_ = answers.Close() // the same error
			if isRefused(err) {
				w.targets.Store(nil) // a column may have another type now
			}
			return i, err
		}
		each(i, w.result(tag.RowsAffected()))
	}
	return most, answers.Close()
}

func resultOf(data []byte) semel.Result {
	if data == nil {
		return semel.Result{}
	}
	return semel.Result{Kind: semel.Value, Data: data}
}
