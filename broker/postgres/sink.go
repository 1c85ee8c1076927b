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
	s.deliver(ctx, items, false)
}

// deliver is Deliver. If apart is set, each item has a statement of its own.
func (s *Sink) deliver(ctx context.Context, items []*pipeline.Item, apart bool) {
	todo, again, behind := items, 3, 0
	for len(todo) > 0 {
		failed, shared, err := s.together(ctx, todo, apart)
		switch {
		case err == nil:
			return
		case inConflict(err) && again > 0:
			again-- // the others have their locks now
			continue
		case shared:
			apart = true // the server then says for which item
			continue
		case failed == nil && len(todo) > 1 && !isAway(err) && !errors.Is(err, semel.ErrOutcomeUnknown) && ctx.Err() == nil:
			// The server refused to commit, and does not say for which item.
			for i := range todo {
				s.deliver(ctx, todo[i:i+1], apart)
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
// error, if any. The error is shared if the server refused a statement of several items.
func (s *Sink) together(ctx context.Context, items []*pipeline.Item, apart bool) (failed *pipeline.Item, shared bool, _ error) {
	ctx, stop := watched(ctx, func(ctx context.Context) error { return pgstore.Answers(ctx, s.pool.Config().ConnConfig) })
	defer stop()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return nil, false, verdict(silent(ctx, err), false)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = tx.Rollback(ctx) // no effect after a commit; it closes a connection that it cannot roll back
	}()
	var behind lock
	defer behind.watch(ctx, s.blockedBy)()
	if err := s.write.learn(ctx, tx.Conn()); err != nil {
		return nil, false, verdict(behind.explain(silent(ctx, err)), false)
	}
	rows, written := s.write.rows(len(items)), make([]*pipeline.Item, 0, len(items))
	for _, it := range items {
		it.Result = semel.Result{}
		if it.Err = rows.add(it); it.Err == nil {
			written = append(written, it)
		}
	}
	if len(written) == 0 {
		return nil, false, nil
	}
	var b pgx.Batch
	var queued [][]*pipeline.Item // the items of each statement
	rows.statements(len(written), apart, func(first, count int, sql string, args []any) {
		b.Queue(sql, args...)
		queued = append(queued, written[first:first+count])
	})
	n, err := send(ctx, tx, s.write, &b, func(i int, result []byte) {
		queued[i][0].Result = resultOf(result) // it has one item if it has a result
	})
	if err != nil {
		return blame(queued, n, s.write.named(behind.explain(silent(ctx, err))))
	}
	return nil, false, verdict(silent(ctx, tx.Commit(ctx)), true)
}

// blame finds the item that caused an error, by the number of successful
// statements.
func blame(queued [][]*pipeline.Item, n int, err error) (failed *pipeline.Item, shared bool, _ error) {
	said := verdict(err, false)
	switch {
	case isAway(said) && !isHeld(err) || n >= len(queued):
		return nil, false, said
	case len(queued[n]) > 1:
		return nil, true, said
	}
	return queued[n][0], false, said
}

// send executes a batch and reports the result of each statement. On an error it
// returns the number of successful statements.
func send(ctx context.Context, tx pgx.Tx, w *writer, b *pgx.Batch, each func(i int, result []byte)) (int, error) {
	most := b.Len()
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
